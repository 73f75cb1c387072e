"""May a container be allocated a device, and may it start with it? The last check before it gets one.

`admit` decides while `Allocate` is answered, which names no pod; `start` before each start of a container, when the
kubelet has recorded the pod. Both take the agent's record and the observed pods, and return the new record
(docs/allocation.md).
"""

from collections.abc import Container, Iterable, Mapping

import msgspec

from tessera.core.cluster.gpunodestate import UnhealthyDevice
from tessera.core.deviceplugin.allocations.agentallocations import (
    AgentAllocation,
    AllocatedDevice,
    Exclusivity,
    replaces,
)
from tessera.core.deviceplugin.allocations.clashes import Clash, clashes
from tessera.core.deviceplugin.allocations.gateobservation import GateObservation, GatePod, in_use
from tessera.core.deviceplugin.offers.advertise import PluginDevice
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.workload.need import Isolation
from tessera.core.workload.resources import SHARE_RESOURCES

__all__ = [
    "GateDecision",
    "admit",
    "devices_of_orphans",
    "former_entries",
    "holders",
    "later_holders",
    "named",
    "of_pod",
    "possible_users",
    "put",
    "release",
    "start",
    "weaker_device",
    "weaker_use",
    "without_presumed",
    "without_unassigned",
]


class GateDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The decision about a container that requests devices."""

    record: tuple[AgentAllocation, ...]
    """The new record, with the new entry unless it is refused."""
    refused: Clash | None = None
    wait: bool = False
    """Whether a retry may succeed: the conflicting pod is terminating."""


def admit(
    record: tuple[AgentAllocation, ...],
    new: AgentAllocation,
    observed: GateObservation,
    capacity_mib: Mapping[DeviceId, int],
    meant: AgentAllocation | None = None,
) -> GateDecision:
    """Return whether `Allocate` may allocate devices to some pod.

    The kubelet calls it only when it has released a device, has forgotten it, or gives a pod's later container what its
    init container had. A terminating pod may keep its processes for a moment; `start` waits for them.

    Args:
        record: the allocations.
        new: the answer.
        observed: the pods.
        capacity_mib: as in `clashes.clashes`.
        meant: for units, the container whose assignment the answer has; entries of its pod do not conflict. If the
            kubelet gave the units to another pod, `start` decides by that pod.

    """
    own = new if meant is None else of_pod(new, meant)
    # Containers of one pod share ids: the answer to a former one is named before this one's comes.
    record, _ = _with_names(record, new, observed, capacity_mib, ids=True)
    counted = tuple(_without_lost_units(each, observed) for each in in_use(record, observed.pods))
    rivals = [each.other for each in clashes(counted, own, capacity_mib, ids=True)]
    free = [each for each in rivals if each is not None and not _blocks_allocate(each, observed)]
    left = [each for each in counted if each not in free]
    clash = next(clashes(left, own, capacity_mib, ids=True), None) if rivals else None
    if clash is not None:
        return GateDecision(record=record, refused=clash)
    return GateDecision(record=put((each for each in record if each.uid or each not in free), new))


def start(
    record: tuple[AgentAllocation, ...],
    new: AgentAllocation,
    observed: GateObservation,
    capacity_mib: Mapping[DeviceId, int],
    *,
    ids: bool,
    moved: Iterable[tuple[str, str, str]] = (),
) -> GateDecision:
    """Return whether a container may start with devices.

    Args:
        record: the allocations.
        new: the container, with what it is about to use.
        observed: the pods.
        capacity_mib: as in `clashes.clashes`.
        ids: whether equal ids of others conflict, because ids stand for devices and not for units.
        moved: containers whose devices the driver has shown elsewhere: where they do not run they are in no earlier
            one's way, which is in theirs whenever they are to start.

    """
    record, rivals = _with_names(record, new, observed, capacity_mib, ids=ids)
    free = [each for each in rivals if each is not None and not _blocks_start(each, observed)]
    left = tuple(each for each in record if each not in free)
    late = {each.container_key for each in left if each.at_ns > new.at_ns and not observed.runs(each.uid)}
    asked = [each for each in in_use(left, observed.pods) if each.container_key not in late.intersection(moved)]
    blocking = tuple(clashes(asked, new, capacity_mib, ids=ids)) if rivals else ()
    if blocking:
        ends = any(each.other is not None and observed.ending(each.other.uid) for each in blocking)
        return GateDecision(record=record, refused=blocking[0], wait=ends)
    # Of a pod's containers the last started one has the assignment of all.
    same = tuple(
        msgspec.structs.replace(each, assignment=new.assignment, key=new.key, signature=new.signature)
        if each.assignment and new.assignment and each.uid == new.uid
        else each
        for each in left
    )
    return GateDecision(record=put(same, msgspec.structs.replace(new, started=True)))


def weaker_device(requested: Isolation, devices: Iterable[PluginDevice]) -> PluginDevice | None:
    """Return the first device that isolates less than its pod requests; None for none.

    A scheduler that knows only the resource name may have chosen the node: names say nothing about isolation.
    """
    return next((each for each in devices if not each.mode.isolation.covers(requested)), None)


def weaker_use(requested: Isolation, uses: Iterable[AllocatedDevice], *, offered: bool) -> AllocatedDevice | None:
    """Return the first use that isolates less than its pod requests; None for none.

    What `Allocate` answered counts, and the offer may have changed since.

    Args:
        requested: by the pod.
        uses: what the record says of the container.
        offered: whether all its ids are still offered: their devices say what an unknown use is, which is the weakest
            else.

    """
    return next(
        (
            each
            for each in uses
            if not (offered and each.isolation is None) and not (each.isolation or Isolation.NONE).covers(requested)
        ),
        None,
    )


def _with_names(
    record: tuple[AgentAllocation, ...],
    new: AgentAllocation,
    observed: GateObservation,
    capacity_mib: Mapping[DeviceId, int],
    *,
    ids: bool,
) -> tuple[tuple[AgentAllocation, ...], tuple[AgentAllocation | None, ...]]:
    """Return the record with conflicting answers to `Allocate` attributed to their pods, and what conflicts still.

    Those of the new one's own pod no longer conflict then.
    """
    rivals = [each.other for each in clashes(record, new, capacity_mib, ids=ids)]
    if not rivals:
        return record, ()
    record = tuple(named(each, observed) if each in rivals else each for each in record)
    return record, tuple(each.other for each in clashes(record, new, capacity_mib, ids=ids))


def _blocks_allocate(other: AgentAllocation, observed: GateObservation) -> bool:
    """Return whether an entry's devices must not be allocated again by the kubelet now."""
    if not other.uid or observed.ending(other.uid) or _is_being_admitted(other, observed):
        return False
    return observed.has_recorded(other) or observed.runs(other.uid)


