"""Several policies, each for its own nodes: which applies where, and the decision for all of them together."""

import math
from collections.abc import Iterable, Mapping

import msgspec

from tessera.core.cluster.snapshot import Node, NodeName
from tessera.core.packing.fit.admission import admits, matches
from tessera.core.packing.partitioning.records import (
    PartitioningDecision,
    PartitioningLimits,
    PartitioningMemory,
    PartitioningState,
)
from tessera.core.packing.partitioning.turn import advance
from tessera.core.workload.need import Need, Pod, SelectorTerm

__all__ = ["ChangeBudget", "PartitioningPolicy", "advance_all", "applying"]


class ChangeBudget(msgspec.Struct, frozen=True):
    """How many GPUs may be changed at once."""

    gpus: int = 0
    """A number; 0 to use `percent`."""
    percent: int = 100
    """Percent of all GPUs, rounded up."""

    def of(self, gpus: int) -> int:
        """Return the number for a policy with this many GPUs, at least one."""
        return self.gpus or max(1, math.ceil(gpus * self.percent / 100))


class PartitioningPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The partitioning settings of the nodes that a policy applies to."""

    name: str
    term: SelectorTerm | None = None
    """Conditions on a node's labels; None for every node."""
    priority: int = 0
    allowed: bool = True
    """Whether managed GPUs may be repartitioned."""
    limits: PartitioningLimits = PartitioningLimits()
    budget: ChangeBudget = ChangeBudget()


def applying(policies: Iterable[PartitioningPolicy], node: Node) -> PartitioningPolicy | None:
    """Return the policy that applies to a node: of those that select it the one of highest priority, then by name."""
    labels = dict(node.labels)
    found = (each for each in policies if each.term is None or matches(each.term, labels, node.name))
    return min(found, key=lambda each: (-each.priority, each.name), default=None)


def advance_all(
    memories: Mapping[str, PartitioningMemory],
    policies: Iterable[PartitioningPolicy],
    observed: PartitioningState,
    now_s: float,
) -> tuple[dict[str, PartitioningMemory], dict[str, PartitioningDecision]]:
    """Return the new state and the actions, by policy; nodes without policy belong to the policy named empty.

    The policy of highest priority places pods first; the others see those that it could not place.
    """
    known = {each.name: each for each in (*policies, PartitioningPolicy(name="", priority=-(1 << 62)))}
    group_of = {node.name: applying(known.values(), node) or known[""] for node in observed.nodes}
    pending = observed.pending
    after: dict[str, PartitioningMemory] = {}
    decisions: dict[str, PartitioningDecision] = {}
    for policy in sorted(known.values(), key=lambda each: (-each.priority, each.name)):
        own = _of_nodes(observed, policy, {name for name, each in group_of.items() if each is policy})
        here, elsewhere = _admitted(pending, own.nodes)
        limits = msgspec.structs.replace(
            policy.limits, most_changing=policy.budget.of(sum(len(node.gpus) for node in own.nodes))
        )
        group = msgspec.structs.replace(own, pending=here)
        after[policy.name], decisions[policy.name] = advance(
            memories.get(policy.name, PartitioningMemory()), group, now_s, limits
        )
        unplaced = after[policy.name].unplaced
        passed_on = {*(pod.key for pod in elsewhere), *unplaced}
        pending = tuple(pod for pod in pending if pod.key in passed_on)
    return after, decisions


def _of_nodes(observed: PartitioningState, policy: PartitioningPolicy, names: set[NodeName]) -> PartitioningState:
    """Return the observation of some nodes."""
    return PartitioningState(
        nodes=tuple(node for node in observed.nodes if node.name in names),
        states=tuple(state for state in observed.states if state.name in names),
        running=tuple(each for each in observed.running if each.assignment.node in names),
        fixed=observed.fixed & names if policy.allowed else frozenset(names),
    )


def _admitted(pending: tuple[Pod, ...], nodes: tuple[Node, ...]) -> tuple[tuple[Pod, ...], tuple[Pod, ...]]:
    """Return the pods that some of these nodes admit, and the others."""
    known: dict[Need, bool] = {}
    for pod in pending:
        if pod.need not in known:
            known[pod.need] = any(admits(pod.need, node) for node in nodes)
    return tuple(pod for pod in pending if known[pod.need]), tuple(pod for pod in pending if not known[pod.need])
