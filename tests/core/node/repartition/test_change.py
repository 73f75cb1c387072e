"""The cheapest change, against a shortest-path search over single steps on every model."""

import itertools
import re
from collections import Counter, deque
from collections.abc import Mapping
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.gpufacts import at
from tessera.core.gpu.gpumodels import CATALOG, GpuModel, model
from tessera.core.gpu.mig import Layout, Placement, all_layouts, counts_of, is_legal, placements
from tessera.core.node.repartition import Create, Destroy, Repartition, RepartitionRefusal, plan_repartition, restorable
from tessera.errors import InvalidInput

A30, H100, RTX_PRO_6000 = model("A30"), model("H100-80GB"), model("RTX-PRO-6000")
MIG_MODELS = tuple(each for each in CATALOG if each.memory_slices)
every_mig_model = pytest.mark.parametrize("gpu", MIG_MODELS, ids=lambda each: each.name)


@cache
def neighbors(gpu: GpuModel) -> Mapping[frozenset[Placement], tuple[tuple[int, frozenset[Placement]], ...]]:
    """Return, for every layout, what one step makes of it, and 1 where the step destroys."""
    nodes = {frozenset(layout) for layout in all_layouts(gpu)}
    return {
        node: (
            *((1, node - {each}) for each in node),
            *((0, node | {each}) for each in placements(gpu) if each not in node and node | {each} in nodes),
        )
        for node in nodes
    }


def fewest_destroyed(gpu: GpuModel, present: Layout, used: Layout) -> dict[frozenset[Placement], int]:
    """Return how many instances must be destroyed to reach each layout by legal steps that spare the used ones."""
    start, spared = frozenset(present), frozenset(used)
    cost = {start: 0}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        for extra, other in neighbors(gpu)[node]:
            if spared <= other and cost[node] + extra < cost.get(other, 1 << 30):
                cost[other] = cost[node] + extra
                (queue.append if extra else queue.appendleft)(other)
    return cost


def check(gpu: GpuModel, present: Layout, used: Layout, counts: Mapping[str, int]) -> None:
    """Check the plan for the counts against the search over steps."""
    reachable = fewest_destroyed(gpu, present, used)
    want = Counter(counts)
    costs = [cost for node, cost in reachable.items() if Counter(each.profile for each in node) == want]
    plan = plan_repartition(gpu, present, used, counts)
    if isinstance(plan, RepartitionRefusal):
        assert not costs
        check_refusal(gpu, used, counts, plan)
        return
    destroyed = sum(isinstance(step, Destroy) for step in plan.steps)
    assert destroyed == min(costs)
    check_steps(gpu, plan)
    assert Counter(each.profile for each in plan.target) == want


def check_steps(gpu: GpuModel, plan: Repartition) -> None:
    """Check that every step is possible when its turn comes, spares used instances, and the last makes the target."""
    layout = set(plan.present)
    for step in plan.steps:
        assert step.placement not in plan.used
        assert (step.placement in layout) == isinstance(step, Destroy)
        layout ^= {step.placement}
        assert is_legal(gpu, tuple(layout))
    assert tuple(sorted(layout)) == plan.target


def check_refusal(gpu: GpuModel, used: Layout, counts: Mapping[str, int], refusal: RepartitionRefusal) -> None:
    """Check that without its blockers the target could be had, and without any fewer it could not."""
    assert set(refusal.blockers) <= set(used)
    for count in range(len(used) + 1):
        for gone in itertools.combinations(used, count):
            left = tuple(each for each in used if each not in gone)
            if isinstance(plan_repartition(gpu, left, left, counts), Repartition):
                assert len(refusal.blockers) == count
                freed = tuple(each for each in used if each not in refusal.blockers)
                assert isinstance(plan_repartition(gpu, freed, freed, counts), Repartition)
                return
    assert refusal.blockers == ()


def subset(layout: Layout) -> st.SearchStrategy[Layout]:
    return st.tuples(*(st.booleans() for _ in layout)).map(lambda keep: tuple(itertools.compress(layout, keep)))


@every_mig_model
@settings(max_examples=20)
@given(st.data())
def test_the_fewest_instances_are_destroyed_and_no_used_one(gpu: GpuModel, data: st.DataObject) -> None:
    layouts = st.sampled_from(all_layouts(gpu))
    present = data.draw(layouts, "present")
    used = data.draw(subset(present), "used")
    target = data.draw(layouts, "target")
    grown = data.draw(st.sampled_from([target, tuple(sorted({*used, *target}))]), "desired")
    check(
        gpu, present, used, dict(counts_of(gpu, grown)) if is_legal(gpu, grown) else Counter(p.profile for p in grown)
    )


def test_on_the_smallest_gpu_every_case_is_right() -> None:
    """Every layout, every used part of it, and the counts of every layout as the target."""
    targets = {counts_of(A30, layout) for layout in all_layouts(A30) if all("+me" not in p.profile for p in layout)}
    for present in all_layouts(A30):
        for count in range(len(present) + 1):
            for used in itertools.combinations(present, count):
                for counts in targets:
                    check(A30, present, used, dict(counts))


@every_mig_model
@settings(max_examples=20)
@given(st.data())
def test_a_target_layout_is_reached_exactly_or_refused(gpu: GpuModel, data: st.DataObject) -> None:
    layouts = st.sampled_from(all_layouts(gpu))
    present, target = data.draw(layouts, "present"), data.draw(layouts, "target")
    used = data.draw(subset(present), "used")
    plan = plan_repartition(gpu, present, used, target)
    assert isinstance(plan, Repartition) == set(target).issuperset(used)
    if isinstance(plan, Repartition):
        assert plan.target == target
        assert {step.placement for step in plan.steps} == set(present) ^ set(target)
        check_steps(gpu, plan)
    else:
        assert plan.blockers == tuple(each for each in used if each not in target)


