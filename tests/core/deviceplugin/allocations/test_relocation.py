"""Where containers are that were given MIG instances by UUID, when these were created again."""

import itertools
from typing import Any

import msgspec
import pytest

from builders.gpufacts import at
from builders.gpunodes import facts, sevenths
from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation, AllocatedDevice, Exclusivity
from tessera.core.deviceplugin.allocations.relocation import (
    absent_device,
    device_mismatch,
    is_elsewhere,
    moved,
    relocated,
    uuids_of,
)
from tessera.core.deviceplugin.containerresponse import ContainerResponse
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
    elsewhere = [each.uid for each in found if each.uses != record[int(each.uid[1:])].uses]
    assert [each.uid for each in sorted(found, key=lambda each: each.at_ns) if each.at_ns >= 100] == elsewhere
    assert moved(record, found) == {(uid, "main", NAMED) for uid in elsewhere}


def test_of_containers_that_moved_the_earlier_one_stays_earlier_in_whatever_order_they_are_recorded() -> None:
    record = (by_name(2, 1), by_name(1, 0))
    found = relocated(record, created_again((UUIDS[1], UUIDS[0], UUIDS[2])), 100)
    assert [each.at_ns for each in found] == [101, 100]


@pytest.mark.parametrize("order", ORDERS)
def test_a_container_with_several_instances(order: tuple[int, ...]) -> None:
    inventory = created_again(tuple(UUIDS[each] for each in order))
    (found,) = relocated((by_name(0, 2, 0),), inventory, 100)
    present = devices_by_uuid(inventory)
    assert {use.device for use in found.uses} == {present[UUIDS[0]], present[UUIDS[2]]}


def gone(entry: AgentAllocation) -> AgentAllocation:
    uses = tuple(msgspec.structs.replace(use, absent=True) for use in entry.uses)
    return msgspec.structs.replace(entry, uses=uses)


def test_an_instance_whose_uuid_is_not_there_stays_at_its_placement_in_nobodys_way_once_another_is_there() -> None:
    record = (by_name(0, 0), by_name(1, 1))
    assert relocated(record, Inventory(gpus=()), 100) == record, "the driver may have lost the GPU for a moment"
    after = tuple(map(gone, record))
    assert relocated(record, created_again(("MIG-a", "MIG-b", "MIG-c")), 100) == after
    assert relocated(after, Inventory(gpus=()), 100) == after, "it is known by now"
    one, two = relocated(record, created_again(("MIG-a", UUIDS[0], "MIG-c")), 100)
    assert ([use.device for use in one.uses], two) == ([PLACES[1]], after[1])
    assert not any(use.excludes(other) for use in one.uses for other in two.uses)
    back = relocated((one, two), created_again((UUIDS[1], UUIDS[0], "MIG-c")), 200)
    assert [(use.device, use.absent) for each in back for use in each.uses] == [(PLACES[1], False), (PLACES[0], False)]
    assert [each.at_ns for each in back] == [100, 200]


@pytest.mark.parametrize("pair", list(itertools.permutations(range(3), 2)))
@pytest.mark.parametrize("after", list(itertools.permutations((0, 1, 2, None), 3)))
def test_each_uuid_of_a_container_with_two_instances_is_followed(
    pair: tuple[int, int], after: tuple[int | None, ...]
) -> None:
    """Whatever the order in which the kubelet named them, and whatever is gone: `after` has the place of each UUID."""
    (entry,) = relocated((by_name(0, *pair),), Inventory(gpus=(BEFORE,)), 50)
    assert entry.at_ns == 0, "nothing has moved"
    numbers = sorted(pair, key=lambda each: UUIDS[each])
    assert [use.device for use in entry.uses] == [PLACES[each] for each in numbers]
    instances = tuple(
        msgspec.structs.replace(BEFORE.instances[place], uuid=UUIDS[number])
        for number, place in enumerate(after)
        if place is not None
    )
    inventory = Inventory(gpus=(msgspec.structs.replace(BEFORE, instances=instances),))
    (found,) = relocated((entry,), inventory, 100)
    taken = set(after)
    for number, use in zip(numbers, found.uses, strict=True):
        place = after[number]
        stays = PLACES[number], number in taken
        assert (use.device, use.absent) == (stays if place is None else (PLACES[place], False))
    absent = [UUIDS[each] for each in numbers if after[each] is None]
    said = f"its MIG instance {absent[0]} does not exist any more" if absent else ""
    assert absent_device(uuids_of(found), found.uses, inventory) == said


def test_an_instance_of_another_profile_is_not_the_one_that_had_its_uuid() -> None:
    before = facts(0, layout=at("A100-40GB", ("1g.5gb", 0), ("3g.20gb", 4)))
    small, large = before.instances
    swapped = (msgspec.structs.replace(small, uuid=large.uuid), msgspec.structs.replace(large, uuid=small.uuid))
    inventory = Inventory(gpus=(msgspec.structs.replace(before, instances=swapped),))
    use = AllocatedDevice(device=DeviceId(before.uuid, large.placement))
    entry = AgentAllocation(resource="nvidia.com/mig-3g.20gb", ids=(large.uuid,), uses=(use,), uid="u", at_ns=5)
    (found,) = relocated((entry,), inventory, 100)
    assert found == gone(entry)
    said = f"its MIG instance {large.uuid} is now 1g.5gb at 0 of GPU {before.uuid}, of another profile"
    assert absent_device(uuids_of(found), found.uses, inventory) == said


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


