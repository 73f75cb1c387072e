"""A node's local disks in a policy, and what the node reports about them: a label and a condition.

```yaml
disks:
  select: [google-local-nvme-ssd-*]   # default: local disks of GKE, EKS and AKS
  filesystem: xfs                     # default: ext4
  mount: /mnt/disks/tessera
  name: tessera
```
"""

from typing import Literal

from tessera.api.fields import Field, in_place
from tessera.api.tessera.nodereports import Report
from tessera.core.storage.disks import DiskPlan, DiskSpec, DiskState, check_spec
from tessera.core.storage.disksteps import Filesystem

__all__ = ["CONDITION", "LABEL", "disks_label", "disks_report", "read_disks"]

LABEL = "tessera.dev/disks"
"""Label of a node: `ready`, `pending`, `lost` or `refused`; without disks there is none. Pods select `ready`."""
CONDITION = "TesseraDisksReady"
"""Type of the node condition that says whether the disks are whole, mounted and writable."""

_DEFAULT = DiskSpec()
_LABELS = {
    DiskState.READY: "ready",
    DiskState.PENDING: "pending",
    DiskState.LOST: "lost",
    DiskState.REFUSED: "refused",
}
_REASONS = {
    DiskState.READY: "DisksReady",
    DiskState.PENDING: "DisksPending",
    DiskState.LOST: "DiskLost",
    DiskState.REFUSED: "DisksRefused",
    DiskState.NONE: "NoDisks",
}


def read_disks(field: Field) -> DiskSpec:
    """Return what a policy says of disks; without a value of its own each field has its default.

    Raises:
        InvalidInput: an unknown field, or a value that cannot be carried out.

    """
    field.only("select", "filesystem", "mount", "name")
    patterns = tuple(each.text() for each in field.get("select").elements())
    filesystem: Filesystem = field.get("filesystem").choice("ext4", "xfs", default=_DEFAULT.filesystem)
    spec = DiskSpec(
        select=patterns if field.get("select").given else _DEFAULT.select,
        filesystem=filesystem,
        mount=field.get("mount").text(_DEFAULT.mount),
        name=field.get("name").text(_DEFAULT.name),
    )
    return in_place(field, lambda: check_spec(spec))


def disks_label(plan: DiskPlan) -> str | None:
    """Return the value of the label `tessera.dev/disks`; None for no label."""
    return _LABELS.get(plan.state)


def disks_report(plan: DiskPlan) -> tuple[Literal["True", "False"], Report]:
    """Return the status of the condition `TesseraDisksReady`, with its reason and message; also good for an event."""
    ready = plan.state is DiskState.READY
    where = (f"{plan.device} at {plan.mount}",) if ready else ()
    parts = (*where, *plan.reasons, *((plan.advice,) if plan.advice else ()), *plan.notes)
    report = Report(
        reason=_REASONS[plan.state],
        message="; ".join(parts) or str(plan.state),
        warning=plan.state in {DiskState.LOST, DiskState.REFUSED},
    )
    return ("True" if ready else "False"), report