def _without_lost_units(entry: AgentAllocation, observed: GateObservation) -> AgentAllocation:
    """Return an entry, without its ids if its container has others or none in the kubelet's record.

    It never starts with them again. They stand for no device: what it uses counts.
    """
    lost = bool(entry.uid) and entry.resource in SHARE_RESOURCES and not observed.may_start_again(entry)
    return msgspec.structs.replace(entry, ids=()) if lost else entry


def _is_being_admitted(other: AgentAllocation, observed: GateObservation) -> bool:
    """Return whether the pod of an allocation has containers that the kubelet has not allocated for yet.

    The kubelet admits one pod after the other. So it is this pod that it allocates for: containers get what the pod's
    init containers had. A pod with processes was admitted, whatever a record lacks. If the kubelet gave the ids to
    several pods, this must hold for all: a pod that was served keeps its devices.
    """
    recorded = [each for each in observed.recorded if each.resource == other.resource]
    same = (each.uid for each in recorded if set(each.device_ids) & set(other.ids))
    uids = {uid for uid in same if not observed.ended(uid) and uid not in observed.running}
    return bool(uids) and all(
        {container for container, resource in observed.pods[uid].requests if resource == other.resource}
        - {each.container for each in recorded if each.uid == uid}
        for uid in uids
    )