def test_which_device_is_gone() -> None:
    left = Inventory(gpus=(msgspec.structs.replace(BEFORE, instances=BEFORE.instances[:1]),))
    assert absent_device((UUIDS[0], BEFORE.uuid), (), left) == ""
    assert absent_device(UUIDS[:2], (), left) == f"its MIG instance {UUIDS[1]} does not exist any more"
    assert (
        absent_device((BEFORE.uuid,), (), Inventory(gpus=())) == f"its GPU {BEFORE.uuid} is not on this node any more"
    )


def amount(gpu: str = BEFORE.uuid) -> AllocatedDevice:
    return AllocatedDevice(device=DeviceId(gpu), exclusivity=Exclusivity.MEMORY, memory_mib=5)


def answer(*uses: AllocatedDevice, ids: str = "p", at_ns: int = 1, **changes: Any) -> AgentAllocation:
    made = AgentAllocation(resource=UNITS, ids=(ids,), uses=uses, at_ns=at_ns, presumed=True)
    return msgspec.structs.replace(made, **changes)


OTHER = facts(1).uuid
HOLDER = AgentAllocation(resource=UNITS, ids=("p",), uid="p", pod="default/p", container="main")
OWN = msgspec.structs.replace(HOLDER, uses=(amount(),))
STARTED = msgspec.structs.replace(OWN, started=True)
VOID = answer(presumed=False, at_ns=2)
LOST = "it was started with a GPU that is no longer recorded"
OTHERWISE = f"it uses GPU {BEFORE.uuid}, and is assigned GPU {OTHER}"
ANOTHERS = "it was started with the devices of another pod, which differ in size or kind"
MISTOLD: dict[str, tuple[list[AgentAllocation], str, bool, str]] = {
    "it is assigned what was answered": ([answer(amount())], BEFORE.uuid, True, ""),
    "it is assigned something else": ([answer(amount())], OTHER, True, OTHERWISE),
    "it is assigned what is not there": (
        [answer(amount())],
        "",
        True,
        f"it uses GPU {BEFORE.uuid}, and is assigned nothing that is there",
    ),
    "it was started with that": ([STARTED], BEFORE.uuid, True, ""),
    "the answer is kept, and not yet which devices it is of": ([answer()], OTHER, True, ""),
    "nothing is kept": ([], BEFORE.uuid, True, LOST),
    "what is on record is what it is assigned, by the kubelet's record": ([OWN], BEFORE.uuid, True, LOST),
    "the kubelet's record has the answer, too": (
        [msgspec.structs.replace(OWN, uuids=(BEFORE.uuid,))],
        BEFORE.uuid,
        True,
        "",
    ),
    "by that answer it has something else": (
        [msgspec.structs.replace(STARTED, uuids=(BEFORE.uuid,), uses=(amount(OTHER),))],
        OTHER,
        False,
        OTHERWISE,
    ),
    "the answer named what is not there": (
        [answer(amount(OTHER), uuids=(OTHER,))],
        OTHER,
        False,
        f"its GPU {OTHER} is not on this node any more",
    ),
    "the answer is of other ids": ([answer(amount(), ids="q")], BEFORE.uuid, True, LOST),
    "nothing is kept of what ran": ([], BEFORE.uuid, False, ""),
    "what was answered since it ran is what it uses": (
        [msgspec.structs.replace(STARTED, uses=(amount(OTHER),)), answer(amount(), at_ns=2)],
        BEFORE.uuid,
        False,
        "",
    ),
    "what ran is assigned something else": ([OWN], OTHER, False, OTHERWISE),
    "what was answered was another pod's": ([VOID], BEFORE.uuid, True, ANOTHERS),
    "so it was since it ran": ([STARTED, VOID], BEFORE.uuid, False, ANOTHERS),
    "it is of the same GPU": ([msgspec.structs.replace(VOID, uuids=(BEFORE.uuid,))], BEFORE.uuid, False, ANOTHERS),
}


@pytest.mark.parametrize("case", MISTOLD)
def test_a_container_does_not_start_with_what_it_was_not_assigned(case: str) -> None:
    record, assigned, unanswered, want = MISTOLD[case]
    devices = {DeviceId(assigned)} if assigned else set()
    inventory = Inventory(gpus=(BEFORE,))
    assert device_mismatch(record, HOLDER, devices, inventory, unanswered=unanswered) == want


@pytest.mark.parametrize(
    ("told", "want"),
    [
        (UUIDS[0], False),
        (f"{UUIDS[0]},{UUIDS[1]}", False),
        (UUIDS[2], True),
        (f"{UUIDS[0]},{UUIDS[2]}", True),
        ("MIG-gone", False),
        ("void", False),
    ],
)
def test_an_answer_names_a_device_that_its_pod_is_not_assigned(told: str, *, want: bool) -> None:
    answer = ContainerResponse(env=(("NVIDIA_VISIBLE_DEVICES", told),))
    uses = [AllocatedDevice(device=each) for each in PLACES[:2]]
    assert is_elsewhere(answer, uses, Inventory(gpus=(BEFORE,))) is want
    assert not is_elsewhere(ContainerResponse(), uses, Inventory(gpus=(BEFORE,)))
