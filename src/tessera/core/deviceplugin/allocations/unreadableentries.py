"""Entries of the record that cannot be read: which pods may use devices of which no record is left?"""

from collections.abc import Container, Iterable
from typing import NamedTuple, Self

from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation
from tessera.core.deviceplugin.allocations.gateobservation import GatePod
from tessera.core.workload.resources import SHARE_RESOURCES

__all__ = ["UnknownUse", "UnreadableEntry", "is_idle", "still_unrecorded", "unknown_uses", "uses_unknown"]


class UnreadableEntry(NamedTuple):
    """What is left of an entry that cannot be read."""

    uid: str
    """Of the pod."""
    container: str | None = None
    """None where no entry of the file can be read, so that all of the pod are recorded anew; empty if illegible."""
    resource: str | None = None


def still_unrecorded(
    unreadable: Iterable[UnreadableEntry], record: Iterable[AgentAllocation]
) -> frozenset[UnreadableEntry]:
    """Return the entries that were not recorded anew: of a living pod the kubelet's record has all of them.

    A pod of which another entry could be read is not known by that one.
    """
    known = {each.container_key for each in record if each.pod}
    pods = {uid for uid, _, _ in known}
    return frozenset(
        each for each in unreadable if each not in known and (each.container is not None or each.uid not in pods)
    )


class UnknownUse(NamedTuple):
    """A pod that runs, and of which it is not known what it uses."""

    pod: str
    """Its UID if it was deleted, else `namespace/name`."""
    deleted: bool
    unassigned: bool = False
    """Whether its units are known, and its assignment does not say what they are."""

    @classmethod
    def of(cls, entry: AgentAllocation) -> Self:
        """Return that of the pod of an entry whose devices are not known."""
        return cls(entry.pod, deleted=False, unassigned=bool(entry.ids))

    @property
    def cause(self) -> str:
        """Why that is not known, with the pod as subject."""
        if self.deleted:
            return "was deleted, its processes run, and the record of what it uses was unreadable"
        if self.unassigned:
            lost = "the assignment that says of which GPU was removed or replaced, or the driver does not list that GPU"
            return f"requests units of GPU memory and runs, and {lost}"
        return "requests devices and runs, and neither the kubelet's record nor the agent's says what it has"

    @property
    def text(self) -> str:
        """Pod, cause and fix."""
        fix = "end them, or restart the node" if self.deleted else "delete it"
        return f"pod {self.pod}: it {self.cause}: {fix}; no device is allocated before"


def uses_unknown(entry: AgentAllocation) -> bool:
    """Return whether an entry is of a container that no record had, or only its units: it is not known what it uses."""
    # Ids by name say it, also while the driver does not list their device.
    units = entry.started and entry.resource in SHARE_RESOURCES
    return bool(entry.pod) and not entry.uses and (units or not entry.ids)


def is_idle(entry: AgentAllocation, pod: GatePod, processes: Container[tuple[str, str]] | None) -> bool:
    """Return whether a container that no record had uses nothing: it has not started, or is an ended init container.

    If it starts later it is allocated anew. One that was created and lasts as long as its pod may just be restarting.

    Args:
        entry: of the container.
        pod: its pod.
        processes: the containers, by UID of the pod and name, that may have processes; None if not observed.

    """
    if entry.container in pod.lasting & pod.created:
        return False
    has_process = None if processes is None else (entry.uid, entry.container) in processes
    return not pod.may_run(entry.container, has_process=has_process)


def unknown_uses(unknown: Iterable[UnknownUse]) -> str:
    """Return why nothing is offered while such pods run; empty where there are none."""
    return "; ".join(each.text for each in sorted(unknown))
