"""The current placement of MIG instances that containers were allocated by UUID.

A container that was allocated a UUID gets, at each start, what has that UUID then. The driver makes an instance's UUID
of its GPU and the ids of its GPU and compute instance, and numbers instances in the order in which they are created:
one that is destroyed and created again, as at a reboot, may get the UUID that another had (docs/allocation.md).
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

import msgspec

from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation, AllocatedDevice, latest
from tessera.core.deviceplugin.containerresponse import ContainerResponse, visible_devices
from tessera.core.gpu.deviceids import DeviceId, devices_by_uuid, overlap
from tessera.core.gpu.inventory import Inventory
from tessera.core.workload.resources import SHARE_RESOURCES

__all__ = ["absent_device", "device_mismatch", "is_elsewhere", "moved", "relocated", "uuids_of"]

_UNRECORDED = "it was started with a GPU that is no longer recorded"


def uuids_of(entry: AgentAllocation) -> tuple[str, ...]:
    """Return the UUIDs that stand for a container's devices, each once; none for a share by CDI.

    The specification of such a share is written at each start, for the placement of its assignment.
    """
    if entry.resource in SHARE_RESOURCES:
        return entry.uuids
    return tuple(dict.fromkeys(name.partition("::")[0] for name in entry.ids))


def relocated(record: Iterable[AgentAllocation], inventory: Inventory, now_ns: int) -> tuple[AgentAllocation, ...]:
    """Return the record with each container on the MIG instances that have its UUIDs now.

    An instance whose UUID the driver does not have, or has for one of another profile, stays where it was; where the
    driver has another there, it is `absent`, in nobody's way. A container that moved is later than all others: where
    its instance overlaps another container's, it gives way.

    Args:
        record: the allocations.
        inventory: of the driver.
        now_ns: later than every time on record.

    """
    present, before = devices_by_uuid(inventory), tuple(record)
    after = [_relocated(each, present) for each in before]
    late = [number for number, each in enumerate(before) if _devices(each) != _devices(after[number])]
    late.sort(key=lambda number: before[number].at_ns)
    times = {number: now_ns + place for place, number in enumerate(late)}
    return tuple(
        msgspec.structs.replace(each, at_ns=times[number]) if number in times else each
        for number, each in enumerate(after)
    )


def moved(before: Iterable[AgentAllocation], after: Iterable[AgentAllocation]) -> frozenset[tuple[str, str, str]]:
    """Return the containers (`container_key`) that `relocated` has put elsewhere, or into others' way again.

    Args:
        before: the allocations.
        after: the same, as `relocated` returned them.

    """
    pairs = zip(before, after, strict=True)
    return frozenset(new.container_key for old, new in pairs if old.uses != new.uses)


def _devices(entry: AgentAllocation) -> frozenset[DeviceId]:
    return frozenset(use.device for use in entry.uses)


def _relocated(entry: AgentAllocation, present: Mapping[str, DeviceId]) -> AgentAllocation:
    now = [present.get(uuid) for uuid in uuids_of(entry)]
    if len(now) != len(entry.uses):
        return entry
    # The first agents recorded them in the order of the kubelet's call.
    known = {use.device: use for use in entry.uses}
    ordered = [known[device] for device in now if device in known]
    ordered = ordered if len(ordered) == len(now) and known.keys() == set(now) else list(entry.uses)
    uses = tuple(_placed(use, device, present) for use, device in zip(ordered, now, strict=True))
    return entry if uses == entry.uses else msgspec.structs.replace(entry, uses=uses)


def _placed(use: AllocatedDevice, now: DeviceId | None, present: Mapping[str, DeviceId]) -> AllocatedDevice:
    """Return a container's device, whose UUID is that of `now`; None for a UUID that the driver does not have."""
    if use.device.placement is None:
        return use  # a whole GPU keeps its UUID
    if now is not None and now.placement is not None and now.placement.profile == use.device.placement.profile:
        return msgspec.structs.replace(use, device=now, absent=False)
    replaced = any(each.placement is not None and overlap(each, use.device) for each in present.values())
    return msgspec.structs.replace(use, absent=use.absent or replaced)


def absent_device(uuids: Sequence[str], uses: Sequence[AllocatedDevice], inventory: Inventory) -> str:
    """Return why a device that a container was allocated is missing or replaced; empty where none is.

    Args:
        uuids: of the devices that it was allocated.
        uses: what is recorded for them, after `relocated`; of another number where that is not known.
        inventory: of the driver.

    """
    present = devices_by_uuid(inventory)
    gone = next((uuid for uuid in uuids if uuid not in present), "")
    if gone.startswith("MIG-"):
        return f"its MIG instance {gone} does not exist any more"
    if gone:
        return f"its GPU {gone} is not on this node any more"
    pairs = zip(uuids, uses, strict=True) if len(uuids) == len(uses) else ()
    other = next((uuid for uuid, use in pairs if present[uuid] != use.device), "")
    return f"its MIG instance {other} is now {present[other]}, of another profile" if other else ""


def device_mismatch(
    record: Iterable[AgentAllocation],
    holder: AgentAllocation,
    assigned: AbstractSet[DeviceId],
    inventory: Inventory,
    *,
    unanswered: bool,
) -> str:
    """Return why a container whose devices `Allocate` named cannot start: they are not those of its assignment.

    Args:
        record: the allocations.
        holder: the container, without what it uses.
        assigned: its assigned devices now.
        inventory: of the driver.
        unanswered: whether it never ran and no answer for it is kept, so that only the record has the answer.

    Returns:
        The reason; empty where there is none.

    """
    own = latest(record, holder)
    if own is None:
        return _UNRECORDED if unanswered else ""
    if not (own.uses or own.presumed or own.started):  # `lastgate.without_presumed`
        return "it was started with the devices of another pod, which differ in size or kind"
    if found := absent_device(own.uuids, (), inventory):
        return found
    if unanswered and not (own.uuids or own.presumed or own.started):
        return _UNRECORDED
    present = devices_by_uuid(inventory)
    named = {present[uuid] for uuid in own.uuids} or {use.device for use in own.uses}
    return f"it uses {_named(named)}, and is assigned {_named(assigned)}" if named and named != assigned else ""


def is_elsewhere(answer: ContainerResponse, uses: Iterable[AllocatedDevice], inventory: Inventory) -> bool:
    """Return whether an answer of `Allocate` names a device that is none of these.

    An assignment that a pod had before an exchange is signed like the present one, and a tenant can restore it.

    Args:
        answer: that the kubelet keeps for a container.
        uses: the devices that its pod is assigned.
        inventory: of the driver: UUIDs that it does not have tell nothing.

    """
    present = devices_by_uuid(inventory)
    named = {present[uuid] for uuid in visible_devices(answer) if uuid in present}
    return not named <= {use.device for use in uses}


def _named(devices: Iterable[DeviceId]) -> str:
    return ", ".join(sorted(map(str, devices))) or "nothing that is there"
