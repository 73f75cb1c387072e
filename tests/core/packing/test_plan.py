"""Plans: laws over random fleets, the order of planning, layouts, reasons and warnings."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.fleets import A30, A100, T4, amount, check, gpu, node, plain_share, pods, slices
from tessera.core.cluster.snapshot import Gpu, Node, NodeName, Snapshot, Taint
from tessera.core.gpu.gpumodels import GpuModel, model
from tessera.core.gpu.mig import Placement, open_placements, why_illegal
from tessera.core.gpu.sharing import AUTO, Mode, Sharing
from tessera.core.packing.plan import PLAN_POLICIES, GpuLayout, applied, plan
from tessera.core.workload.need import Ask, Isolation, Need, Pod

WHOLE = Need(cpu_milli=1000, asks=(Ask(resource="nvidia.com/gpu"),))
REPLICAS = Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", 3),))
SHARED = Sharing(modes=(Mode.MEMORY_SHARE,))
CUT = Sharing(
    modes=(Mode.MIG,),
    layout=(Placement(0, 1, "1g.5gb"), Placement(2, 2, "2g.10gb"), Placement(4, 4, "3g.20gb")),
    recut=False,
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
    layout = tuple(p.placement for p in made.layouts[0].slices if p.placement)
    assert why_illegal(RTX_PRO, layout) is None
    assert len(made.assignments) == len(layout)
    waiting = {names[int(each.pod.removeprefix("default/p").partition("-")[0])] for each in made.pending}
    assert not waiting.intersection(place.profile for place in open_placements(RTX_PRO, layout))


def same(layout: GpuLayout) -> tuple[object, ...]:
    """Return what stays the same when the instances exist."""
    pieces = [(piece.placement, piece.mode, piece.clients, piece.pods) for piece in layout.slices]
    return layout.node, layout.gpu, layout.mig, layout.granted_mib, *pieces


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(GPUS, max_size=3), max_size=3), st.lists(NEEDS, max_size=8), st.booleans())
def test_laws(kinds: list[list[tuple[GpuModel, Sharing]]], needs: list[Need], exact: bool) -> None:
    """Nothing over-granted; each pod is placed or waits with a reason; planning again changes nothing."""
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
    assert all(piece.exists for x in again.layouts for piece in x.slices if piece.pods and piece.placement)


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


# Keyed by a sentence: the snapshot, and the reasons of the pods that wait.
REASONS: dict[str, tuple[Snapshot, list[str]]] = {
    "a full GPU names the free unit, the starts and the holder": (
        only((gpu(0),), pods(slices("1g.5gb"), 8)),
        [
            (
                "needs nvidia.com/mig-1g.5gb; 1 node could serve it but every place is held (n: GPU 0 has unit 7 free, "
                "but 1g.5gb starts at 0, 1, 2, 3, 4, 5, 6 and unit 0 is held by default/p-0)"
            )
        ],
    ),
    "a GPU without a free unit names its holders": (
        only((gpu(0),), pods(slices("3g.20gb"), 3)),
        [
            (
                "needs nvidia.com/mig-3g.20gb; 1 node could serve it but every place is held (n: no GPU has a free "
                "unit; GPU 0 is held by default/p-0, default/p-1)"
            )
        ],
    ),
    "a GPU given away whole is held": (
        only((gpu(0),), (*pods(WHOLE, 1, "w"), *pods(slices("1g.5gb"), 1, "s"))),
        [
            (
                "needs nvidia.com/mig-1g.5gb; 1 node could serve it but every place is held (n: no GPU has a free "
                "unit; GPU 0 is held by default/w-0)"
            )
        ],
    ),
    "media engines are held too": (
        only((gpu(0),), pods(slices("1g.5gb.me"), 2)),
        [
            (
                "needs nvidia.com/mig-1g.5gb.me; 1 node could serve it but every place is held (n: GPU 0 has units "
                "1, 2, 3, 4, 5, 6, 7 free, but a GPU holds one 1g.5gb+me at most)"
            )
        ],
    ),
    "what no node can serve says what there is": (
        only((gpu(0, T4, REPLICAS),), pods(slices("1g.5gb"), 1)),
        [("needs nvidia.com/mig-1g.5gb; 1 node cannot serve it in any way (n: 1 x T4 offering nvidia.com/gpu)")],
    ),
    "a profile of other models lists this one's": (
        only((gpu(0, A30), gpu(1, T4)), pods(slices("1g.5gb"), 1)),
        [
            (
                "needs nvidia.com/mig-1g.5gb; 1 node cannot serve it in any way (n: 1 x A30-24GB with profiles 1g.6gb, "
                "1g.6gb+me, 2g.12gb, 2g.12gb+me, 4g.24gb, 1 x T4 without MIG)"
            )
        ],
    ),
    "a GPU that is kept whole is not cut": (
        only((gpu(0, A30, Sharing(modes=(Mode.MPS,))),), pods(slices("1g.6gb"), 1)),
        ["needs nvidia.com/mig-1g.6gb; 1 node cannot serve it in any way (n: 1 x A30-24GB kept from MIG)"],
    ),
    "an amount beyond any GPU tells how large they are": (
        only((gpu(0, T4, SHARED), gpu(1, T4, SHARED)), pods(amount(20_000), 1)),
        [
            (
                "needs 20000 MiB, none isolation; 1 node cannot serve it in any way (n: 2 x T4 of 15360 MiB shared as "
                "memory-share)"
            )
        ],
    ),
    "whole GPUs where there are shares alone": (
        only((gpu(0, T4, SHARED),), pods(WHOLE, 1)),
        ["needs nvidia.com/gpu; 1 node cannot serve it in any way (n: 1 x T4 shared as memory-share)"],
    ),
    "a need where all that would serve is allocated by name": (
        only((gpu(0, T4, Sharing(modes=(Mode.WHOLE,))),), pods(amount(9000, Isolation.HARDWARE), 1)),
        [
            (
                "needs 9000 MiB, hardware isolation; 1 node with devices that are allocated by name: ask for one, or "
                "set allocator: scheduler (n: 1 x T4 offering nvidia.com/gpu)"
            )
        ],
    ),
    "a name where all that has it is the scheduler's": (
        only((gpu(0, T4, Sharing(modes=(Mode.WHOLE,), allocator="scheduler")),), pods(WHOLE, 1)),
        [
            (
                "needs nvidia.com/gpu; 1 node with devices that are allocated by the scheduler: ask for an amount of "
                "GPU memory (n: 1 x T4 offering nvidia.com/gpu)"
            )
        ],
    ),
    "more devices than the node ever has": (
        only((gpu(0, T4), gpu(1, T4)), pods(Need(asks=(Ask(resource="nvidia.com/gpu", count=4),)), 1)),
        ["needs 4 x nvidia.com/gpu; 1 node with too few devices for one such pod (n: 2 at most)"],
    ),
    "replicas are counted": (
        only((gpu(0, T4, REPLICAS),), pods(WHOLE, 4)),
        ["needs nvidia.com/gpu; 1 node could serve it but every place is held (n: all 3 taken on 1 GPU)"],
    ),
    "replicas that are left are too few": (
        only((gpu(0, T4, REPLICAS),), pods(Need(asks=(Ask(resource="nvidia.com/gpu", count=2),)), 2)),
        ["needs 2 x nvidia.com/gpu; 1 node could serve it but every place is held (n: 1 of 3 free on 1 GPU)"],
    ),
    "where instances may be recut, units count and not instances": (
        only((gpu(0, A30, Sharing(layout=(Placement(0, 2, "2g.12gb"),))),), pods(slices("2g.12gb"), 3)),
        [
            (
                "needs nvidia.com/mig-2g.12gb; 1 node could serve it but every place is held (n: no GPU has a free "
                "unit; GPU 0 is held by default/p-0, default/p-1)"
            )
        ],
    ),
    "amounts tell what is left": (
        only((gpu(0, T4),), pods(plain_share(10_000), 2)),
        [
            (
                "needs 10000 MiB on a shared GPU; 1 node could serve it but every place is held "
                f"(n: most left in one GPU is {T4.memory_mib - 10_000} MiB and 100 % compute)"
            )
        ],
    ),
    "a GPU given to another mode is no room": (
        only((gpu(0, T4),), (*pods(plain_share(9000), 1, "s", 1), *pods(amount(800, Isolation.DRIVER), 1, "d"))),
        [
            (
                "needs 800 MiB, driver isolation; 1 node could serve it but every place is held "
                "(n: 1 GPU given to other modes than mps)"
            )
        ],
    ),
    "whole GPUs tell how many are free": (
        only(
            (gpu(0, T4), gpu(1, T4)),
            pods(Need(asks=(Ask(resource="nvidia.com/gpu", count=2),)), 2),
        ),
        ["needs 2 x nvidia.com/gpu; 1 node could serve it but every place is held (n: 0 of 2 GPUs free)"],
    ),
    "cpu that is short is told": (
        only((gpu(0),), pods(slices("1g.5gb", cpu_milli=2500), 2), cpu_milli=3000),
        ["needs nvidia.com/mig-1g.5gb; 1 node short of cpu for 2500 milli (n: 500 left)"],
    ),
    "memory that is short is told": (
        only((), pods(Need(memory_mib=1 << 21), 1)),
        ["needs 0 milli cpu and 2097152 MiB memory; 1 node short of memory for 2097152 MiB (n: 1048576 left)"],
    ),
    "a model that is nowhere is told": (
        only((gpu(0),), pods(Need(models=("T4",), asks=WHOLE.asks), 1)),
        ["needs nvidia.com/gpu; 1 node without T4 (n)"],
    ),
    "no nodes at all": (Snapshot(nodes=(), pending=pods(WHOLE, 1)), ["needs nvidia.com/gpu; there are no nodes"]),
    "devices taken in either order leave a third ask nothing": (
        only(
            (gpu(0, T4), gpu(1, T4)),
            pods(Need(asks=(Ask(resource="nvidia.com/gpu", count=2), *plain_share(9000).asks)), 1),
        ),
        [
            (
                "needs 2 x nvidia.com/gpu, 9000 MiB on a shared GPU; "
                "1 node with a place for each ask alone, but none for all together (n)"
            )
        ],
    ),
    "two asks that fit alone but not together": (
        only((gpu(0, T4),), pods(Need(asks=(*plain_share(9000).asks, *plain_share(9001).asks)), 1)),
        [
            (
                "needs 9000 MiB on a shared GPU, 9001 MiB on a shared GPU; "
                "1 node with a place for each ask alone, but none for all together (n)"
            )
        ],
    ),
}


@pytest.mark.parametrize("sentence", REASONS)
def test_reasons(sentence: str) -> None:
    snapshot, want = REASONS[sentence]
    assert [each.reason for each in plan(snapshot, policy="first-fit").pending] == want


def test_refusals_of_nodes_are_counted_and_named() -> None:
    nodes = (
        Node(name=NodeName("a"), cpu_milli=1000, memory_mib=1000, unschedulable=True),
        Node(
            name=NodeName("b"), cpu_milli=1000, memory_mib=1000, taints=(Taint(key="k", value="v", effect="NoExecute"),)
        ),
        Node(name=NodeName("c"), cpu_milli=1000, memory_mib=1000, max_pods=0),
        Node(name=NodeName("d"), cpu_milli=1000, memory_mib=1000, max_pods=0),
        Node(name=NodeName("e"), cpu_milli=1000, memory_mib=1000, max_pods=0),
    )
    got = plan(Snapshot(nodes=nodes, pending=pods(Need(cpu_milli=1), 1))).pending[0].reason
    assert got == (
        "needs 1 milli cpu and 0 MiB memory; 3 nodes full of pods (c: 0 run, d: 0 run and 1 more); 1 node cordoned "
        "(a); 1 node with the taint k=v:NoExecute that the pod does not tolerate (b)"
    )


def test_the_nearest_misses_are_told() -> None:
    nodes = tuple(node(name, gpu(0, T4), cpu_milli=cpu) for name, cpu in (("a", 100), ("b", 300), ("c", 200)))
    got = plan(Snapshot(nodes=nodes, pending=pods(Need(cpu_milli=400), 1))).pending[0].reason
    assert "3 nodes short of cpu for 400 milli (b: 300 left, c: 200 left and 1 more)" in got


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
    got = {(s.placement.profile, bool(s.pods), s.exists) for s in made.layouts[0].slices if s.placement}
    assert ("2g.10gb", True, False) in got
    assert ("3g.20gb", False, True) in got or ("1g.5gb", False, True) in got
    assert made.layouts[0].mig


def test_an_unused_instance_gives_way_where_its_media_engines_are_needed() -> None:
    sharing = Sharing(layout=(Placement(2, 1, "1g.6gb+me"), Placement(3, 1, "1g.6gb")))
    before = only((gpu(0, A30, sharing),), pods(slices("2g.12gb.me"), 1))
    made = plan(before)
    check(before, made.assignments)
    got = [(s.placement.profile, s.pods, s.exists) for s in made.layouts[0].slices if s.placement]
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
    assert [(s.placement.profile, s.pods, s.exists) for s in made.layouts[0].slices if s.placement] == [
        ("1g.5gb", (), True),
        ("2g.10gb", ("default/p-0",), True),
        ("3g.20gb", (), True),
    ]


def test_time_slicing_and_plain_shares_are_warned_about() -> None:
    made = plan(only((gpu(0, T4, REPLICAS),), pods(WHOLE, 2)))
    assert list(made.warnings) == [
        (
            "n GPU 0 (T4): 2 pods share memory that time-slicing does not isolate, in 15360 MiB; any of them can "
            "exhaust it for all: default/p-0, default/p-1"
        )
    ]
    alone = plan(only((gpu(0, T4, REPLICAS),), pods(WHOLE, 1)))
    assert alone.warnings == ()
    sliced = Sharing(modes=(Mode.MIG_TIME_SLICING,), layout=CUT.layout, replicas=(("2g.10gb", 2),), recut=False)
    on_mig = plan(only((gpu(0, A100, sliced),), pods(slices("2g.10gb"), 2)))
    assert "2 pods share memory that mig-time-slicing does not isolate, on 2g.10gb at unit 2" in on_mig.warnings[0]
