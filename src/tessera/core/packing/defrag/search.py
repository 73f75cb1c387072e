"""The search for the fewest moves.

A set of pods to move is tried as a whole on a copy of the cluster (`Room.outcome`). Sets are tried by their number of
pods, so that the first sufficient one has the fewest. For one pod to place, only pods in its way are tried: those
of one GPU where it requests one device and the node has cpu and memory for it, else those of one node. Several pods
are served one after another; then every smaller set is tried for all of them together.
"""

import itertools
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Final

from tessera.core.cluster.cluster import Cluster, ObservedPod, Phase, Record
from tessera.core.cluster.snapshot import NodeName
from tessera.core.packing.defrag.evictable import Evictable
from tessera.core.packing.defrag.records import DefragProposal, Move, Placed, PodPlace, PodToPlace, Stuck
from tessera.core.packing.defrag.trial import Room, free_need
from tessera.core.packing.ledger import ledger_key
from tessera.core.packing.preempt import victims
from tessera.core.packing.reasons import NodeFit, summarize, verdicts_by_ledger
from tessera.core.workload.need import Need, PodKey
from tessera.core.workload.texts import first_of

__all__ = ["MOST_MOVES", "propose"]

MOST_MOVES: Final = 10
"""More moves than this are not proposed unless the caller allows them."""
_MOST_TRIES: Final = 5_000
"""Sets of pods that are tried on one node; a few tenths of a millisecond each."""
_MOST_TRIALS: Final = 1_500
"""Sets of pods that are tried on the whole cluster; some milliseconds each on a large one, of which fewer are tried."""
_TRIALS_TIMES_NODES: Final = 30_000
_FEWEST_TRIALS: Final = 100
_MOST_WHYS: Final = 24
"""Nodes for which it is explained why their pods do not move, those with the fewest pods first."""
_MOST_GREEDY: Final = 200
"""Nodes and GPUs of which one set each is tried where there are too many sets."""
_MOST_TOGETHER: Final = 6
"""Pods that are tried all together where one of them found no place after the others."""
_MOST_SHOWN: Final = 3
_EVERYBODY: Final = 1 << 31
"""A priority above every pod's."""

_Set = tuple[ObservedPod, ...]


def propose(
    cluster: Cluster, targets: Sequence[PodToPlace], evictable: Mapping[PodKey, Evictable], *, most: int = MOST_MOVES
) -> DefragProposal:
    """Return the fewest moves after which the pods to place fit, and the resulting places.

    Of sets of the same size the one with the smallest allocations is chosen. Pods that no allowed moves place are
    `stuck`, and nothing is moved for them. Deterministic. Cost: seconds at most on a cluster of a thousand
    GPUs; if a limit of trials is reached, the proposal says so (`exhaustive`).

    Args:
        cluster: the observation.
        targets: the pods to make room for, the most urgent first.
        evictable: which pods may be evicted; others stay.
        most: the most moves.

    """
    search = _Search(cluster, evictable, most)
    moved: _Set = ()
    placed: list[PodToPlace] = []
    stuck: list[Stuck] = []
    failed: dict[tuple[Need, int], tuple[str, ...]] = {}
    alone = True  # whether each of them might fit without the others
    for target in targets:
        kind = target.need, target.priority
        more = None if kind in failed else search.extend(moved, placed, target)
        if more is None:
            alone = alone and (kind in failed or bool(placed))
            failed[kind] = reasons = failed.get(kind) or search.why(target)
            stuck.append(Stuck(pod=target.pod, reasons=reasons))
        else:
            moved, placed = (*moved, *more), [*placed, target]
    at_least = search.least if len(targets) == 1 else 0
    if len(targets) > 1 and not stuck:
        fewer, at_least = search.together(targets, len(moved))
        moved = moved if fewer is None else fewer
    elif alone and 1 < len(targets) <= _MOST_TOGETHER and search.each_alone(targets, failed):
        fewer, tried = search.together(targets, most + 1)
        if fewer is not None:
            moved, placed, stuck, at_least = fewer, list(targets), [], tried
    return search.proposal(moved, placed, stuck, at_least)


