"""Where containers are that were given MIG instances by UUID, when these were created again."""

import itertools

import msgspec
import pytest

from builders.gpunodes import facts, sevenths
from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation, AllocatedDevice, Exclusivity
from tessera.core.deviceplugin.allocations.relocation import absent_device, relocated, uuids_of
from tessera.core.gpu.deviceids import DeviceId, devices_by_uuid
from tessera.core.gpu.inventory import Inventory

NAMED, UNITS = "nvidia.com/mig-1g.5gb", "tessera.dev/gpu-memory"
LAYOUT = sevenths()[:3]
BEFORE = facts(0, layout=LAYOUT)
UUIDS = tuple(each.uuid for each in BEFORE.instances)
PLACES = tuple(DeviceId(BEFORE.uuid, each.placement) for each in BEFORE.instances)

ORDERS = tuple(itertools.permutations(range(3)))


def created_again(uuids: tuple[str, ...]) -> Inventory:
    """Return the node after the same layout was created again, its instances with these UUIDs in this order."""
    pairs = zip(BEFORE.instances, uuids, strict=True)
    instances = tuple(msgspec.structs.replace(each, uuid=uuid) for each, uuid in pairs)
    return Inventory(gpus=(msgspec.structs.replace(BEFORE, instances=instances),))


def by_name(number: int, *ids: int) -> AgentAllocation:
    uses = tuple(AllocatedDevice(device=PLACES[each]) for each in ids)
    named = tuple(sorted(UUIDS[each] for each in ids))
    return AgentAllocation(resource=NAMED, ids=named, uses=uses, uid=f"u{number}", container="main", at_ns=number)


@pytest.mark.parametrize("order", ORDERS)
def test_by_name_a_container_is_where_its_uuid_is(order: tuple[int, ...]) -> None:
    """Every order in which three instances may be created again, each with a pod: nobody shares one."""
    inventory = created_again(tuple(UUIDS[each] for each in order))
    present = devices_by_uuid(inventory)
    record = tuple(by_name(each, each) for each in range(3))
    found = relocated(record, inventory, 100)
    assert [[use.device for use in each.uses] for each in found] == [[present[uuid]] for uuid in UUIDS]
    assert relocated(found, inventory, 200) == found, "it moves once"
    moved = [each.uid for each in found if each.uses != record[int(each.uid[1:])].uses]
    assert [each.uid for each in sorted(found, key=lambda each: each.at_ns) if each.at_ns >= 100] == moved


@pytest.mark.parametrize("order", ORDERS)
def test_a_container_with_several_instances(order: tuple[int, ...]) -> None:
    inventory = created_again(tuple(UUIDS[each] for each in order))
    (found,) = relocated((by_name(0, 2, 0),), inventory, 100)
    present = devices_by_uuid(inventory)
    assert {use.device for use in found.uses} == {present[UUIDS[0]], present[UUIDS[2]]}


def test_an_instance_whose_uuid_is_not_there_stays_at_its_placement() -> None:
    """As of a reboot after which the driver makes new ones: they are found by placement."""
    record = (by_name(0, 0), by_name(1, 1))
    assert relocated(record, created_again(("MIG-a", "MIG-b", "MIG-c")), 100) == record
    assert relocated(record, Inventory(gpus=()), 100) == record
    one, two = relocated(record, created_again(("MIG-a", UUIDS[0], "MIG-c")), 100)
    assert ([use.device for use in one.uses], two) == ([PLACES[1]], record[1])


def share(use: AllocatedDevice, *uuids: str) -> AgentAllocation:
    ids = (f"{BEFORE.uuid}-_-0",)
    return AgentAllocation(resource=UNITS, ids=ids, uses=(use,), uid="s", container="main", at_ns=5, uuids=uuids)


def test_a_share_is_where_the_uuid_is_that_the_answer_named_and_else_at_its_placement() -> None:
    inventory = created_again(tuple(reversed(UUIDS)))
    use = AllocatedDevice(device=PLACES[0], memory_mib=4864)
    told, by_cdi = share(use, UUIDS[0]), share(use)
    assert [uuids_of(each) for each in (told, by_cdi, by_name(0, 0))] == [(UUIDS[0],), (), (UUIDS[0],)]
    moved, stays = relocated((told, by_cdi), inventory, 100)
    assert (moved.uses, moved.at_ns) == ((msgspec.structs.replace(use, device=PLACES[2]),), 100)
    assert stays == by_cdi


def test_replicas_keep_how_they_share_and_whole_gpus_never_move() -> None:
    replica = AllocatedDevice(device=PLACES[0], exclusivity=Exclusivity.REPLICA, mps=True, clients=2)
    entry = msgspec.structs.replace(by_name(0, 0), ids=(f"{UUIDS[0]}::0", f"{UUIDS[0]}::1"), uses=(replica,))
    whole = AgentAllocation(
        resource="nvidia.com/gpu", ids=(BEFORE.uuid,), uses=(AllocatedDevice(device=DeviceId(BEFORE.uuid)),)
    )
    inventory = created_again((UUIDS[1], UUIDS[0], UUIDS[2]))
    found = relocated((entry, whole), inventory, 100)
    assert found[0].uses == (msgspec.structs.replace(replica, device=PLACES[1]),)
    assert found[1] == whole


def test_what_is_known_of_processes_alone_stays() -> None:
    entry = AgentAllocation(resource="", ids=(), uses=(AllocatedDevice(device=PLACES[0]),), uid="u")
    assert relocated((entry,), created_again(tuple(reversed(UUIDS))), 100) == (entry,)


def test_which_device_by_name_is_gone() -> None:
    left = Inventory(gpus=(msgspec.structs.replace(BEFORE, instances=BEFORE.instances[:1]),))
    assert absent_device((UUIDS[0], f"{BEFORE.uuid}::3"), left) == ""
    assert absent_device((UUIDS[0], f"{UUIDS[1]}::3"), left) == f"its MIG instance {UUIDS[1]} does not exist any more"
    assert absent_device((BEFORE.uuid,), Inventory(gpus=())) == f"its GPU {BEFORE.uuid} is not on this node any more"
