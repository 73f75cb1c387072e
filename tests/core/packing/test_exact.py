"""The exact optimum against enumeration on small fleets, and its laws."""

import itertools
import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.fleets import A30, A100, T4, amount, check, gpu, node, plain_share, pod_of, pods, slices
from builders.shares import mig_share
from tessera.core.cluster.snapshot import Assignment, Node, NodeName, Running, Snapshot
from tessera.core.gpu.gpumodels import GpuModel, model
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import AUTO, Mode, Sharing
from tessera.core.packing.exact import Bound, assign, ways
from tessera.core.packing.linear import TimeBudget
from tessera.core.packing.plan import plan
from tessera.core.workload.need import DeviceRequest, Isolation, Need, Pod, PodKey

RTX_PRO = model("RTX-PRO-6000")
WHOLE = Need(requests=(DeviceRequest(resource="nvidia.com/gpu"),))
REPLICAS = Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", 3),))
FIXED = Sharing(
    modes=(Mode.MIG_TIME_SLICING,),
    layout=(Placement(0, 2, "2g.10gb"), Placement(4, 4, "3g.20gb")),
    replicas=(("2g.10gb", 3),),
    allow_repartition=False,
)


def test_a_gpu_of_another_model_serves_a_request_in_no_way() -> None:
    need = slices("1g.5gb")
    assert ways(need, need.requests[0], gpu(0))
    assert ways(msgspec.structs.replace(need, models=("T4",)), need.requests[0], gpu(0)) == ()


# Keyed by a sentence: nodes, pending pods, how many are placed at most.
CASES: dict[str, tuple[tuple[Node, ...], tuple[Pod, ...], int]] = {
    "seven 1g.5gb fit an A100": ((node("a", gpu(0)),), pods(slices("1g.5gb"), 9), 7),
    "cpu limits a node": ((node("a", gpu(0), cpu_milli=3000),), pods(slices("1g.5gb"), 9), 3),
    "a pod may hold two slices of one GPU": ((node("a", gpu(0)),), pods(slices("3g.20gb", 2), 2), 1),
    "shares of one pod are on distinct GPUs": ((node("a", gpu(0), gpu(1)),), pods(amount(20_000, count=2), 3), 2),
    "a share never exceeds its GPU": ((node("a", gpu(0, T4)),), pods(amount(20_000), 1), 0),
    "three of 13 GiB on one A100 are packed by memory": ((node("a", gpu(0)),), pods(amount(13_000), 5), 3),
    "compute limits shares": ((node("a", gpu(0)),), pods(amount(1000, compute_percent=40), 5), 2),
    "hardware isolation is cut": ((node("a", gpu(0)),), pods(amount(19_000, Isolation.HARDWARE), 3), 2),
    "one GPU is MIG or shared, not both": (
        (node("a", gpu(0)),),
        (*pods(slices("1g.5gb"), 1, "s"), *pods(plain_share(1000), 5, "m")),
        5,
    ),
    "a need without isolation takes a slice where that places more": (
        (node("a", gpu(0)),),
        (*pods(slices("1g.5gb"), 1, "s"), *pods(amount(1000), 5, "m")),
        6,
    ),
    "a fixed layout stays": (
        (node("a", gpu(0, A100, FIXED)),),
        (*pods(slices("2g.10gb"), 5, "m"), *pods(slices("3g.20gb"), 5, "l"), *pods(slices("1g.5gb"), 5, "s")),
        4,
    ),
    "clients of a GPU go by count": ((node("a", gpu(0, T4, REPLICAS)),), pods(WHOLE, 5), 3),
    "whole GPUs go by count": (
        (node("a", gpu(0, T4), gpu(1, T4)), node("b", gpu(0, T4))),
        pods(Need(requests=(DeviceRequest(resource="nvidia.com/gpu", count=2),)), 3),
        1,
    ),
    "a model constraint is kept": (
        (node("a", gpu(0, T4)), node("b", gpu(0, A30))),
        pods(Need(models=("A30-24GB",), requests=(DeviceRequest(resource="nvidia.com/gpu"),)), 3),
        1,
    ),
    "a node that refuses the pod is left out": (
        (node("a", gpu(0, T4)), node("b", gpu(0, T4))),
        pods(Need(node_name="b", requests=(DeviceRequest(resource="nvidia.com/gpu"),)), 2),
        1,
    ),
    "one instance may hold all media engines": (
        (node("a", gpu(0, RTX_PRO)),),
        tuple(
            pod
            for i, name in enumerate(("+me.all", "+me", "", "-me"))
            for pod in pods(slices(f"1g.24gb{name}"), 1, f"p{i}")
        ),
        3,
    ),
    "nothing pending is nothing placed": ((node("a", gpu(0)),), (), 0),
}


