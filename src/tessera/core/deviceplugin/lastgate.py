"""May a container be allocated a device, and may it start with it? The last decision before it gets one.

`admit` decides while `Allocate` is answered, which names no pod; `start` before each start of a container, when the
kubelet has recorded the pod. Both take the agent's record and what is seen of the pods, and return the record as it is
to be (docs/decisions/0014-last-gate.md).
"""

from collections.abc import Container, Iterable, Mapping

import msgspec

from tessera.core.cluster.gpunodestate import UnhealthyDevice
from tessera.core.deviceplugin.advertise import PluginDevice
from tessera.core.deviceplugin.allocations import Allocation, Clash, Exclusivity, clashes, replaces
from tessera.core.deviceplugin.kubeletallocations import KubeletAllocation
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.workload.need import Isolation

__all__ = [
    "GateDecision",
    "ObservedPod",
    "ObservedPods",
    "admit",
    "devices_of_orphans",
    "holders",
    "later_holders",
    "named",
    "put",
    "release",
    "start",
    "weaker_device",
]


class ObservedPod(msgspec.Struct, frozen=True, kw_only=True):
    """What is seen of a pod that the API server has; one that it has not has ended."""

    name: str
    """`namespace/name`."""
    ended: bool = False
    """Whether it ran to its end."""
    ending: bool = False
    """Whether it has ended or is being deleted."""
    asks: frozenset[tuple[str, str]] = frozenset()
    """Containers, and resources that they ask."""
    lasting: frozenset[str] = frozenset()
    """Containers that run as long as the pod."""


class ObservedPods(msgspec.Struct, frozen=True, kw_only=True):
    """What is seen of the pods of a node at one moment."""

    pods: Mapping[str, ObservedPod] = {}
    """By UID."""
    running: frozenset[str] = frozenset()
    """UIDs of pods that have processes, whatever API server and kubelet say of them."""
    blind: bool = False
    """Whether processes of pods cannot be seen; then a pod runs as long as the API server shows it."""
    recorded: tuple[KubeletAllocation, ...] = ()
    """The kubelet's record, which may still have pods that have ended, and lack some that live."""

    def ended(self, uid: str) -> bool:
        """Return whether a pod is gone, or has run to its end."""
        return uid not in self.pods or self.pods[uid].ended

    def ending(self, uid: str) -> bool:
        """Return whether a pod is gone, has run to its end, or is being deleted."""
        return uid not in self.pods or self.pods[uid].ending

    def runs(self, uid: str) -> bool:
        """Return whether a pod has processes, or has not ended where that cannot be observed."""
        return uid in self.running or (self.blind and not self.ended(uid))

    def is_of_a_pod_unseen(self, entry: Allocation) -> bool:
        """Return whether the kubelet has recorded the ids of an entry for a pod of which nothing is observed."""
        return any(
            each.uid not in self.pods and each.resource == entry.resource and set(each.device_ids) & set(entry.ids)
            for each in self.recorded
        )

    def has_recorded(self, entry: Allocation) -> bool:
        """Return whether the kubelet's record has an allocation, in part at least."""
        return any(
            (each.uid, each.resource) == (entry.uid, entry.resource) and set(each.device_ids) & set(entry.ids)
            for each in self.recorded
        )


class GateDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What comes of a container that asks for devices."""

    record: tuple[Allocation, ...]
    """As it is to be kept, with the new entry unless it is refused."""
    refused: Clash | None = None
    wait: bool = False
    """Whether it may soon be granted: what is in its way belongs to a pod that ends."""


def admit(
    record: tuple[Allocation, ...], new: Allocation, observed: ObservedPods, capacity_mib: Mapping[DeviceId, int]
) -> GateDecision:
    """Return whether `Allocate` may give devices to some pod.

    The kubelet asks only when it has let a device go, has forgotten it, or gives a pod's later container what its init
    container had. A pod that ends may keep its processes for a moment; `start` waits for them.
    """
    record = _with_names(record, new, observed, capacity_mib, ids=True)
    rivals = [each.other for each in clashes(record, new, capacity_mib, ids=True)]
    free = [each for each in rivals if each is not None and not _blocks_allocate(each, observed)]
    left = [each for each in record if each not in free]
    clash = next(clashes(left, new, capacity_mib, ids=True), None)
    if clash is not None:
        return GateDecision(record=record, refused=clash)
    return GateDecision(record=put((each for each in record if each.uid or each not in free), new))


def start(
    record: tuple[Allocation, ...],
    new: Allocation,
    observed: ObservedPods,
    capacity_mib: Mapping[DeviceId, int],
    *,
    ids: bool,
) -> GateDecision:
    """Return whether a container may start with devices.

    Args:
        record: what was allocated.
        new: the container, with what it is about to use.
        observed: the pods.
        capacity_mib: as in `allocations.clashes`.
        ids: whether ids of others matter, which stand for devices and not for units.

    """
    record = _with_names(record, new, observed, capacity_mib, ids=ids)
    rivals = [each.other for each in clashes(record, new, capacity_mib, ids=ids)]
    free = [each for each in rivals if each is not None and not _blocks_start(each, observed)]
    left = tuple(each for each in record if each not in free)
    blocking = tuple(clashes(left, new, capacity_mib, ids=ids))
    if blocking:
        ends = any(each.other is not None and observed.ending(each.other.uid) for each in blocking)
        return GateDecision(record=record, refused=blocking[0], wait=ends)
    # Of a pod's containers the last that was started knows what all are assigned.
    same = tuple(
        msgspec.structs.replace(each, assignment=new.assignment, key=new.key, signature=new.signature)
        if each.assignment and new.assignment and each.uid == new.uid
        else each
        for each in left
    )
    return GateDecision(record=put(same, msgspec.structs.replace(new, started=True)))


def weaker_device(requested: Isolation, devices: Iterable[PluginDevice]) -> PluginDevice | None:
    """Return the first device that isolates less than its pod requests; None where none does.

    A scheduler that knows the resource's name alone may have chosen the node: names say nothing of isolation.
    """
    return next((each for each in devices if not each.mode.isolation.covers(requested)), None)


def _with_names(
    record: tuple[Allocation, ...],
    new: Allocation,
    observed: ObservedPods,
    capacity_mib: Mapping[DeviceId, int],
    *,
    ids: bool,
) -> tuple[Allocation, ...]:
    """Return the record where answers to `Allocate` that are in the way have the pods that they were for.

    What was the new one's own pod's is not in its way then.
    """
    rivals = [each.other for each in clashes(record, new, capacity_mib, ids=ids)]
    return tuple(named(each, observed) if each in rivals else each for each in record)


def _blocks_allocate(other: Allocation, observed: ObservedPods) -> bool:
    """Return whether what an entry says must not be given again while the kubelet allocates."""
    if not other.uid or observed.ending(other.uid) or _is_being_admitted(other, observed):
        return False
    return observed.has_recorded(other) or observed.runs(other.uid)


def _is_being_admitted(other: Allocation, observed: ObservedPods) -> bool:
    """Return whether the pod of an allocation has containers that the kubelet has not allocated for yet.

    The kubelet admits one pod after the other. So it is this pod that it allocates for: containers are given what the
    pod's init containers had. A pod that has processes was admitted, whatever a record lacks. Where the kubelet gave
    the ids to several pods it must be so for all: one that is served keeps what it has.
    """
    recorded = [each for each in observed.recorded if each.resource == other.resource]
    same = (each.uid for each in recorded if set(each.device_ids) & set(other.ids))
    uids = {uid for uid in same if not observed.ended(uid) and uid not in observed.running}
    return bool(uids) and all(
        {container for container, resource in observed.pods[uid].asks if resource == other.resource}
        - {each.container for each in recorded if each.uid == uid}
        for uid in uids
    )


def _blocks_start(other: Allocation, observed: ObservedPods) -> bool:
    """Return whether a container that has what an entry says runs, or is going to."""
    if not other.uid:
        return False
    return observed.runs(other.uid) or (not observed.ended(other.uid) and observed.has_recorded(other))


def named(entry: Allocation, observed: ObservedPods) -> Allocation:
    """Return an answer to `Allocate` with the living pod that the kubelet gave it to, if one has it; else as it is."""
    if entry.uid:
        return entry
    found = next(iter(holders(entry.resource, entry.ids, observed)), None)
    if found is None:
        return entry
    return msgspec.structs.replace(found, uses=entry.uses, at_ns=entry.at_ns, guessed=entry.guessed)


def holders(resource: str, ids: tuple[str, ...], observed: ObservedPods) -> tuple[Allocation, ...]:
    """Return the containers of living pods that the kubelet gave these ids, those that last first.

    Args:
        resource: whose ids.
        ids: sorted; all that the container was given of the resource.
        observed: the pods.

    """
    found = [
        (each.container not in observed.pods[each.uid].lasting, each.uid, each.container)
        for each in observed.recorded
        if (each.resource, each.device_ids) == (resource, ids) and not observed.ended(each.uid)
    ]
    return tuple(
        Allocation(
            resource=resource, ids=ids, uid=uid, pod=observed.pods[uid].name, container=container, initial=initial
        )
        for initial, uid, container in sorted(found)
    )


def later_holders(
    found: Iterable[Allocation], record: Iterable[Allocation], created_ns: Mapping[str, int]
) -> tuple[tuple[Allocation, Clash], ...]:
    """Return the pods that must go where the kubelet gave the same ids to several, each with what it has of the first.

    As in every conflict the later gives way: who is in the record came before who is not.

    Args:
        found: the containers, as `holders` gave them.
        record: what was allocated.
        created_ns: when each pod was made, by UID, for those that are not in the record.

    """
    known = {(each.uid, each.container, each.resource): each.at_ns for each in record}

    def age(each: Allocation) -> tuple[bool, int, str]:
        at_ns = known.get((each.uid, each.container, each.resource))
        return at_ns is None, created_ns.get(each.uid, 0) if at_ns is None else at_ns, each.uid

    ordered = sorted(found, key=age)
    return tuple(
        (each, Clash(other=ordered[0], text=f"device {each.ids[0]} of {each.resource}"))
        for each in ordered
        if each.uid != ordered[0].uid
    )


def put(record: Iterable[Allocation], new: Allocation) -> tuple[Allocation, ...]:
    """Return the record with an entry in place of what it replaces."""
    return (*(each for each in record if not replaces(new, each)), new)


def release(record: Iterable[Allocation], observed: ObservedPods, *, complete: bool = False) -> tuple[Allocation, ...]:
    """Return the record without what pods had that have ended, and none of whose processes is left.

    Args:
        record: what was allocated.
        observed: the pods.
        complete: whether they are all that the API server has; a watch may be late, so that where no processes can be
            seen a pod that is not there has not ended yet.

    """
    return tuple(each for each in record if not each.uid or not _is_over(each.uid, observed, complete=complete))


def _is_over(uid: str, observed: ObservedPods, *, complete: bool) -> bool:
    if uid not in observed.pods and observed.blind and not complete:
        return False
    return observed.ended(uid) and uid not in observed.running


def devices_of_orphans(record: Iterable[Allocation], gone: Container[str]) -> tuple[UnhealthyDevice, ...]:
    """Return the devices that only processes of pods that are gone use; whoever is sent to one of them cannot start.

    Not those of which others may have a part: what is left of a small one would close all of it.

    Args:
        record: what is allocated until the last process has ended.
        gone: UIDs of those pods.

    """
    kept = {
        use.device: each.pod
        for each in record
        if each.uid in gone
        for use in each.uses
        if use.exclusivity is Exclusivity.EXCLUSIVE
    }
    return tuple(
        UnhealthyDevice(
            gpu=device.gpu,
            placement=device.placement,
            reason=f"pod {kept[device]} is gone, and processes that it left still use it",
        )
        for device in sorted(kept, key=DeviceId.order)
    )
