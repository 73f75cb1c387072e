"""A node's report about its local disks: a label and a condition."""

from collections.abc import Sequence
from typing import Literal

from tessera.api.tessera.node.nodereports import Report
from tessera.core.storage.disks.plan import DiskPlan, DiskState

__all__ = ["CONDITION", "LABEL", "disks_label", "disks_report"]

LABEL = "tessera.dev/disks"
"""Label of a node: `ready`, `pending`, `lost` or `refused`; without disks there is none. Set by the disk
agent; read by pods, which select `ready`."""
CONDITION = "TesseraDisksReady"
"""Type of the node condition: whether the disks are whole, mounted and writable."""

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


def disks_label(plan: DiskPlan) -> str | None:
    """Return the value of the label `tessera.dev/disks`; None for no label."""
    return _LABELS.get(plan.state)


def disks_report(plan: DiskPlan, volumes: Sequence[str] = ()) -> tuple[Literal["True", "False"], Report]:
    """Return the status of the condition `TesseraDisksReady`, with its reason and message; also for an event.

    Args:
        plan: of the disks.
        volumes: what is wrong with the local volumes on them.

    """
    ready = plan.state is DiskState.READY
    where = (f"{plan.device} at {plan.mount}",) if ready else ()
    parts = (*where, *plan.reasons, *((plan.advice,) if plan.advice else ()), *plan.notes, *volumes)
    report = Report(
        reason=_REASONS[plan.state],
        message="; ".join(parts) or str(plan.state),
        warning=bool(volumes) or plan.state in {DiskState.LOST, DiskState.REFUSED},
    )
    return ("True" if ready else "False"), report
