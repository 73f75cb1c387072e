"""The smallest fleet of given node types that holds a set of pods: how many nodes of each type.

A lower bound comes from an integer program that pools the capacity of all nodes of a type: no fleet that holds the pods
costs less, because a placement node by node is also one in the pool. Its optimum is the first fleet that is tried. If
the planner cannot place all pods there, the next is the cheapest that has more nodes of some type than each that
failed. After some tries nodes are added for the remaining pods, and unneeded ones removed. The bound
rises with each proven failure; a fleet is called the smallest only if it costs no more than the bound.
"""

import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from tessera.core.cluster.snapshot import Gpu, Node, NodeName, Snapshot
from tessera.core.gpu.mig import maximal_counts
from tessera.core.gpu.sharing import Mode, Option
from tessera.core.packing.exact import assign, free_devices, made_modes, ways
from tessera.core.packing.linear import LinearProgram, TimeBudget
from tessera.core.packing.plan import Plan, Progress, plan
from tessera.core.workload.kubernetesnames import HOSTNAME
from tessera.core.workload.need import Need, Pod

__all__ = ["FleetSizing", "NodeType", "SizingRules", "smallest_fleet"]

_MOST_TRIES: Final = 12
"""Fleets that are tried, the cheapest first, before nodes are added for the remaining pods."""
_MOST_PROVED: Final = 64
"""Pairs of need and node type for which it is proven how many pods one node holds; for others, only whether one."""
_MOST_PODS: Final = 512
"""Most pods of one need that are tried on one node."""
_MOST_S: Final = 10.0
"""Time limit of one integer program."""
_PART: Final = 1 / 4
"""Parts of the remaining time, for what one node holds, and for each program after that."""
_EASE: Final = 1e-6
"""HiGHS' tolerance."""

_Counts: TypeAlias = tuple[int, ...]
"""Nodes of each type."""
_Terms: TypeAlias = dict[int, float]


class NodeType(msgspec.Struct, frozen=True, kw_only=True):
    """A node type, of which there may be any number of nodes."""

    node: Node
    cost: float
    """Of one node: its GPUs, or their price."""

    @property
    def gpus(self) -> str:
        """Its GPUs in short form: `8xH100-80GB`, several models with a plus sign between."""
        models = Counter(gpu.model.name for gpu in self.node.gpus)
        return "+".join(f"{count}x{name}" for name, count in models.items())


class SizingRules(msgspec.Struct, frozen=True, kw_only=True):
    """How fleets are tried."""

    policy: str = "tessera"
    exact: bool = False
    """Whether an integer program decides where the policy does not place all pods."""
    limit_s: float = 60.0
    """Time of all integer programs together."""


class FleetSizing(msgspec.Struct, frozen=True, kw_only=True):
    """How many nodes of each type hold the pods, and the proven bound."""

    counts: tuple[int, ...]
    """By type, in the given order; all 0 if no node holds any of the pods."""
    cost: float
    at_least: float
    """No fleet of these types that holds the pods costs less."""
    snapshot: Snapshot
    """The fleet with the pods pending; if no node holds any of them, one node of each type."""
    plan: Plan

    @property
    def optimal(self) -> bool:
        """Whether it is proven that no fleet of these types costs less."""
        return self.cost <= self.at_least + _EASE


def smallest_fleet(
    types: Sequence[NodeType],
    pending: tuple[Pod, ...],
    rules: SizingRules | None = None,
    progress: Progress = lambda _step, _done, _total: None,
) -> FleetSizing:
    """Return the cheapest fleet found that holds the pods; those that fit on no node of any type stay pending.

    Takes the time of a plan for each fleet that is tried, and of some integer programs, within `rules`.
    """
    rules = rules or SizingRules()
    budget = TimeBudget(rules.limit_s)
    progress("computing the capacity of one node", 0, 0)
    caps = dict(_caps([each.node for each in types], pending, budget.part(_PART * budget.left_s)))
    able = {need for need, _ in caps}
    search = _Search(types, tuple(pod for pod in pending if pod.need in able), caps, rules, budget)
    counts = search.run(progress)
    snapshot = Snapshot(nodes=search.nodes(counts if any(counts) else (1,) * len(types)), pending=pending)
    return FleetSizing(
        counts=counts,
        cost=search.cost(counts),
        at_least=search.at_least,
        snapshot=snapshot,
        plan=search.plan(snapshot),
    )


