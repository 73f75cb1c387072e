"""The smallest fleet, against enumeration of all smaller ones, and what is claimed about it."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.fleets import A30, A100, T4, amount, check, gpu, node, plain_share, pod_of, pods, slices
from tessera.core.cluster.snapshot import Node, Snapshot
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.packing import sizing
from tessera.core.packing.exact import assign
from tessera.core.packing.sizing import NodeType, SizingRules, smallest_fleet
from tessera.core.workload.kubernetesnames import HOSTNAME
from tessera.core.workload.need import DeviceRequest, Isolation, Need, Pod

WHOLE = Need(requests=(DeviceRequest(resource="nvidia.com/gpu"),))
THREE = Need(requests=(DeviceRequest(resource="nvidia.com/gpu", count=3),))
ONE = NodeType(node=node("one-0", gpu(0)), cost=1.0)
FOUR = NodeType(node=node("four", gpu(0), gpu(1), gpu(2), gpu(3)), cost=4.0)
OLD = NodeType(node=node("old", gpu(0, T4), gpu(1, T4)), cost=0.5)
FIXED = NodeType(
    node=node(
        "fixed", gpu(0, A100, Sharing(modes=(Mode.MIG,), layout=(Placement(0, 4, "3g.20gb"),), allow_repartition=False))
    ),
    cost=1.0,
)
SMALL = NodeType(node=node("small", gpu(0), cpu_milli=2000), cost=1.0)

# Keyed by a sentence: node types, pods, nodes of each type, what is pending.
CASES: dict[str, tuple[tuple[NodeType, ...], tuple[Pod, ...], tuple[int, ...], int]] = {
    "nothing is asked": ((ONE,), (), (0,), 0),
    "sixty instances, seven a GPU": ((ONE, FOUR), pods(slices("1g.5gb", cpu_milli=0), 60), (1, 2), 0),
    "of equal cost the fewest nodes": ((ONE, FOUR), pods(WHOLE, 4), (0, 1), 0),
    "three of four GPUs leave one useless": ((FOUR,), pods(THREE, 3), (3,), 0),
    "the cheaper type where it serves": ((ONE, OLD), pods(plain_share(7000), 4), (0, 1), 0),
    "MIG only where there is MIG": ((ONE, OLD), (*pods(slices("3g.20gb"), 2, "m"), *pods(WHOLE, 2, "w")), (1, 1), 0),
    "cpu limits a node": ((SMALL,), pods(slices("1g.5gb"), 5), (3,), 0),
    "what fits on no node stays pending": ((ONE,), (*pods(THREE, 1, "t"), *pods(WHOLE, 1)), (1,), 1),
    "a fixed layout offers what it has": ((FIXED,), pods(slices("3g.20gb"), 2), (2,), 0),
    "nothing fits": ((ONE, OLD), pods(THREE, 2), (0, 0), 2),
    "a pod that names a node waits for it": (
        (ONE,),
        (*pods(WHOLE, 1), pod_of(Need(requests=WHOLE.requests, node_name="one-0"))),
        (1,),
        1,
    ),
}


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_the_smallest_fleet(case: str, exact: bool) -> None:
    types, pending, want, want_pending = CASES[case]
    got = smallest_fleet(types, pending, SizingRules(exact=exact))
    assert (got.counts, len(got.plan.pending)) == (want, want_pending)
    assert got.optimal
    assert got.cost == sum(each.cost * count for each, count in zip(types, want, strict=True))
    check(got.snapshot, got.plan.assignments)


def test_nodes_are_numbered_by_the_name_of_their_type() -> None:
    labeled = Node(
        name=node("dgx-7").name,
        cpu_milli=1,
        memory_mib=1,
        gpus=(gpu(0),),
        labels=((HOSTNAME, "dgx-7"), ("zone", "a")),
    )
    types = (NodeType(node=labeled, cost=1.0), NodeType(node=node("dgx", gpu(0, T4)), cost=1.0))
    need = Need(requests=(DeviceRequest(resource="nvidia.com/mig-7g.40gb"),))
    got = smallest_fleet(
        types, (*pods(need, 2, "m"), *pods(Need(requests=WHOLE.requests, models=("T4",)), 1, "w"))
    ).snapshot
    assert [each.name for each in got.nodes] == ["dgx-0", "dgx-1", "dgx-2"]
    assert got.nodes[1].labels == ((HOSTNAME, "dgx-1"), ("zone", "a"))
    assert [each.gpus for each in types] == ["1xA100-40GB", "1xT4"]


NEEDS = (
    slices("1g.5gb"),
    slices("2g.10gb"),
    slices("3g.20gb", 2),
    WHOLE,
    amount(9000),
    amount(15_000, Isolation.HARDWARE),
    plain_share(6000),
)


def holds(types: Sequence[NodeType], counts: Sequence[int], pending: tuple[Pod, ...]) -> bool:
    nodes = tuple(
        Node(name=node(f"{t}-{n}").name, cpu_milli=each.node.cpu_milli, memory_mib=1 << 20, gpus=each.node.gpus)
        for t, (each, count) in enumerate(zip(types, counts, strict=True))
        for n in range(count)
    )
    return len(assign(Snapshot(nodes=nodes, pending=pending))[0]) == len(pending)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(NEEDS), min_size=1, max_size=5))
def test_no_cheaper_fleet_holds_the_pods_where_that_is_claimed(needs: list[Need]) -> None:
    types = (
        NodeType(node=node("a", gpu(0)), cost=2.0),
        NodeType(node=node("b", gpu(0, A30), gpu(1, A30)), cost=3.0),
    )
    pending = tuple(pod_of(need, f"ns/{n}") for n, need in enumerate(needs))
    got = smallest_fleet(types, pending, SizingRules(exact=True))
    left = {each.pod for each in got.plan.pending}
    held = tuple(pod for pod in pending if pod.key not in left)
    cheaper = [c for c in itertools.product(range(6), repeat=2) if 2 * c[0] + 3 * c[1] < got.at_least]
    assert not [counts for counts in cheaper if holds(types, counts, held)]


def test_after_the_tries_nodes_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizing, "_MOST_PROVED", 0)
    monkeypatch.setattr(sizing, "_MOST_TRIES", 0)
    got = smallest_fleet((FOUR,), pods(THREE, 4))
    assert (got.counts, got.at_least, len(got.plan.pending)) == ((4,), 12, 0)


def test_nodes_that_are_not_needed_are_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizing, "_MOST_TRIES", 0)
    pending = (*pods(WHOLE, 1, "w"), *pods(plain_share(1000), 1, "s"))
    got = smallest_fleet((OLD,), pending, SizingRules(limit_s=1e-9))
    assert (got.counts, len(got.plan.pending)) == ((1,), 0)
    mixed = smallest_fleet((FOUR, OLD), (*pods(slices("3g.20gb"), 1, "m"), *pending), SizingRules(limit_s=1e-9))
    assert (mixed.counts, len(mixed.plan.pending)) == ((1, 0), 0)


def test_with_many_needs_only_whether_one_fits_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizing, "_MOST_PROVED", 0)
    got = smallest_fleet((FOUR,), pods(THREE, 4))
    assert got.counts == (4,)
    assert (got.at_least, got.cost) == (12, 16), "four GPUs hold four thirds of a pod, as far as the pool knows"
    assert not got.optimal


def test_the_programs_of_all_fleets_share_one_budget() -> None:
    """Where nothing of it is left, a fleet is tried by the policy alone."""
    pending = (*pods(THREE, 5), *pods(slices("2g.10gb"), 4, "s"))
    got = smallest_fleet((FOUR,), pending, SizingRules(exact=True, limit_s=1e-9))
    assert (got.plan.bound, len(got.plan.pending), got.optimal) == (None, 0, False)


def test_a_fleet_that_was_found_in_no_time_has_no_node_that_is_left_empty() -> None:
    pending = (*pods(slices("3g.20gb"), 1, "t"), *pods(slices("2g.10gb"), 1, "s"))
    got = smallest_fleet((FOUR,), pending, SizingRules(limit_s=1e-9))
    assert (got.counts, len(got.plan.pending)) == ((1,), 0)


@pytest.mark.parametrize("proved", [0, sizing._MOST_PROVED])
def test_without_time_each_need_has_nodes_of_its_own(monkeypatch: pytest.MonkeyPatch, proved: int) -> None:
    """Whether no time is left for what one node holds, or for the first fleet."""
    monkeypatch.setattr(sizing, "_MOST_PROVED", proved)
    pending = (*pods(WHOLE, 5, "w"), *pods(slices("1g.5gb", cpu_milli=0), 8, "s"))
    got = smallest_fleet((ONE, OLD), pending, SizingRules(limit_s=1e-9))
    assert not got.plan.pending
    assert got.at_least <= got.cost
