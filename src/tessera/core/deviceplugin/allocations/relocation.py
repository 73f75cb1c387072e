"""The current placement of MIG instances that containers were allocated by UUID.

A container that was told a UUID gets, at each start, what has that UUID then. The driver makes an instance's UUID of
its GPU and the ids of its GPU and compute instance, and numbers instances in the order in which they are created: one
that is destroyed and created again, as at a reboot, may get the UUID that another had (docs/decisions/0014).
"""

from collections.abc import Iterable

import msgspec

from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation
from tessera.core.gpu.deviceids import DeviceId, devices_by_uuid
from tessera.core.gpu.inventory import Inventory
from tessera.core.workload.resources import SHARE_RESOURCES

__all__ = ["absent_device", "relocated", "uuids_of"]


def uuids_of(entry: AgentAllocation) -> tuple[str, ...]:
    """Return the UUIDs that stand for a container's devices, each once; none for a share by CDI.

    The specification of such a share is written at each start, for the placement of its assignment.
    """
    if entry.resource in SHARE_RESOURCES:
        return entry.uuids
    return tuple(dict.fromkeys(name.partition("::")[0] for name in entry.ids))


def relocated(record: Iterable[AgentAllocation], inventory: Inventory, now_ns: int) -> tuple[AgentAllocation, ...]:
    """Return the record with each container on the MIG instances that have its UUIDs now.

    An instance whose UUID the driver does not have stays where it was. A container that moved is later than all others:
    where its instance overlaps another container's, it gives way.

    Args:
        record: the allocations.
        inventory: of the driver.
        now_ns: later than every time on record.

    """
    present = devices_by_uuid(inventory)
    found = {each: _moved(each, [(uuid, present.get(uuid)) for uuid in uuids_of(each)]) for each in record}
    moved = sorted((each for each in found if found[each] is not each), key=lambda each: each.at_ns)
    times = {each: now_ns + number for number, each in enumerate(moved)}
    return tuple(
        each if found[each] is each else msgspec.structs.replace(found[each], at_ns=times[each]) for each in found
    )


def absent_device(ids: Iterable[str], inventory: Inventory) -> str:
    """Return which device by name is not on this node any more, by its id; empty where all are there."""
    present = devices_by_uuid(inventory)
    gone = next((uuid for uuid in (name.partition("::")[0] for name in ids) if uuid not in present), "")
    if gone.startswith("MIG-"):
        return f"its MIG instance {gone} does not exist any more"
    return f"its GPU {gone} is not on this node any more" if gone else ""


def _moved(entry: AgentAllocation, present: list[tuple[str, DeviceId | None]]) -> AgentAllocation:
    before = list(dict.fromkeys(use.device for use in entry.uses))
    now = [device for _, device in present]
    if len(now) != len(before) or set(now) <= {*before, None}:
        return entry
    places = {old: new or old for old, new in zip(before, now, strict=True)}
    uses = tuple(msgspec.structs.replace(use, device=places[use.device]) for use in entry.uses)
    return msgspec.structs.replace(entry, uses=uses)