def _blocks_start(other: AgentAllocation, observed: GateObservation) -> bool:
    """Return whether a container with an entry's devices runs, or will."""
    if not other.uid:
        return False
    return observed.runs(other.uid) or (not observed.ended(other.uid) and observed.has_recorded(other))


def named(entry: AgentAllocation, observed: GateObservation) -> AgentAllocation:
    """Return an answer to `Allocate` with the living pod that the kubelet recorded for it; else unchanged."""
    if entry.uid:
        return entry
    found = next(iter(holders(entry.resource, entry.ids, observed)), None)
    return entry if found is None else of_pod(entry, found)


def of_pod(entry: AgentAllocation, holder: AgentAllocation) -> AgentAllocation:
    """Return an entry, as an answer to `Allocate` that names no pod, with its container."""
    own = {name: getattr(holder, name) for name in ("uid", "pod", "container", "initial", "order")}
    return msgspec.structs.replace(entry, **own)


def holders(resource: str, ids: tuple[str, ...], observed: GateObservation) -> tuple[AgentAllocation, ...]:
    """Return the containers of living pods with these ids in the kubelet's record, the longest-lasting first.

    Args:
        resource: of the ids.
        ids: sorted; all that the container has of the resource.
        observed: the pods.

    """
    found = [
        (each.container not in observed.pods[each.uid].lasting, each.uid, each.container)
        for each in observed.recorded
        if (each.resource, each.device_ids) == (resource, ids) and not observed.ended(each.uid)
    ]
    return tuple(
        AgentAllocation(
            resource=resource,
            ids=ids,
            uid=uid,
            pod=observed.pods[uid].name,
            container=container,
            initial=initial,
            order=observed.pods[uid].place(container),
        )
        for initial, uid, container in sorted(found)
    )


def later_holders(
    containers: Iterable[AgentAllocation], record: Iterable[AgentAllocation], created_ns: Mapping[str, int]
) -> tuple[tuple[AgentAllocation, Clash], ...]:
    """Return the pods that must go where several have the same ids, each with what it shares with the first.

    As in every conflict the later gives way: pods in the record came before others.

    Args:
        containers: those of `holders`.
        record: the allocations.
        created_ns: creation time of each pod, by UID, for pods that are not in the record.

    """
    known = {each.container_key: each.at_ns for each in record}

    def age(holder: AgentAllocation) -> tuple[bool, int, str]:
        at_ns = known.get(holder.container_key)
        return at_ns is None, created_ns.get(holder.uid, 0) if at_ns is None else at_ns, holder.uid

    ordered = sorted(containers, key=age)
    return tuple(
        (each, Clash(other=ordered[0], text=f"device {each.ids[0]} of {each.resource}"))
        for each in ordered
        if each.uid != ordered[0].uid
    )


def put(record: Iterable[AgentAllocation], new: AgentAllocation) -> tuple[AgentAllocation, ...]:
    """Return the record with a new entry, without the one it replaces."""
    return (*(each for each in record if not replaces(new, each)), new)


def without_presumed(
    record: Iterable[AgentAllocation], resource: str, ids: tuple[str, ...]
) -> tuple[AgentAllocation, ...]:
    """Return the record after an answer that was for another pod than the one that got it, which never starts with it.

    It uses nothing, and as its devices are not recorded any more, it does not start with others either.

    Args:
        record: the allocations.
        resource: of the ids.
        ids: sorted.

    """
    return tuple(
        msgspec.structs.replace(each, uses=(), presumed=False)
        if each.presumed and not each.started and (each.resource, each.ids) == (resource, ids)
        else each
        for each in record
    )


