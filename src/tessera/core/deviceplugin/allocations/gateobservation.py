"""What the last gate knows of a node's pods when it decides, and which recorded allocations they use by that."""

from collections.abc import Iterable, Mapping

import msgspec

from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation

__all__ = ["GateObservation", "GatePod", "in_use"]


class GatePod(msgspec.Struct, frozen=True, kw_only=True):
    """An observed pod that the API server has; one that it does not have has ended."""

    name: str
    """`namespace/name`."""
    ended: bool = False
    """Whether it ran to its end."""
    ending: bool = False
    """Whether it has ended or is being deleted."""
    requests: frozenset[tuple[str, str]] = frozenset()
    """Containers, and the resources they request."""
    lasting: frozenset[str] = frozenset()
    """Containers that run as long as the pod."""
    order: tuple[str, ...] = ()
    """All containers, in the order in which they start."""
    created: frozenset[str] = frozenset()
    """Containers that a kubelet has created, by a status that may be late, and older than the pod's sandbox."""
    reported: bool = True
    """Whether its status says anything of its containers."""
    created_ns: int = 0
    """When the API server created the pod, in nanoseconds since 1970; 0 if unknown."""
    started_s: float = 0.0
    """When its kubelet admitted it, in seconds since 1970 of the node's clock; 0 if unknown."""
    static: bool = False
    """Whether its node has its manifest, and the API server a mirror."""
    has_resource_claim: bool = False
    """Whether a driver for DRA serves its resources."""

    def place(self, container: str) -> int:
        """Return the place of a container in the starting order; -1 where it is unknown."""
        return self.order.index(container) if container in self.order else -1

    def has_ended(self, container: str) -> bool:
        """Return whether an init container has ended: a container that starts after it was created."""
        return container in self.order and any(self.place(each) > self.place(container) for each in self.created)

    def may_run(self, container: str, *, has_process: bool | None) -> bool:
        """Return whether a container may run, whatever the records lack: by its processes, else by the pod's status.

        Args:
            container: of the pod.
            has_process: whether it may have processes; None where they cannot be observed.

        """
        if self.ended or has_process is not None:
            return bool(has_process) and not self.ended
        began = container in self.created or not self.reported
        return began and (container in self.lasting or not self.has_ended(container))


class GateObservation(msgspec.Struct, frozen=True, kw_only=True):
    """The observed pods of a node at one moment."""

    pods: Mapping[str, GatePod] = {}
    """By UID."""
    running: frozenset[str] = frozenset()
    """UIDs of pods with processes, whatever API server and kubelet say of them."""
    blind: bool = False
    """Whether processes of pods cannot be observed; then a pod runs as long as the API server has it."""
    recorded: tuple[KubeletAllocation, ...] = ()
    """The kubelet's record, which may still have ended pods, and lack living ones."""

    def ended(self, uid: str) -> bool:
        """Return whether a pod is gone, or has run to its end."""
        return uid not in self.pods or self.pods[uid].ended

    def ending(self, uid: str) -> bool:
        """Return whether a pod is gone, has run to its end, or is being deleted."""
        return uid not in self.pods or self.pods[uid].ending

    def runs(self, uid: str) -> bool:
        """Return whether a pod has processes, or has not ended where that cannot be observed."""
        return uid in self.running or (self.blind and not self.ended(uid))

    def recorded_for_unobserved_pod(self, entry: AgentAllocation) -> bool:
        """Return whether the kubelet has recorded the ids of an entry for an unobserved pod."""
        return any(
            each.uid not in self.pods and each.resource == entry.resource and set(each.device_ids) & set(entry.ids)
            for each in self.recorded
        )

    def may_start_again(self, entry: AgentAllocation) -> bool:
        """Return whether the kubelet's record has the container of an entry, with the same ids."""
        own = entry.container_key, entry.ids
        return any((each.container_key, each.device_ids) == own for each in self.recorded)

    def has_recorded(self, entry: AgentAllocation) -> bool:
        """Return whether the kubelet's record has an allocation, at least in part."""
        return any(
            (each.uid, each.resource) == (entry.uid, entry.resource) and set(each.device_ids) & set(entry.ids)
            for each in self.recorded
        )


def in_use(record: Iterable[AgentAllocation], pods: Mapping[str, GatePod]) -> tuple[AgentAllocation, ...]:
    """Return the record; init containers that were allocated to again after their end use nothing.

    A kubelet that starts without its checkpoint calls it for them though their pods run. It names no pod, so the answer
    may have another's share. Such a container starts again only in a new sandbox of its pod, and then `lastgate.start`
    decides by this answer; not where another container has the same ids and was answered with other devices.

    Args:
        record: the allocations.
        pods: by UID.

    """
    entries = tuple(record)
    return tuple(
        msgspec.structs.replace(each, uses=())
        if each.initial
        and each.presumed
        and each.uid in pods
        and pods[each.uid].has_ended(each.container)
        and all(
            other.uses == each.uses
            for other in entries
            if (other.resource, other.ids) == (each.resource, each.ids) and other.uid in {"", each.uid}
        )
        else each
        for each in entries
    )