@every_mig_model
@settings(max_examples=20)
@given(st.data())
def test_planning_again_after_the_change_changes_nothing(gpu: GpuModel, data: st.DataObject) -> None:
    layouts = st.sampled_from(all_layouts(gpu))
    counts = dict(counts_of(gpu, data.draw(layouts, "target")))
    plan = plan_repartition(gpu, data.draw(layouts, "present"), (), counts)
    assert isinstance(plan, Repartition)
    again = plan_repartition(gpu, plan.target, (), counts)
    assert isinstance(again, Repartition)
    assert again.steps == ()


def test_present_instances_are_kept_where_they_are() -> None:
    present = at(H100, ("1g.10gb", 0), ("2g.20gb", 2), ("3g.40gb", 4))
    plan = plan_repartition(H100, present, (), {"2g.20gb": 2, "3g.40gb": 1})
    assert isinstance(plan, Repartition)
    assert plan.steps == (Destroy(present[0]), Create(at(H100, ("2g.20gb", 0))[0]))
    assert plan.target == at(H100, ("2g.20gb", 0), ("2g.20gb", 2), ("3g.40gb", 4))


@pytest.mark.parametrize(
    ("gpu", "used", "target", "want"),
    [
        pytest.param(
            H100,
            at(H100, ("1g.10gb", 2)),
            {"1g.10gb": 1, "4g.40gb": 1},
            "1g.10gb at 2 is in use and occupies memory slice 2, needed for 4g.40gb at 0",
            id="one unit held",
        ),
        pytest.param(
            H100,
            at(H100, ("2g.20gb", 0), ("2g.20gb", 4)),
            {"3g.40gb": 2},
            "2g.20gb at 0 is in use and occupies memory slices 0, 1, needed for 3g.40gb at 0; "
            "2g.20gb at 4 is in use and occupies memory slices 4, 5, needed for 3g.40gb at 4",
            id="two users in the way",
        ),
        pytest.param(
            H100,
            at(H100, ("1g.10gb+me", 6)),
            at(H100, ("1g.10gb+me", 0)),
            "1g.10gb+me at 6 is in use and has the media engines, needed for 1g.10gb+me at 0",
            id="media engines held",
        ),
        pytest.param(
            RTX_PRO_6000,
            at(RTX_PRO_6000, ("1g.24gb+me.all", 9)),
            at(RTX_PRO_6000, ("2g.48gb", 0), ("1g.24gb-me", 6)),
            "1g.24gb+me.all at 9 is in use and has the media engines, needed for 2g.48gb at 0",
            id="all media engines held",
        ),
        pytest.param(
            H100,
            at(H100, ("1g.10gb", 6)),
            at(H100, ("3g.40gb", 0)),
            "1g.10gb at 6 is in use, and the target has no room for it",
            id="a user outside the target",
        ),
        pytest.param(H100, (), {"4g.40gb": 2, "1g.10gb": 0}, "no layout of H100-80GB has 2 x 4g.40gb", id="too many"),
        pytest.param(A30, (), {"3g.40gb": 1}, "no layout of A30-24GB has 1 x 3g.40gb", id="another GPU's profile"),
        pytest.param(
            RTX_PRO_6000,
            (),
            at(RTX_PRO_6000, ("2g.48gb", 3)),
            "the target is no layout: 2g.48gb takes 6 memory slices at start 0, 6, not 6 at 3",
            id="a target that is no layout",
        ),
    ],
)
def test_a_refusal_says_what_is_in_the_way(
    gpu: GpuModel, used: Layout, target: Mapping[str, int] | Layout, want: str
) -> None:
    plan = plan_repartition(gpu, used, used, target)
    assert isinstance(plan, RepartitionRefusal)
    assert plan.reason == want


@pytest.mark.parametrize(
    ("present", "used", "want"),
    [
        pytest.param(
            at(H100, ("2g.20gb", 6)),
            (),
            "present MIG layout of H100-80GB: 2g.20gb takes 2 memory slices at start 0, 2, 4, not 2 at 6",
            id="a present layout that cannot be",
        ),
        pytest.param(
            at(H100, ("2g.20gb", 4)),
            at(H100, ("2g.20gb", 2)),
            "2g.20gb at 2 do not exist: observe the GPU again: it has 2g.20gb at 4",
            id="a used instance that does not exist",
        ),
        pytest.param(
            (), at(H100, ("2g.20gb", 2)), "observe the GPU again: it has no instance", id="no instance at all"
        ),
    ],
)
def test_an_observation_that_contradicts_itself_is_wrong_input(present: Layout, used: Layout, want: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(want)):
        plan_repartition(H100, present, used, {})


@every_mig_model
@settings(max_examples=20)
@given(st.data())
def test_what_is_restorable_is_the_used_instances_and_all_else_that_fits(gpu: GpuModel, data: st.DataObject) -> None:
    layouts = st.sampled_from(all_layouts(gpu))
    former, used = data.draw(layouts, "former"), data.draw(layouts, "used")
    found = restorable(gpu, former, used)
    assert is_legal(gpu, found)
    assert set(used) <= set(found) <= {*used, *former}
    assert not any(is_legal(gpu, (*found, each)) for each in former if each not in found)
    assert restorable(gpu, former, tuple(each for each in used if each in former)) == former