def _caps(nodes: Sequence[Node], pending: Sequence[Pod], budget: TimeBudget) -> Iterator[tuple[tuple[Need, int], int]]:
    """Yield by need and type the most pods that one node of the type holds, if it holds one."""
    like: defaultdict[Need, list[Pod]] = defaultdict(list)
    for pod in pending:
        like[pod.need].append(pod)
    proved = len(like) * len(nodes) <= _MOST_PROVED
    unnamed = [_named(node, _stem(node.name), "any") for node in nodes]  # a pod that names a node waits for that node
    pairs = list(itertools.product(like.items(), enumerate(unnamed)))
    for number, ((need, pods), (t, node)) in enumerate(pairs):
        if plan(Snapshot(nodes=(node,), pending=(pods[0],))).assignments:
            few = tuple(pods[:_MOST_PODS])
            most = len(few)
            if proved and budget.left_s > 0:
                own = budget.part(min(_MOST_S, budget.left_s / (len(pairs) - number)))
                most = assign(Snapshot(nodes=(node,), pending=few), budget=own)[1].at_most
            yield (need, t), len(pods) if most == len(few) else most


class _Search:
    """The fleets that were tried, and the bound for all."""

    def __init__(
        self,
        types: Sequence[NodeType],
        pods: tuple[Pod, ...],
        caps: Mapping[tuple[Need, int], int],
        rules: SizingRules,
        budget: TimeBudget,
    ) -> None:
        self.types = types
        self.pods = pods
        self.rules = rules
        self.at_least = 0.0
        self._budget = budget
        self._caps = caps
        self._failed: list[_Counts] = []

    def run(self, progress: Progress) -> _Counts:
        """Return a fleet that holds the pods."""
        counts, self.at_least = self._cheapest(self.pods)
        proved = True
        for number in range(_MOST_TRIES):
            progress("trying fleets", number, _MOST_TRIES)
            planned = self._planned(counts)
            if not planned.pending:
                return self._used(counts, planned)
            self._failed.append(counts)
            proved = proved and planned.bound is not None and planned.bound.at_most < len(self.pods)
            counts, bound = self._cheapest(self.pods)
            self.at_least = max(self.at_least, bound) if proved else self.at_least
        return self._without_spare(self._with_more(counts, progress), progress)

    def cost(self, counts: _Counts) -> float:
        """Return what a fleet costs."""
        return sum(each.cost * count for each, count in zip(self.types, counts, strict=True))

    def nodes(self, counts: _Counts) -> tuple[Node, ...]:
        """Return the nodes of a fleet, numbered by the name of their type."""
        numbers: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)
        every = (each.node for each, count in zip(self.types, counts, strict=True) for _ in range(count))
        return tuple(_named(node, stem, next(numbers[stem])) for node in every for stem in [_stem(node.name)])

    def plan(self, snapshot: Snapshot) -> Plan:
        """Return the plan of a snapshot, by the integer program too where the policy does not place all pods."""
        planned = plan(snapshot, policy=self.rules.policy)
        if planned.pending and self.rules.exact and self._budget.left_s > 0:
            planned = plan(snapshot, policy=self.rules.policy, exact=True, budget=self._next_budget())
        return planned

    def _next_budget(self) -> TimeBudget:
        """Return the time limit of the next integer program."""
        return self._budget.part(min(_MOST_S, _PART * self._budget.left_s))

    def _planned(self, counts: _Counts) -> Plan:
        return self.plan(Snapshot(nodes=self.nodes(counts), pending=self.pods))

    def _used(self, counts: _Counts, planned: Plan) -> _Counts:
        """Return a fleet without the nodes that a plan leaves empty, of which an early solution has many."""
        nodes, placed = iter(self.nodes(counts)), {each.node for each in planned.assignments}
        used = tuple(sum(node.name in placed for node in itertools.islice(nodes, count)) for count in counts)
        return counts if used == counts or self._planned(used).pending else used

    def _with_more(self, counts: _Counts, progress: Progress) -> _Counts:
        """Return a fleet with nodes added until it holds the pods."""
        self._failed.clear()
        # Ends: at the latest when each pod has an empty node that can hold it, and then the planner places it.
        while pending := self._planned(counts).pending:
            progress("adding nodes", len(self.pods) - len(pending), len(self.pods))
            waiting = {each.pod for each in pending}
            more, _ = self._cheapest([pod for pod in self.pods if pod.key in waiting])
            counts = tuple(a + b for a, b in zip(counts, more, strict=True))
        return counts

    def _without_spare(self, counts: _Counts, progress: Progress) -> _Counts:
        """Return a fleet without the nodes that can be removed one by one, the most expensive first."""
        for t in sorted(range(len(counts)), key=lambda t: -self.types[t].cost):
            while counts[t]:
                progress("taking nodes away", 0, 0)
                fewer = (*counts[:t], counts[t] - 1, *counts[t + 1 :])
                if self._planned(fewer).pending:
                    break
                counts = fewer
        return counts

    def _cheapest(self, pods: Sequence[Pod]) -> tuple[_Counts, float]:
        """Return the cheapest fleet whose pooled nodes hold these pods, of several the one of fewest nodes; its bound.

        If no fleet is found in time, one in which each need has nodes of its own.
        """
        requested = Counter(pod.need for pod in pods)
        if self._budget.left_s <= 0:
            return self._apart(requested), 0.0
        pool = _Pool([each.node for each in self.types], requested, self._caps)
        for failed in self._failed:
            pool.forbid(failed)
        costs = {n: each.cost for n, each in zip(pool.nodes, self.types, strict=True)}
        own = self._next_budget()
        found = pool.program.minimize(costs, limit_s=own.left_s)
        own.spend(found.took_s)
        bound = max(0.0, found.bound)
        if all(each.cost.is_integer() for each in self.types):
            bound = float(math.ceil(bound - _EASE))
        if not found.feasible:
            return self._apart(requested), bound
        pool.program.row(costs, high=found.objective + _EASE)
        few = pool.program.minimize(dict.fromkeys(pool.nodes, 1.0), limit_s=max(0.0, own.left_s), start=found.values)
        own.spend(few.took_s)
        values = few.values or found.values
        return tuple(round(values[n]) for n in pool.nodes), bound

    def _apart(self, requested: Mapping[Need, int]) -> _Counts:
        counts = [0] * len(self.types)
        for need, count in requested.items():
            pod_share = [t for t in range(len(self.types)) if (need, t) in self._caps]
            t = min(pod_share, key=lambda t: self.types[t].cost / self._caps[need, t])
            counts[t] += -(-count // self._caps[need, t])
        return tuple(max(count, *(f[t] + 1 for f in self._failed), 0) for t, count in enumerate(counts))


class _Pool:
    """The program over counts of nodes, in which the nodes of a type are one."""

    def __init__(
        self, nodes: Sequence[Node], requested: Mapping[Need, int], caps: Mapping[tuple[Need, int], int]
    ) -> None:
        self.program = LinearProgram()
        self.nodes = [self.program.variable(integer=True) for _ in nodes]
        placed: defaultdict[Need, _Terms] = defaultdict(dict)
        for t, node in enumerate(nodes):
            pods = {
                need: self.program.variable(high=count, integer=True)
                for need, count in requested.items()
                if (need, t) in caps
            }
            for need, v in pods.items():
                placed[need][v] = 1.0
                self.program.row({v: 1.0, self.nodes[t]: -float(caps[need, t])}, high=0)
            self._type(t, node, pods)
        for need, count in requested.items():
            self.program.row(placed[need], low=count)

    def forbid(self, failed: _Counts) -> None:
        """Exclude the fleets that have no more nodes of any type than this one."""
        more = [self.program.variable(high=1, integer=True) for _ in failed]
        for n, count, v in zip(self.nodes, failed, more, strict=True):
            self.program.row({n: 1.0, v: -float(count + 1)}, low=0)
        self.program.row(dict.fromkeys(more, 1.0), low=1)

    def _type(self, t: int, node: Node, pods: Mapping[Need, int]) -> None:
        """Tie the pods on the nodes of a type to their capacity."""
        for total, takes in (
            (node.cpu_milli, {v: need.cpu_milli for need, v in pods.items()}),
            (node.memory_mib, {v: need.memory_mib for need, v in pods.items()}),
            (node.max_pods, dict.fromkeys(pods.values(), 1)),
        ):
            self.program.row({v: take / max(total, 1) for v, take in takes.items()} | {self.nodes[t]: -1.0}, high=0)
        alike = Counter(msgspec.structs.replace(gpu, index=0, uuid="") for gpu in node.gpus)
        served: defaultdict[Gpu, list[tuple[Option, int]]] = defaultdict(list)
        for need, v in pods.items():
            for request in need.requests:
                devices = {v: -float(request.count)}
                for gpu in alike:
                    here = [(option, self.program.variable()) for option in ways(need, request, gpu)]
                    served[gpu] += here
                    devices |= {each: 1.0 for _, each in here}
                self.program.row(devices, low=0, high=0)
        for gpu, number in alike.items():
            self._gpus(t, gpu, number, served[gpu])

    def _gpus(self, t: int, gpu: Gpu, number: int, served: Sequence[tuple[Option, int]]) -> None:
        """Tie the served devices to the GPUs of one kind, a fixed number on each node of the type."""
        for option, free in free_devices(gpu, ()).items():
            here = {v: 1.0 for each, v in served if each == option}
            self.program.row(here | {self.nodes[t]: -float(free * number)}, high=0)
        modes = {mode: self.program.variable(integer=True) for mode in made_modes(gpu)}
        self.program.row(dict.fromkeys(modes.values(), 1.0) | {self.nodes[t]: -float(number)}, high=0)
        for mode, used in modes.items():
            created = [(option, v) for option, v in served if option.mode is mode and not option.exists]
            if mode is Mode.MIG:
                self._instances(gpu, used, created)
            elif mode is Mode.WHOLE:
                self.program.row({v: 1.0 for _, v in created} | {used: -1.0}, high=0)
            else:
                for take in (
                    {v: o.memory_mib / gpu.memory_mib for o, v in created},
                    {v: o.compute_percent / 100 for o, v in created},
                ):
                    self.program.row(take | {used: -1.0}, high=0)

    def _instances(self, gpu: Gpu, used: int, created: Sequence[tuple[Option, int]]) -> None:
        """Tie instances to GPUs with one of the maximal sets of them, as far as these profiles go."""
        profiles = {option.profile for option, _ in created}
        patterns = {tuple(pair for pair in counts if pair[0] in profiles) for counts in maximal_counts(gpu.model)}
        partitioned = {pattern: self.program.variable(integer=True) for pattern in sorted(patterns)}
        self.program.row(dict.fromkeys(partitioned.values(), 1.0) | {used: -1.0}, high=0)
        for profile in profiles:
            served = {v: 1.0 for option, v in created if option.profile == profile}
            there = {v: -float(dict(pattern).get(profile or "", 0)) for pattern, v in partitioned.items()}
            self.program.row(served | there, high=0)


def _stem(name: str) -> str:
    """Return a node's name without the number at its end."""
    return re.sub(r"-[0-9]+$", "", name)


def _named(node: Node, stem: str, number: int | str) -> Node:
    name = f"{stem}-{number}"
    labels = tuple((key, name if key == HOSTNAME else value) for key, value in node.labels)
    return msgspec.structs.replace(node, name=NodeName(name), labels=labels)