class _Search:
    def __init__(self, cluster: Cluster, evictable: Mapping[PodKey, Evictable], most: int) -> None:
        self.room = Room(cluster)
        self.evictable = evictable
        self.most = most
        self.pods = cluster.pods
        self.least = 0
        self.exhaustive = True
        self.staying = {pod.pod.key: why for pod in cluster.pods if (why := _stays(pod, evictable))}
        self.movable = [pod for pod in cluster.pods if pod.pod.key not in self.staying]
        self._tries = _MOST_TRIES
        self._trials = min(_MOST_TRIALS, max(_FEWEST_TRIALS, _TRIALS_TIMES_NODES // max(len(cluster.nodes), 1)))
        self._elsewhere: dict[str, bool] = {}
        self._anywhere: dict[Need, PodPlace | None] = {}

    def extend(self, moved: _Set, placed: Sequence[PodToPlace], target: PodToPlace) -> _Set | None:
        """Return the fewest further moves after which one more pod fits besides those placed; None if none help."""
        needs = [*(each.need for each in placed), target.need]
        if self.room.outcome(moved, needs) is not None:
            return ()
        groups = list(self._groups(moved, target))
        for count in range(1, self.most - len(moved) + 1):
            self.least = count
            sets = self._sets(moved, target, groups, count)
            if sets is None:
                return self._greedy(moved, needs, groups)
            for found in sets:
                if self._try((*moved, *found), needs):
                    return found
            if not self.exhaustive:
                return self._greedy(moved, needs, groups)
            if all(len(pods) <= count for _, pods in groups):
                self.least = self.most
                break
        return None

    def each_alone(self, targets: Sequence[PodToPlace], failed: Container[tuple[Need, int]]) -> bool:
        """Return whether each pod that no longer fitted with the others would fit without them."""
        kinds = {(target.need, target.priority): target for target in targets}
        return all(self.extend((), (), target) is not None for kind, target in kinds.items() if kind in failed)

    def together(self, targets: Sequence[PodToPlace], below: int) -> tuple[_Set | None, int]:
        """Return fewer than `below` moves that place all pods, None where there are none; and how few were tried."""
        needs = [target.need for target in targets]
        lowest = min(target.priority for target in targets)
        pods = sorted((pod for pod in self.movable if pod.pod.priority <= lowest), key=_holds)
        pods = pods if below <= 1 else [pod for pod in pods if self._can_go(pod)]
        for count in range(below):
            for found in itertools.combinations(pods, count):
                if self._try(found, needs):
                    return found, count
                if self._trials <= 0:
                    self.exhaustive = False
                    return None, count
        return None, below

    def _groups(self, moved: _Set, target: PodToPlace) -> Iterator[tuple[str, _Set]]:
        """Yield nodes where some pods must go so that the pod fits."""
        for name in self.room.admitting(target.need):
            own = [pod for pod in self.movable if pod.node == name and pod not in moved and self._below(pod, target)]
            if not own or not self.room.helps((*moved, *own), target.need, name):
                continue
            able = tuple(pod for pod in own if self._can_go(pod))
            one_device = sum(request.count for request in target.need.requests) == 1
            if one_device and self.room.of_one_node(name, target.need).has_cpu_and_memory(target.need, name):
                gpus = sorted({share.gpu for pod in able for share in pod.shares})
                yield from ((name, tuple(pod for pod in able if gpu in _gpus(pod))) for gpu in gpus)
            else:
                yield name, able

    @staticmethod
    def _below(pod: ObservedPod, target: PodToPlace) -> bool:
        return pod.pod.priority <= target.priority

    def _sets(
        self, moved: _Set, target: PodToPlace, groups: Iterable[tuple[str, _Set]], count: int
    ) -> list[_Set] | None:
        """Return the sets of this many pods that are enough for the pod, smallest first; None if too many."""
        found: dict[frozenset[str], _Set] = {}
        for name, pods in groups:
            for chosen in itertools.combinations(pods, count):
                self._tries -= 1
                if self._tries < 0:
                    self.exhaustive = False
                    return None
                if self.room.helps((*moved, *chosen), target.need, name):
                    found.setdefault(frozenset(map(ledger_key, chosen)), chosen)
        return sorted(found.values(), key=lambda chosen: tuple(sorted(map(_holds, chosen), reverse=True)))

    def _greedy(self, moved: _Set, needs: Sequence[Need], groups: Iterable[tuple[str, _Set]]) -> _Set | None:
        """Return sufficient moves of which none can be left out on their node; None if none are found."""
        found: list[_Set] = []
        for name, pods in groups:
            trial = self.room.ledger(needs[-1]).of_one_node(name)
            for pod in moved:
                trial.drop_pod(ledger_key(pod))
            gone = victims(trial, needs[-1], _EVERYBODY, name, map(ledger_key, pods))
            if gone and len(gone) + len(moved) <= self.most:
                found.append(tuple(pod for pod in pods if ledger_key(pod) in gone))
        ordered = sorted(found, key=lambda chosen: (len(chosen), *sorted(map(_holds, chosen), reverse=True)))
        for chosen in ordered[:_MOST_GREEDY]:
            if self.room.outcome((*moved, *chosen), needs) is not None:
                return chosen
        return None

    def _try(self, moved: _Set, needs: Sequence[Need]) -> bool:
        """Return whether everything fits after these moves; False once the limit of trials is reached."""
        if self._trials <= 0:
            self.exhaustive = False
            return False
        self._trials -= 1
        return self.room.outcome(moved, needs) is not None

    def _can_go(self, pod: ObservedPod) -> bool:
        """Return whether a replacement fits on other GPUs while nothing else moves."""
        uid, need = ledger_key(pod), free_need(pod.pod.need)
        if need not in self._anywhere:
            self._anywhere[need] = self.room.place(need)
        place = self._anywhere[need]
        if place is None:
            return False
        if place.node != pod.node or not _gpus(pod) & {share.gpu for share in place.shares}:
            return True
        if uid not in self._elsewhere:
            self._elsewhere[uid] = self.room.outcome((pod,), ()) is not None
        return self._elsewhere[uid]

    def proposal(
        self, moved: _Set, placed: Sequence[PodToPlace], stuck: Sequence[Stuck], at_least: int
    ) -> DefragProposal:
        outcome = self.room.outcome(moved, [target.need for target in placed])
        assert outcome is not None
        return DefragProposal(
            moves=tuple(map(self._move, moved, outcome.replacements)),
            placed=tuple(
                Placed(pod=each.pod, place=place) for each, place in zip(placed, outcome.targets, strict=True)
            ),
            stuck=tuple(stuck),
            at_least=min(at_least, len(moved)),
            exhaustive=self.exhaustive,
        )

    def _move(self, pod: ObservedPod, fits: PodPlace) -> Move:
        assert pod.node is not None
        return Move(
            pod=pod.pod.key,
            uid=pod.uid,
            owner=pod.pod.owner,
            frees=PodPlace(node=pod.node, shares=pod.shares),
            fits=fits,
            budgets=self.evictable[pod.pod.key].budgets,
        )

    def why(self, target: PodToPlace) -> tuple[str, ...]:
        """Return why no allowed moves place the pod."""
        admitting = self.room.admitting(target.need)
        if not admitting:
            return (f"no node admits it: {self._obstacles(target.need, self.room.nodes)}",)
        ledger = self.room.ledger(target.need)
        never = ledger.filter(target.need, admitting).hopeless
        open_nodes = [name for name in admitting if name not in never]
        if not open_nodes:
            every = len(admitting) == len(self.room.nodes)
            cause = "it fits no node, even an empty one" if every else "no node can take it"
            return (f"{cause}: {self._obstacles(target.need, self.room.nodes)}",)
        ordered = sorted(open_nodes, key=lambda name: len(ledger.pods_on(name)))[:_MOST_WHYS]
        found = (self._in_the_way(target, name) for name in ordered)
        known = [sentence for _, sentence in sorted(each for each in found if each is not None)[:_MOST_SHOWN]]
        return tuple(known) or (f"moving pods does not help: {self._emptied(target.need, ordered)}",)

    def _obstacles(self, need: Need, names: Iterable[NodeName]) -> str:
        """Return in one sentence the obstacles of nodes now."""
        nodes = [self.room.nodes[name].node for name in names]
        return summarize(verdicts_by_ledger(self.room.ledger(need), need, nodes, self.room.advertised))[1]

    def _emptied(self, need: Need, names: Iterable[NodeName]) -> str:
        """Return in one sentence the obstacles of nodes from which all pods are gone."""
        verdicts: list[NodeFit] = []
        for name in names:
            trial = self.room.ledger(need).of_one_node(name)
            for pod in trial.pods_on(name):
                trial.drop_pod(pod.id)
            verdicts += verdicts_by_ledger(trial, need, [self.room.nodes[name].node], self.room.capacity)
        return summarize(verdicts)[1]

    def _in_the_way(self, target: PodToPlace, name: NodeName) -> tuple[int, str] | None:
        """Return how many pods would have to leave a node, and why they do not; None where that does not help."""
        trial = self.room.of_one_node(name, target.need)
        pods = {ledger_key(pod): pod for pod in self.pods if pod.node == name}
        gone = victims(trial, target.need, _EVERYBODY, name, pods)
        if gone is None:
            return None
        if not gone and target.need.by_name and (short := self.room.advertised.missing(target.need, name)):
            return 0, f"on {name}: {short.text}"
        if not gone:
            return 0, f"on {name} it would fit without the pods that come before it"
        found = [pods[uid] for uid in gone]
        reasons = [(pod.pod.key, why) for pod in found if (why := self._bar(pod, target))]
        if not reasons:
            many = f"which is more than {self.most} moves"
            then = many if len(gone) > self.most else "and they do not all fit elsewhere"
            return len(gone), f"on {name}, {first_of([pod.pod.key for pod in found])} would have to move, {then}"
        if len(reasons) == 1:
            return len(gone), f"on {name}, {reasons[0][0]} would have to move, and {reasons[0][1]}"
        return len(gone), f"on {name}, these would have to move: {first_of([f'{key} ({why})' for key, why in reasons])}"

    def _bar(self, pod: ObservedPod, target: PodToPlace) -> str:
        """Return why a pod is not moved; empty where it could be."""
        if pod.pod.key in self.staying:
            return self.staying[pod.pod.key]
        if not self._below(pod, target):
            return f"its priority {pod.pod.priority} is above {target.priority}"
        return "" if self._can_go(pod) else "its replacement does not fit elsewhere"


def _stays(pod: ObservedPod, evictable: Mapping[PodKey, Evictable]) -> str:
    """Return why a pod is never moved; empty where it may be."""
    found = evictable.get(pod.pod.key)
    if pod.ending:
        return "it is already being deleted"
    if pod.problem:
        return pod.problem
    if pod.phase is not Phase.RUNNING:
        return "its containers are not running yet"
    if pod.record is not Record.RECORDED or not pod.shares:
        return "its devices are not recorded"
    return found.refused if found else "its controller is unknown"


def _holds(pod: ObservedPod) -> tuple[int, int, str]:
    """Return the size of a pod's allocation, to move small ones first."""
    return (
        sum(share.memory_mib for share in pod.shares),
        sum(share.compute_percent for share in pod.shares),
        pod.pod.key,
    )


def _gpus(pod: ObservedPod) -> frozenset[int]:
    return frozenset(share.gpu for share in pod.shares)
