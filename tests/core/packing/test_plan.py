"""Plans: laws over random fleets, the order of planning, layouts, reasons and warnings."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.fleets import A30, A100, T4, amount, check, gpu, node, plain_share, pods, slices
from tessera.core.cluster.snapshot import Gpu, Node, NodeName, Snapshot
from tessera.core.gpu.gpumodels import GpuModel, model
from tessera.core.gpu.mig import Placement, open_placements, why_illegal
from tessera.core.gpu.sharing import AUTO, Mode, Sharing
from tessera.core.packing.plan import PLAN_POLICIES, GpuLayout, applied, plan
from tessera.core.workload.need import DeviceRequest, Isolation, Need, Pod

WHOLE = Need(cpu_milli=1000, requests=(DeviceRequest(resource="nvidia.com/gpu"),))
REPLICAS = Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", 3),))
SHARED = Sharing(modes=(Mode.MEMORY_SHARE,))
CUT = Sharing(
    modes=(Mode.MIG,),
    layout=(Placement(0, 1, "1g.5gb"), Placement(2, 2, "2g.10gb"), Placement(4, 4, "3g.20gb")),
    allow_repartition=False,
)

NEEDS = st.one_of(
    st.builds(slices, st.sampled_from(("1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb", "1g.6gb")), st.integers(1, 2)),
    st.builds(
        amount, st.integers(500, 39_000), st.sampled_from(Isolation), st.integers(1, 2), st.sampled_from((0, 30))
    ),
    st.builds(plain_share, st.integers(500, 16_000)),
    st.just(WHOLE),
    st.just(Need(cpu_milli=9000)),
)
RTX_PRO = model("RTX-PRO-6000")
MEDIA = ("1g.24gb", "1g.24gb-me", "1g.24gb+me", "1g.24gb+me.all", "2g.48gb", "2g.48gb+me.all", "2g.48gb-me")
GPUS = st.tuples(st.sampled_from((A30, A100, T4)), st.sampled_from((AUTO, REPLICAS, Sharing(modes=(Mode.WHOLE,)))))


def fleet(kinds: list[list[tuple[GpuModel, Sharing]]]) -> tuple[Node, ...]:
    rows = ((n, [gpu(i, kind, sharing) for i, (kind, sharing) in enumerate(gpus)]) for n, gpus in enumerate(kinds))
    return tuple(node(f"n{n}", *gpus) for n, gpus in rows)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(MEDIA), max_size=6), st.sampled_from((*PLAN_POLICIES, "exact")))
def test_one_instance_can_hold_all_media_engines(names: list[str], policy: str) -> None:
    """What is planned is legal, and nobody waits who could be cut a place beside what is used."""
    pending = tuple(pod for i, name in enumerate(names) for pod in pods(slices(name), 1, f"p{i}"))
    before = Snapshot(nodes=(node("n", gpu(0, RTX_PRO)),), pending=pending)
    made = plan(before, exact=True) if policy == "exact" else plan(before, policy=policy)
    layout = tuple(p.placement for p in made.layouts[0].devices if p.placement)
    assert why_illegal(RTX_PRO, layout) is None
    assert len(made.assignments) == len(layout)
    waiting = {names[int(each.pod.removeprefix("default/p").partition("-")[0])] for each in made.pending}
    assert not waiting.intersection(place.profile for place in open_placements(RTX_PRO, layout))


def same(layout: GpuLayout) -> tuple[object, ...]:
    """Return what stays the same when the instances exist."""
    pieces = [(piece.placement, piece.mode, piece.clients, piece.pods) for piece in layout.devices]
    return layout.node, layout.gpu, layout.mig, layout.allocated_mib, *pieces


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(GPUS, max_size=3), max_size=3), st.lists(NEEDS, max_size=8), st.booleans())
def test_laws(kinds: list[list[tuple[GpuModel, Sharing]]], needs: list[Need], exact: bool) -> None:
    """Nothing overcommitted; each pod is placed or waits with a reason; planning again changes nothing."""
    pending = tuple(pod for i, need in enumerate(needs) for pod in pods(need, 2, f"p{i}", priority=i % 2))
    before = Snapshot(nodes=fleet(kinds), pending=pending)
    first = plan(before, exact=exact)
    check(before, first.assignments)
    assert {a.pod for a in first.assignments} | {w.pod for w in first.pending} == {pod.key for pod in pending}
    assert len(first.assignments) + len(first.pending) == len(pending)
    assert all(each.reason for each in first.pending)
    assert len(first.layouts) == sum(len(each.gpus) for each in before.nodes)
    again = plan(applied(before, first), exact=exact)
    assert again.assignments == ()
    assert [w.pod for w in again.pending] == [w.pod for w in first.pending]
    assert [same(x) for x in again.layouts] == [same(x) for x in first.layouts]
    assert all(piece.exists for x in again.layouts for piece in x.devices if piece.pods and piece.placement)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(GPUS, max_size=2), max_size=2), st.lists(NEEDS, max_size=6))
def test_no_policy_places_more_than_the_optimum(kinds: list[list[tuple[GpuModel, Sharing]]], needs: list[Need]) -> None:
    before = Snapshot(
        nodes=fleet(kinds), pending=tuple(p for i, need in enumerate(needs) for p in pods(need, 2, f"p{i}"))
    )
    best = plan(before, exact=True)
    assert best.bound is not None
    assert best.bound.optimal
    for policy in ("first-fit",):
        assert len(plan(before, policy=policy).assignments) <= best.bound.at_most


# Keyed by a sentence: how many pods of one slice ask for one A100, whether exactly, and the steps that are reported.
STEPS: dict[str, tuple[int, bool, list[str]]] = {
    "all are placed": (7, False, ["placing pods"]),
    "some wait": (600, False, ["placing pods", "trying other orders", "finding reasons"]),
    "solved exactly": (7, True, ["placing pods", "solving"]),
}


@pytest.mark.parametrize("sentence", STEPS)
def test_progress_is_reported_step_by_step(sentence: str) -> None:
    """Within a step it never goes back, nor beyond the end."""
    count, exact, want = STEPS[sentence]
    reports: list[tuple[str, int, int]] = []
    plan(
        only((gpu(0),), pods(slices("1g.5gb"), count)),
        exact=exact,
        progress=lambda step, done, total: reports.append((step, done, total)),
    )
    assert list(dict.fromkeys(step for step, _, _ in reports)) == want
    for step in want:
        own = [(done, total) for name, done, total in reports if name == step]
        assert [done for done, _ in own] == sorted({done for done, _ in own})
        assert all(done <= total for done, total in own)


def only(gpus: tuple[Gpu, ...], pending: tuple[Pod, ...], cpu_milli: int = 64_000) -> Snapshot:
    return Snapshot(nodes=(node("n", *gpus, cpu_milli=cpu_milli),), pending=pending)


def test_large_pods_go_while_there_is_room() -> None:
    pending = (*pods(plain_share(8000), 2, "small"), *pods(WHOLE, 1, "whole"))
    made = plan(Snapshot(nodes=(node("n", gpu(0, T4), gpu(1, T4)),), pending=pending))
    assert [each.pod for each in made.pending] == ["default/small-1"]
    assert "default/whole-0" in {a.pod for a in made.assignments}


def test_of_equal_pods_those_go_of_which_most_fit() -> None:
    pending = (*pods(WHOLE, 1, "whole"), *pods(plain_share(5000), 3, "small"))
    made = plan(only((gpu(0, T4),), pending))
    assert [each.pod for each in made.pending] == ["default/whole-0"]
    urgent = (*pods(WHOLE, 1, "whole", priority=1), *pods(plain_share(5000), 3, "small"))
    assert [assignment.pod for assignment in plan(only((gpu(0, T4),), urgent)).assignments] == ["default/whole-0"]


def test_layout_keeps_what_exists_and_is_not_in_the_way() -> None:
    sharing = Sharing(layout=(Placement(0, 1, "1g.5gb"), Placement(4, 4, "3g.20gb")))
    made = plan(only((gpu(0, A100, sharing),), pods(slices("2g.10gb"), 1)))
    got = {(s.placement.profile, bool(s.pods), s.exists) for s in made.layouts[0].devices if s.placement}
    assert ("2g.10gb", True, False) in got
    assert ("3g.20gb", False, True) in got or ("1g.5gb", False, True) in got
    assert made.layouts[0].mig


def test_an_unused_instance_gives_way_where_its_media_engines_are_needed() -> None:
    sharing = Sharing(layout=(Placement(2, 1, "1g.6gb+me"), Placement(3, 1, "1g.6gb")))
    before = only((gpu(0, A30, sharing),), pods(slices("2g.12gb.me"), 1))
    made = plan(before)
    check(before, made.assignments)
    got = [(s.placement.profile, s.pods, s.exists) for s in made.layouts[0].devices if s.placement]
    assert got == [("2g.12gb+me", ("default/p-0",), False), ("1g.6gb", (), True)]


@pytest.mark.parametrize("policy", PLAN_POLICIES)
def test_every_policy_plans_every_fleet(policy: str) -> None:
    """Also one without a GPU, and pods without one."""
    pending = (*pods(WHOLE, 1, "gpu"), *pods(Need(cpu_milli=1000), 1, "cpu"))
    made = plan(Snapshot(nodes=(node("n"),), pending=pending), policy=policy)
    assert [assignment.pod for assignment in made.assignments] == ["default/cpu-0"]
    assert [each.pod for each in made.pending] == ["default/gpu-0"]


def test_the_optimum_names_existing_devices_as_policies_do() -> None:
    pooled = msgspec.structs.replace(CUT, allocator="scheduler")
    before = only((gpu(0, A100, pooled),), pods(amount(9000), 1))
    packed, best = plan(before).assignments, plan(before, exact=True).assignments
    assert [share.resource for share in packed[0].shares] == ["nvidia.com/mig-2g.10gb"]
    assert packed == best


def test_a_fixed_layout_is_shown_with_its_free_instances() -> None:
    made = plan(only((gpu(0, A100, CUT),), pods(slices("2g.10gb"), 1)))
    assert [(s.placement.profile, s.pods, s.exists) for s in made.layouts[0].devices if s.placement] == [
        ("1g.5gb", (), True),
        ("2g.10gb", ("default/p-0",), True),
        ("3g.20gb", (), True),
    ]


def test_time_slicing_and_plain_shares_are_warned_about() -> None:
    made = plan(only((gpu(0, T4, REPLICAS),), pods(WHOLE, 2)))
    assert list(made.warnings) == [
        (
            "n GPU 0 (T4): 2 pods share memory that time-slicing does not isolate, in 15 GiB; any of them can "
            "exhaust it for all: default/p-0, default/p-1"
        )
    ]
    alone = plan(only((gpu(0, T4, REPLICAS),), pods(WHOLE, 1)))
    assert alone.warnings == ()
    sliced = Sharing(
        modes=(Mode.MIG_TIME_SLICING,), layout=CUT.layout, replicas=(("2g.10gb", 2),), allow_repartition=False
    )
    on_mig = plan(only((gpu(0, A100, sliced),), pods(slices("2g.10gb"), 2)))
    assert "2 pods share memory that mig-time-slicing does not isolate, on 2g.10gb at 2" in on_mig.warnings[0]


def test_nodes_whose_gpus_are_not_known_are_named_and_kept_out() -> None:
    unknown = msgspec.structs.replace(node("b"), problem="GPUs of an unknown model")
    made = plan(Snapshot(nodes=(node("a", gpu(0, T4)), unknown), pending=pods(WHOLE, 2), notes=("a note",)))
    assert made.skipped == ("b",)
    assert made.warnings == ("b is left out, because its GPUs are not known: GPUs of an unknown model",)
    assert made.notes == ("a note",)
    assert "the node's GPUs are unknown: GPUs of an unknown model (b)" in made.pending[0].reason


def test_guesses_are_reported_once_for_all_nodes_with_the_same_cause() -> None:
    nodes = [msgspec.structs.replace(node(f"n{i}", gpu(0, T4), gpu(1, T4)), lost=1) for i in range(5)]
    made = plan(Snapshot(nodes=(*nodes, msgspec.structs.replace(nodes[0], name=NodeName("m"), lost=0))))
    assert {layout.node for layout in made.layouts if layout.unrecorded} == {each.name for each in nodes}
    assert [warning.partition(", so GPU indices")[0] for warning in made.warnings] == [
        "n0, n1, n2 and 2 more nodes: the lost GPUs are not recorded"
    ]


def test_devices_by_name_that_no_agent_creates_yet_are_warned_about() -> None:
    sliced, whole = slices("1g.5gb"), DeviceRequest(resource="nvidia.com/gpu")
    bare = msgspec.structs.replace(node("a", gpu(0)), advertised=("nvidia.com/gpu",))
    made = plan(Snapshot(nodes=(bare,), pending=pods(sliced, 2)))
    assert len(made.assignments) == 2
    assert (
        "a has no agent and does not advertise nvidia.com/mig-1g.5gb: default/p-0, default/p-1 cannot start there "
        "before both" in made.warnings
    )
    assert plan(Snapshot(nodes=(bare,), pending=pods(Need(requests=(whole,)), 1))).warnings == ()
    assert plan(Snapshot(nodes=(node("a", gpu(0)),), pending=pods(sliced, 2))).warnings == ()