def without_unassigned(
    record: Iterable[AgentAllocation], resource: str, ids: tuple[str, ...], unassigned: Container[str]
) -> tuple[AgentAllocation, ...]:
    """Return the record without what pods without an assignment would use: they were not allowed to start.

    What a container was started with stays counted, even if the pod's assignment changed since.

    Args:
        record: the allocations.
        resource: of the ids.
        ids: sorted.
        unassigned: these pods (`namespace/name`).

    """
    return tuple(
        msgspec.structs.replace(each, uses=())
        if (each.resource, each.ids) == (resource, ids)
        and not each.started
        and (not each.uid or each.presumed or each.pod in unassigned)
        else each
        for each in record
    )


def former_entries(
    record: Iterable[AgentAllocation],
    ids: Mapping[tuple[str, str, str], tuple[str, ...]],
    lost: Container[tuple[str, str, str]] = (),
) -> frozenset[AgentAllocation]:
    """Return what is recorded of containers that never start with it again: the kubelet admits them again, or has.

    Args:
        record: the allocations.
        ids: those that containers (`AgentAllocation.container_key`) have by the kubelet's record, sorted.
        lost: containers that its record lacks and had: the pod of an answer is known from there.

    """
    return frozenset(
        each for each in record if ids.get(each.container_key, each.ids) != each.ids or each.container_key in lost
    )


def possible_users(
    entries: Iterable[AgentAllocation], pods: Mapping[str, GatePod], starting: AgentAllocation | None = None
) -> dict[AgentAllocation, frozenset[tuple[str, str]]]:
    """Return the containers that use what is recorded if they run, by UID of the pod and name, for each entry.

    The start of an init container is recorded as that of a lasting one with the same ids.

    Args:
        entries: of the record.
        pods: by UID.
        starting: a container that is about to start: it does not run.

    """
    found = dict[AgentAllocation, frozenset[tuple[str, str]]]()
    for each in entries:
        pod, names = pods.get(each.uid), {each.container}
        if pod is not None and each.container in pod.lasting:
            names |= {name for name, _ in pod.requests} - pod.lasting
        own = starting is not None and each.container_key == starting.container_key
        found[each] = frozenset() if own else frozenset((each.uid, name) for name in names)
    return found


def release(
    record: Iterable[AgentAllocation], observed: GateObservation, *, all_listed: bool = False
) -> tuple[AgentAllocation, ...]:
    """Return the record without ended pods that have no process left.

    Nor does it keep what is only known of processes (`leftovers`) if their pod lives after all, as a
    static pod whose mirror was missing.

    Args:
        record: the allocations.
        observed: the pods.
        all_listed: whether they are all that the API server has; a watch may lag, so that where no processes can be
            observed a missing pod has not ended yet.

    """
    return tuple(
        each
        for each in record
        if not each.uid
        or not (_is_over(each.uid, observed, all_listed=all_listed) or (not each.pod and not observed.ended(each.uid)))
    )


def _is_over(uid: str, observed: GateObservation, *, all_listed: bool) -> bool:
    if uid not in observed.pods and observed.blind and not all_listed:
        return False
    return observed.ended(uid) and uid not in observed.running


def devices_of_orphans(record: Iterable[AgentAllocation], gone: Container[str]) -> tuple[UnhealthyDevice, ...]:
    """Return the devices used only by processes of deleted pods; a pod that is assigned one of them cannot start.

    Not devices that others may share: a small remainder would block all of it.

    Args:
        record: the allocations, kept until the last process has ended.
        gone: UIDs of those pods.

    """
    kept = {
        use.device: each.pod or each.uid
        for each in record
        if each.uid in gone
        for use in each.uses
        if use.exclusivity is Exclusivity.EXCLUSIVE
    }
    return tuple(
        UnhealthyDevice(
            device=device,
            reason=f"pod {kept[device]} is deleted, and its processes still use it",
        )
        for device in sorted(kept, key=DeviceId.order)
    )
