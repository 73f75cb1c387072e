"""Managed GPUs: what of them is offered, what they are cut into, and that nothing in use is ever touched."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.gpufacts import at
from builders.gpunodes import facts, sevenths, shared
from tessera.core.cluster.gpunodestate import DesiredDevices
from tessera.core.cluster.snapshot import Gpu
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.inventory import GpuFacts, Inventory
from tessera.core.gpu.mig import Layout, Placement, all_layouts, is_legal, placements
from tessera.core.gpu.sharing import AUTO, Mode, Sharing
from tessera.core.node.desired import fixed, offered_devices, targets
from tessera.core.node.layouts import Blocked, DeviceUser, change

A100 = model("A100-40GB")
UUID = facts(0).uuid
SEVEN = sevenths()
HALF = at("A100-40GB", ("3g.20gb", 0))[0]
OTHER = at("A100-40GB", ("3g.20gb", 4))[0]
WHOLE = DesiredDevices(gpu=UUID, whole=True)
Spots = frozenset[Placement | None]
NOTHING: Spots = frozenset()
ALL: Spots = frozenset({None})


def open_gpu(seen: GpuFacts, sharing: Sharing = AUTO) -> Gpu:
    """Return the GPU with its layout, managed."""
    return shared(seen, msgspec.structs.replace(sharing, layout=seen.layout))


def keys(spots: Spots) -> frozenset[DeviceId]:
    return frozenset(DeviceId(UUID, spot) for spot in spots)


def wants(*instances: Placement) -> DesiredDevices:
    return DesiredDevices(gpu=UUID, instances=tuple(sorted(instances)))


# What is offered

# sentence: layout, what is desired, held and assigned, and what is offered
OFFERED: dict[str, tuple[Layout | None, DesiredDevices, Spots, Spots, Spots]] = {
    "idle instances are nobody's": (SEVEN, wants(), NOTHING, NOTHING, NOTHING),
    "desired instances": (SEVEN, wants(*SEVEN[:2]), NOTHING, NOTHING, frozenset(SEVEN[:2])),
    "a desired instance that is not there": (SEVEN[:1], wants(*SEVEN[:2]), NOTHING, NOTHING, frozenset(SEVEN[:1])),
    "instances that pods hold": (SEVEN, wants(), frozenset(SEVEN[3:4]), NOTHING, frozenset(SEVEN[3:4])),
    "an instance that a pod was assigned": (
        SEVEN,
        wants(*SEVEN[:2]),
        NOTHING,
        frozenset(SEVEN[:1]),
        frozenset({SEVEN[1]}),
    ),
    "an instance in the place of one that a pod was assigned": (
        SEVEN,
        wants(SEVEN[0], SEVEN[6]),
        NOTHING,
        frozenset({HALF}),
        frozenset(SEVEN[6:]),
    ),
    "a held instance whatever was assigned": (
        SEVEN,
        wants(),
        frozenset(SEVEN[:1]),
        frozenset({HALF, None}),
        frozenset(SEVEN[:1]),
    ),
    "no instance of a GPU of which an amount was assigned": (SEVEN, wants(*SEVEN), NOTHING, ALL, NOTHING),
    "the desired whole GPU": (None, WHOLE, NOTHING, NOTHING, ALL),
    "the whole GPU while MIG is on": ((), WHOLE, NOTHING, NOTHING, NOTHING),
    "the whole GPU of which an amount was assigned": (None, WHOLE, NOTHING, ALL, NOTHING),
    "the whole GPU of which an instance was assigned": (None, WHOLE, NOTHING, frozenset({HALF}), NOTHING),
    "the whole GPU that a pod holds": (None, wants(HALF), ALL, NOTHING, ALL),
    "a GPU that nobody wants": (None, wants(), NOTHING, NOTHING, NOTHING),
}


@pytest.mark.parametrize("case", OFFERED)
def test_what_is_offered(case: str) -> None:
    layout, desired, held, assigned, want = OFFERED[case]
    gpu = open_gpu(facts(0, layout=layout))
    assert offered_devices([gpu], [desired], keys(held), keys(assigned)) == {UUID: keys(want)}


def test_a_gpu_that_nothing_is_said_of_offers_what_pods_hold() -> None:
    gpu = open_gpu(facts(0, layout=SEVEN))
    others = (DeviceId(facts(1).uuid), DeviceId(facts(1).uuid, SEVEN[1]))
    assert offered_devices([gpu], [], [DeviceId(UUID, SEVEN[0]), *others], others) == {UUID: keys(frozenset(SEVEN[:1]))}


DECIDED = {
    "whole": Sharing(modes=(Mode.WHOLE,)),
    "memory shares": Sharing(modes=(Mode.MEMORY_SHARE,)),
    "replicas": Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", 4),)),
    "a fixed layout": Sharing(modes=(Mode.MIG,), layout=SEVEN, allow_repartition=False),
    "nothing": Sharing(modes=(), allow_repartition=False),
}


@pytest.mark.parametrize("case", DECIDED)
def test_gpus_of_which_an_administrator_decided_are_left_alone(case: str) -> None:
    seen = facts(0, layout=DECIDED[case].layout)
    gpu = shared(seen, DECIDED[case])
    for desired in (WHOLE, wants(HALF)):
        assert offered_devices([gpu], [desired], [DeviceId(UUID)], [DeviceId(UUID, HALF)]) == {}
        assert targets([gpu], Inventory(gpus=(seen,)), [desired], [], [DeviceId(UUID, HALF)]) == ()


def test_a_label_decides_about_all_gpus() -> None:
    for layout in (None, SEVEN):
        (gpu,) = fixed([open_gpu(facts(0, layout=layout))])
        assert (gpu.sharing.managed, gpu.sharing.can_repartition, gpu.sharing.layout) == (False, False, layout)


# What it is cut into

NOBODY: tuple[Placement | None, ...] = ()
OFF = "MIG off"
AS_IT_IS = "as it is"

# sentence: (layout, desired, used, assigned, what it shall be)
CUTS: dict[str, tuple[Layout | None, DesiredDevices, Spots, Spots, Layout | str]] = {
    "nothing is desired of a GPU without MIG": (None, wants(), NOTHING, NOTHING, AS_IT_IS),
    "idle instances stay where nothing needs their place": (SEVEN, wants(), NOTHING, NOTHING, AS_IT_IS),
    "desired instances are there": (SEVEN, wants(*SEVEN[:3]), NOTHING, NOTHING, AS_IT_IS),
    "MIG is switched on for a desired instance": (None, wants(HALF), NOTHING, NOTHING, (HALF,)),
    "a desired instance comes to the idle ones": (SEVEN[:2], wants(OTHER), NOTHING, NOTHING, (*SEVEN[:2], OTHER)),
    "idle ones in the way go": (SEVEN, wants(HALF), NOTHING, NOTHING, (HALF, *SEVEN[4:])),
    "used ones in the way stay": (SEVEN, wants(HALF), frozenset(SEVEN[:1]), NOTHING, AS_IT_IS),
    "what can be had is cut beside used ones": (
        SEVEN,
        wants(HALF, OTHER),
        frozenset(SEVEN[:1]),
        NOTHING,
        (*SEVEN[:4], OTHER),
    ),
    "an assigned instance comes before a desired one": (None, wants(*SEVEN[:1]), NOTHING, frozenset({HALF}), (HALF,)),
    "an assigned instance that is there stays": (SEVEN[:4], wants(HALF), NOTHING, frozenset({SEVEN[0]}), AS_IT_IS),
    "an assigned instance that a used one keeps away": (
        SEVEN,
        wants(),
        frozenset(SEVEN[:1]),
        frozenset({HALF}),
        AS_IT_IS,
    ),
    "MIG goes off for the whole GPU": (SEVEN, WHOLE, NOTHING, NOTHING, OFF),
    "MIG goes off where there is no instance": ((), WHOLE, NOTHING, NOTHING, OFF),
    "MIG is off for the whole GPU": (None, WHOLE, NOTHING, NOTHING, AS_IT_IS),
    "MIG stays on while an instance is used": (SEVEN, WHOLE, frozenset(SEVEN[:1]), NOTHING, AS_IT_IS),
    "MIG stays on while it is not known who is used": (SEVEN, WHOLE, ALL, NOTHING, AS_IT_IS),
    "an assigned instance comes before the whole GPU": (None, WHOLE, NOTHING, frozenset({HALF}), (HALF,)),
    "MIG goes off for an amount": (SEVEN, wants(*SEVEN), NOTHING, ALL, OFF),
    "MIG stays on while both are assigned": (SEVEN, wants(), NOTHING, frozenset({None, HALF}), AS_IT_IS),
    "MIG stays off while the GPU is used": (None, wants(HALF), ALL, NOTHING, AS_IT_IS),
    "where it is not known who is used, all stay": (SEVEN, wants(HALF), ALL, NOTHING, AS_IT_IS),
    "and what fits beside all is cut": (SEVEN[:2], wants(OTHER), ALL, NOTHING, (*SEVEN[:2], OTHER)),
}


def users(spots: Spots) -> list[DeviceUser]:
    return [DeviceUser(device=DeviceId(UUID, spot), pod="default/p") for spot in spots]


@pytest.mark.parametrize("case", CUTS)
def test_what_a_gpu_is_cut_into(case: str) -> None:
    layout, desired, used, assigned, want = CUTS[case]
    seen = facts(0, layout=layout)
    found = targets([open_gpu(seen)], Inventory(gpus=(seen,)), [desired], users(used), keys(assigned))
    if want == AS_IT_IS:
        assert found == ()
        return
    (target,) = found
    assert (target.gpu, target.layout) == (UUID, None if want == OFF else tuple(sorted(want)))
    assert target.mig == (want != OFF)


LOST = msgspec.structs.replace(facts(0), lost=True)
SINGLE = msgspec.structs.replace(AUTO, strategy="single")
NO_TARGET: dict[str, tuple[GpuFacts, Sharing, Inventory]] = {
    "a GPU that is lost": (LOST, AUTO, Inventory(gpus=(LOST,))),
    "a GPU without MIG": (facts(0, "T4"), AUTO, Inventory(gpus=(facts(0, "T4"),))),
    "a GPU that the driver does not show": (facts(0), AUTO, Inventory(gpus=(facts(1),))),
    "a GPU whose instances must be alike": (facts(0), SINGLE, Inventory(gpus=(facts(0),))),
}


@pytest.mark.parametrize("case", NO_TARGET)
def test_gpus_that_cannot_be_cut(case: str) -> None:
    seen, sharing, inventory = NO_TARGET[case]
    assert targets([shared(seen, sharing)], inventory, [wants(HALF)], [], []) == ()


def test_half_made_instances_go_when_their_place_is_desired() -> None:
    seen = msgspec.structs.replace(facts(0, layout=SEVEN[4:]), incomplete=(HALF,))
    (target,) = targets([open_gpu(seen)], Inventory(gpus=(seen,)), [wants(SEVEN[0])], [], [])
    assert target.layout == (SEVEN[0], *SEVEN[4:])


# Laws

layouts = st.none() | st.sampled_from(all_layouts(A100))
spots = st.none() | st.sampled_from(placements(A100))
wishes = st.just(WHOLE) | st.sampled_from(all_layouts(A100)).map(
    lambda layout: DesiredDevices(gpu=UUID, instances=layout)
)


@st.composite
def situations(draw: st.DrawFn) -> tuple[GpuFacts, DesiredDevices, Spots, Spots]:
    """Return a GPU, what is desired of it, what is used of what is there, and what was assigned."""
    seen = facts(0, layout=draw(layouts))
    there = (None,) if seen.layout is None else seen.layout
    used = draw(st.frozensets(st.sampled_from(there))) if there else NOTHING
    return seen, draw(wishes), used, draw(st.frozensets(spots, max_size=3))


def after(seen: GpuFacts, desired: DesiredDevices, used: Spots, assigned: Spots) -> GpuFacts:
    """Return the GPU when its target is carried out."""
    found = targets([open_gpu(seen)], Inventory(gpus=(seen,)), [desired], users(used), keys(assigned))
    return facts(0, layout=found[0].layout) if found else seen


@given(situations())
def test_nothing_used_or_assigned_is_destroyed(situation: tuple[GpuFacts, DesiredDevices, Spots, Spots]) -> None:
    seen, desired, used, assigned = situation
    then = after(seen, desired, used, assigned)
    there: Spots = ALL if seen.layout is None else frozenset(seen.layout)
    kept: Spots = ALL if then.layout is None else frozenset(then.layout)
    assert used <= kept
    assert {spot for spot in assigned if spot in there and spot is not None} <= kept
    if seen.layout is None and None in assigned:
        assert then.layout is None


@given(situations())
def test_planning_again_changes_nothing(situation: tuple[GpuFacts, DesiredDevices, Spots, Spots]) -> None:
    seen, desired, used, assigned = situation
    then = after(seen, desired, used, assigned)
    assert after(then, desired, used, assigned) == then


@given(situations())
def test_every_target_can_be_reached_now(situation: tuple[GpuFacts, DesiredDevices, Spots, Spots]) -> None:
    seen, desired, used, assigned = situation
    for target in targets([open_gpu(seen)], Inventory(gpus=(seen,)), [desired], users(used), keys(assigned)):
        assert not isinstance(change(seen, target, users(used)), Blocked)


@given(situations())
def test_what_is_offered_exists_is_desired_or_held_and_overlaps_nothing_assigned(
    situation: tuple[GpuFacts, DesiredDevices, Spots, Spots],
) -> None:
    seen, desired, held, assigned = situation
    gpu = open_gpu(seen)
    chosen = {each.placement for each in offered_devices([gpu], [desired], keys(held), keys(assigned))[UUID]}
    there: Spots = ALL if seen.layout is None else frozenset(seen.layout)
    requested: Spots = ALL if desired.whole else frozenset(desired.instances)
    assert held <= chosen <= there & (held | requested)
    for spot in chosen - held:
        if spot is None:
            assert not assigned
        else:
            assert None not in assigned
            assert all(is_legal(A100, (spot, other)) for other in assigned if other is not None and other != spot)
            assert spot not in assigned


@given(situations())
def test_what_nobody_is_in_the_way_of_is_offered_when_it_is_cut(
    situation: tuple[GpuFacts, DesiredDevices, Spots, Spots],
) -> None:
    seen, desired, *_ = situation
    then = after(seen, desired, NOTHING, NOTHING)
    chosen = offered_devices([open_gpu(then)], [desired], [], [])[UUID]
    assert chosen == set(desired.devices)