@pytest.mark.parametrize("sentence", CASES)
def test_optimum(sentence: str) -> None:
    nodes, pending, want = CASES[sentence]
    snapshot = Snapshot(nodes=nodes, pending=pending)
    assignments, bound = assign(snapshot)
    check(snapshot, assignments)
    assert len(assignments) == bound.placed == bound.at_most == want
    assert bound.optimal


def test_running_pods_keep_what_they_hold() -> None:
    held = mig_share(0, "3g.20gb", 4)
    before = pod_of(slices("3g.20gb"), "default/old")
    running = Running(pod=before, assignment=Assignment(pod=before.key, node=NodeName("a"), shares=(held,)))
    snapshot = Snapshot(nodes=(node("a", gpu(0)),), running=(running,), pending=pods(slices("1g.5gb"), 9))
    assignments, bound = assign(snapshot)
    check(snapshot, assignments)
    assert bound.placed == 4
    assert {share.start for a in assignments for share in a.shares} == {0, 1, 2, 3}


def test_higher_priority_goes_first() -> None:
    pending = (*pods(slices("1g.5gb"), 7, "low"), *pods(slices("7g.40gb"), 1, "high", priority=10))
    assignments, bound = assign(Snapshot(nodes=(node("a", gpu(0)),), pending=pending))
    assert [a.pod for a in assignments] == ["default/high-0"]
    assert bound.placed == bound.at_most == 1


LITTLE_S = 1e-9
"""A limit that is over before the solver has begun."""


def test_what_was_there_before_is_kept_when_the_time_is_up() -> None:
    """A program that timed out without a point lost the plan, and claimed that it was proved."""
    pending = (*pods(slices("1g.5gb"), 9, "low"), *pods(slices("3g.20gb"), 9, "high", priority=1))
    snapshot = Snapshot(nodes=(node("a", gpu(0), gpu(1)),), pending=pending)
    start = plan(snapshot).assignments
    assert assign(snapshot, start, budget=TimeBudget(LITTLE_S)) == (start, Bound(placed=4, at_most=18))
    assert assign(snapshot, start, budget=TimeBudget(-1)) == (start, Bound(placed=4, at_most=18))
    assert assign(snapshot, start)[1] == Bound(placed=4, at_most=4)
    made = plan(snapshot, exact=True, budget=TimeBudget(-1))
    assert (made.assignments, made.bound) == (start, Bound(placed=4, at_most=18))


def test_all_placed_is_proved_without_solving() -> None:
    snapshot = Snapshot(nodes=(node("a", gpu(0)),), pending=pods(slices("1g.5gb"), 7))
    start = plan(snapshot).assignments
    assert assign(snapshot, start, budget=TimeBudget(LITTLE_S)) == (start, Bound(placed=7, at_most=7))


def test_a_start_that_cannot_be_proves_nothing() -> None:
    """Two pods on one instance: the program does not describe it, so its bound is not one of this plan."""
    snapshot = Snapshot(nodes=(node("a", gpu(0)),), pending=pods(slices("7g.40gb"), 3))
    (one,) = plan(snapshot).assignments
    start = (one, msgspec.structs.replace(one, pod=PodKey("default/p-1")))
    assert assign(snapshot, start) == (start, Bound(placed=2, at_most=3))


def test_an_instance_that_idles_may_serve_a_smaller_need() -> None:
    """A policy takes the instance that is there where the layout may change; the program can begin with that."""
    sharing = Sharing(layout=(Placement(4, 4, "3g.20gb"),))
    need = amount(4000, Isolation.HARDWARE)
    snapshot = Snapshot(nodes=(node("a", gpu(0, A100, sharing)),), pending=pods(need, 9))
    start = plan(snapshot).assignments[:1]
    assert [(share.profile, share.start) for share in start[0].shares] == [("3g.20gb", 4)]
    assert assign(snapshot, start)[1] == Bound(placed=7, at_most=7)
    assert assign(msgspec.structs.replace(snapshot, pending=snapshot.pending[:1]), start)[0] == start


def test_a_node_that_shrank_takes_nobody_and_stops_nobody() -> None:
    """Running pods ask more cpu than it has."""
    old = pod_of(Need(cpu_milli=9000), "default/old")
    running = Running(pod=old, assignment=Assignment(pod=old.key, node=NodeName("a")))
    nodes = (node("a", gpu(0), cpu_milli=8000), node("b", gpu(0)))
    pending = (*pods(slices("7g.40gb"), 2), *pods(slices("7g.40gb", cpu_milli=0), 2, "q"))
    assignments, bound = assign(Snapshot(nodes=nodes, running=(running,), pending=pending))
    assert [each.node for each in assignments] == ["b"]
    assert bound == Bound(placed=1, at_most=1)


PROFILES = ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")


