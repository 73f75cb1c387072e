"""Several policies: which applies to a node, and who places a pod first."""

import pytest

from builders.fleets import node, pod_of
from tessera.core.cluster.gpunodestate import GpuNodeState
from tessera.core.cluster.snapshot import Gpu, Node
from tessera.core.gpu.gpumodels import model
from tessera.core.packing.partitioning import (
    ChangeBudget,
    PartitioningDecision,
    PartitioningLimits,
    PartitioningMemory,
    PartitioningPolicy,
    PartitioningState,
    advance_all,
    applying,
)
from tessera.core.workload.need import DeviceRequest, Need, Pod, Requirement, SelectorTerm

A100 = model("A100-40GB")
SOON = PartitioningLimits(idle_s=0, longest_s=0, protect_s=0)
LATE = PartitioningLimits(idle_s=5, longest_s=5, protect_s=0)


def pool(value: str) -> SelectorTerm:
    return SelectorTerm(expressions=(Requirement(key="pool", operator="In", values=(value,)),))


def pooled(name: str, value: str = "") -> Node:
    device = Gpu(index=0, model=A100, memory_mib=A100.memory_mib, uuid=f"GPU-{name}")
    return node(name, device, cpu_milli=1 << 20, **({"pool": value} if value else {}))


def asking(name: str, profile: str = "7g.40gb", **selector: str) -> Pod:
    need = Need(requests=(DeviceRequest(resource=f"nvidia.com/mig-{profile}"),), node_selector=tuple(selector.items()))
    return pod_of(need, f"a/{name}")


def state_of(*nodes: Node, pending: tuple[Pod, ...] = ()) -> PartitioningState:
    states = tuple(GpuNodeState(name=each.name, gpus=each.gpus, reported=True) for each in nodes)
    return PartitioningState(nodes=nodes, states=states, pending=pending)


APPLY = {
    "none selects the node": ((PartitioningPolicy(name="a", term=pool("x")),), None),
    "one without selector is for every node": ((PartitioningPolicy(name="a"),), "a"),
    "the one whose labels the node has": (
        (PartitioningPolicy(name="a", term=pool("x")), PartitioningPolicy(name="b", term=pool("y"))),
        "b",
    ),
    "the one of higher priority": (
        (PartitioningPolicy(name="a", term=pool("y")), PartitioningPolicy(name="b", priority=1)),
        "b",
    ),
    "of equals the first by name": ((PartitioningPolicy(name="b"), PartitioningPolicy(name="a")), "a"),
}


@pytest.mark.parametrize("case", APPLY)
def test_which_policy_applies(case: str) -> None:
    """Exactly one, and always the same."""
    policies, want = APPLY[case]
    found = applying(policies, pooled("n", "y"))
    assert (found.name if found else None) == want


@pytest.mark.parametrize(("budget", "want"), [(ChangeBudget(), 7), (ChangeBudget(percent=10), 1), (ChangeBudget(3), 3)])
def test_budgets(budget: ChangeBudget, want: int) -> None:
    """A number, or a part of all GPUs, rounded up."""
    assert budget.of(7) == want


def test_the_policy_of_higher_priority_places_first() -> None:
    """Others get what it cannot place, each pod once."""
    policies = (
        PartitioningPolicy(name="low", limits=SOON),
        PartitioningPolicy(name="high", term=pool("x"), priority=9, limits=SOON),
    )
    observed = state_of(pooled("other"), pooled("best", "x"), pending=(asking("one"), asking("two"), asking("three")))
    _, decisions = advance_all({}, policies, observed, 0)
    assert [name for name, _ in decisions["high"].desired] == ["best"]
    assert [name for name, _ in decisions["low"].desired] == ["other"]
    assert [len(each.pending or ()) for each in (decisions["high"], decisions["low"])] == [2, 1]


def test_pods_that_a_policy_s_nodes_do_not_admit_are_no_business_of_it() -> None:
    """They go to the others at once, while its own batch is still open."""
    policies = (
        PartitioningPolicy(name="high", term=pool("x"), priority=9, limits=LATE),
        PartitioningPolicy(name="low", limits=SOON),
    )
    observed = state_of(pooled("best", "x"), pooled("other", "y"), pending=(asking("one", pool="y"), asking("two")))
    memories, decisions = advance_all({}, policies, observed, 0)
    assert decisions["high"].desired == ()
    assert [name for name, _ in decisions["low"].desired] == ["other"]
    memories, decisions = advance_all(memories, policies, observed, 5)
    assert [name for name, _ in decisions["high"].desired] == ["best"]
    assert memories["high"].unplaced == frozenset()


def test_what_a_policy_forbids_is_not_done() -> None:
    """Its nodes are never repartitioned; nodes without any policy are."""
    policies = (PartitioningPolicy(name="no", term=pool("x"), allowed=False, limits=SOON),)
    observed = state_of(pooled("a", "x"), pooled("b"), pending=(asking("one"),))
    memories: dict[str, PartitioningMemory] = {}
    decisions: dict[str, PartitioningDecision] = {}
    for now_s in (0, 5, 20):
        memories, decisions = advance_all(memories, policies, observed, now_s)
        assert decisions["no"].desired == ()
    assert [name for name, _ in decisions[""].desired] == ["b"]


def test_the_budget_of_a_policy_is_of_its_own_gpus() -> None:
    """A tenth of a few GPUs is one."""
    policies = (PartitioningPolicy(name="p", limits=SOON, budget=ChangeBudget(percent=10)),)
    observed = state_of(*(pooled(str(i)) for i in range(4)), pending=tuple(asking(str(i)) for i in range(4)))
    _, decisions = advance_all({}, policies, observed, 0)
    assert len(decisions["p"].desired) == 1
