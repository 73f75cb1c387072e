"""Victims: the cheapest set of pods that lets another fit, never more, compared with trying every set."""

import itertools
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.fleets import A100, T4, amount, gpu, node, slices
from builders.mixedclusters import World, worlds
from tessera.core.cluster.snapshot import Node, NodeName
from tessera.core.packing.ledger import Ledger, LedgerEntry
from tessera.core.packing.preempt import victims
from tessera.core.workload.need import Isolation, Need, PodKey


def fits(spec: Node, pods: Sequence[LedgerEntry], need: Need) -> bool:
    ledger = Ledger("first-fit")
    ledger.put_node(spec)
    for pod in pods:
        ledger.put_pod(pod)
    requested = need.cpu_milli, need.memory_mib, 1
    return ledger.fits(need, spec.name) and all(map(int.__ge__, ledger.free_resources(spec.name), requested))


def cost(pods: Sequence[LedgerEntry]) -> tuple[int, int, int]:
    """As kube-scheduler compares: highest priority, sum counted from the lowest, number."""
    priorities = [pod.priority for pod in pods]
    return max(priorities, default=-(1 << 31)), sum(priority + (1 << 31) for priority in priorities), len(pods)


def filled(spec: Node, needs: Sequence[Need], priorities: Sequence[int]) -> Ledger:
    """Return the ledger of one node with pods of these needs as long as they fit."""
    ledger = Ledger("first-fit")
    ledger.put_node(spec)
    for number, (need, priority) in enumerate(zip(needs, priorities, strict=False)):
        shares = ledger.choose(need, spec.name)
        if not isinstance(shares, str):
            ledger.put_pod(LedgerEntry(f"{number}", PodKey(f"default/{number}"), spec.name, need, shares, priority))
    return ledger


@settings(max_examples=60, deadline=None)
@given(world=worlds, priorities=st.lists(st.integers(-2, 3), min_size=7, max_size=7))
def test_victims_are_the_cheapest_of_all_sets_and_none_can_be_left_out(world: World, priorities: list[int]) -> None:
    spec, kinds, rng = msgspec.structs.replace(world[0][0], max_pods=6), world[1], world[2]
    ledger = filled(spec, rng.choices(kinds, k=7), priorities)
    pods = ledger.pods_on(spec.name)
    for need in kinds:
        removable = [str(pod.id) for pod in pods if pod.id != "3"]
        got = victims(ledger, need, 2, spec.name, removable)
        able = [pod for pod in pods if pod.id in removable and pod.priority < 2]
        sets = [gone for n in range(len(able) + 1) for gone in itertools.combinations(able, n)]
        costs = [cost(gone) for gone in sets if fits(spec, [pod for pod in pods if pod not in gone], need)]
        assert (got is None) == (not costs)
        if got is not None:
            gone = [pod for pod in pods if pod.id in got]
            assert cost(gone) == min(costs)
            assert fits(spec, [pod for pod in pods if pod not in gone], need)
            assert not any(fits(spec, [pod for pod in pods if pod not in gone or pod is kept], need) for kept in gone)


CASES = {
    "nobody goes where it fits": ([amount(4_000)] * 2, [0, 0], amount(4_000), ()),
    "nobody of the same priority goes": ([amount(12_000)] * 2, [5, 5], amount(12_000), None),
    "the cheaper GPU is freed": ([amount(12_000)] * 2, [3, 1], amount(12_000), ("1",)),
    "one of two is enough": ([amount(7_000)] * 4, [1, 1, 1, 1], amount(7_000), ("0",)),
    "all of a GPU go for a whole one": (
        [amount(7_000)] * 4,
        [2, 2, 1, 2],
        amount(15_000, Isolation.HARDWARE),
        ("2", "3"),
    ),
    "a node without such a GPU has none": ([amount(7_000)] * 4, [1, 1, 1, 1], slices("1g.5gb"), None),
}


@pytest.mark.parametrize(("needs", "priorities", "need", "want"), CASES.values(), ids=CASES)
def test_victims(needs: list[Need], priorities: list[int], need: Need, want: tuple[str, ...] | None) -> None:
    ledger = filled(node("n", gpu(0, T4), gpu(1, T4)), needs, priorities)
    assert victims(ledger, need, 5, "n", [str(i) for i in range(4)]) == want


def test_a_node_that_is_not_known_has_no_victims() -> None:
    assert victims(Ledger(), amount(1), 5, "n", ["a"]) is None


def test_many_unlike_pods_on_one_gpu_still_give_a_set_of_which_none_can_be_left_out() -> None:
    spec = node("n", gpu(0, A100), gpu(1, A100))
    needs = [amount(900 + 50 * (i % 20)) for i in range(60)]
    ledger = filled(spec, needs, [1] * 60)
    pods = ledger.pods_on("n")
    need = amount(18_000, count=2)
    got = victims(ledger, need, 9, "n", [str(pod.id) for pod in pods])
    assert got is not None
    left = [pod for pod in pods if pod.id not in got]
    assert fits(spec, left, need)
    assert not any(fits(spec, [*left, pod], need) for pod in pods if pod.id in got)
    assert NodeName("n") == spec.name