def fits_one(desired: tuple[str, ...]) -> bool:
    """Whether some starts put all the desired profiles on one A100, by trying all."""
    starts = {profile.name: profile.starts for profile in A100.profiles}
    sizes = {profile.name: profile.size for profile in A100.profiles}
    places = ([Placement(s, sizes[name], name) for s in starts[name]] for name in desired)
    return any(
        sum(p.mask.bit_count() for p in layout) == (mask := _union(layout)).bit_count() and mask < 256
        for layout in itertools.product(*places)
    )


def _union(layout: tuple[Placement, ...]) -> int:
    mask = 0
    for place in layout:
        mask |= place.mask
    return mask


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(PROFILES), max_size=5), st.integers(1, 2))
def test_slices_equal_enumeration(desired: list[str], gpus: int) -> None:
    pending = tuple(pod for i, name in enumerate(desired) for pod in pods(slices(name), 1, f"p{i}"))
    snapshot = Snapshot(nodes=(node("a", *(gpu(i) for i in range(gpus))),), pending=pending)
    assignments, bound = assign(snapshot)
    check(snapshot, assignments)
    splits = itertools.product(range(gpus + 1), repeat=len(desired))
    want = max(
        sum(g > 0 for g in split)
        for split in splits
        if all(fits_one(tuple(w for w, g in zip(desired, split, strict=True) if g == here + 1)) for here in range(gpus))
    )
    assert bound.placed == want


ASKS = st.one_of(
    st.builds(slices, st.sampled_from(PROFILES), st.integers(1, 2)),
    st.builds(
        amount, st.integers(500, 39_000), st.sampled_from(Isolation), st.integers(1, 2), st.sampled_from((0, 30))
    ),
    st.just(Need(requests=(DeviceRequest(resource="nvidia.com/gpu"),))),
    st.just(Need(cpu_milli=4000)),
)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(ASKS, max_size=6), st.lists(st.sampled_from((A30, A100, T4)), max_size=3), st.sampled_from((A30, A100, T4))
)
def test_adding_a_gpu_never_places_fewer(needs: list[Need], kinds: list[GpuModel], more: GpuModel) -> None:
    pending = tuple(pod for i, need in enumerate(needs) for pod in pods(need, 2, f"p{i}"))
    gpus = [gpu(i, kind) for i, kind in enumerate((*kinds, more))]
    before = Snapshot(nodes=(node("a", *gpus[:-1]),), pending=pending)
    after = Snapshot(nodes=(node("a", *gpus),), pending=pending)
    few, many = assign(before), assign(after)
    check(before, few[0])
    check(after, many[0])
    assert few[1].placed == len(few[0]) <= few[1].at_most
    assert few[1].placed <= many[1].placed == len(many[0])


LAYOUTS = st.sampled_from((AUTO, AUTO, FIXED, Sharing(layout=(Placement(4, 4, "3g.20gb"), Placement(0, 1, "1g.5gb")))))


def by_priority(snapshot: Snapshot, assignments: tuple[Assignment, ...]) -> tuple[int, ...]:
    placed = {each.pod for each in assignments}
    return tuple(sum(p.priority == each and p.key in placed for p in snapshot.pending) for each in (1, 0))


@pytest.mark.search
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(ASKS, st.integers(0, 1)), max_size=6),
    st.lists(LAYOUTS, min_size=1, max_size=3),
    st.sampled_from((math.inf, 0.005, LITTLE_S)),
    st.sampled_from(("tessera", "first-fit")),
)
def test_laws_of_improving(needs: list[tuple[Need, int]], sharings: list[Sharing], limit_s: float, policy: str) -> None:
    """However soon the time is up: legal, never below the policy, and called optimal only where it is."""
    pending = tuple(pod for i, (need, priority) in enumerate(needs) for pod in pods(need, 3, f"p{i}", priority))
    nodes = (node("a", *(gpu(i, A100, sharing) for i, sharing in enumerate(sharings))), node("b", gpu(0, A30)))
    snapshot = Snapshot(nodes=nodes, pending=pending)
    packed, best = plan(snapshot, policy=policy), assign(snapshot)
    made = plan(snapshot, policy=policy, exact=True, budget=TimeBudget(limit_s))
    check(snapshot, made.assignments)
    assert made.bound is not None
    assert by_priority(snapshot, packed.assignments) <= by_priority(snapshot, made.assignments)
    assert by_priority(snapshot, made.assignments) <= by_priority(snapshot, best[0])
    assert made.bound.placed == len(made.assignments) <= made.bound.at_most <= len(pending)
    assert best[1].placed <= made.bound.at_most
    assert made.bound.optimal == (made.bound.placed == made.bound.at_most)
    if made.bound.optimal:
        assert made.bound.placed == best[1].placed
    assert best[1].optimal
