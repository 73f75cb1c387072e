"""Which waiting pods the devices serve that are wanted already and that nobody holds."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from tessera.core.cluster.snapshot import Assignment, Node, NodeName, Share, Snapshot
from tessera.core.packing.fit.admission import refusal
from tessera.core.packing.partitioning.cards import Card, reserved
from tessera.core.workload.need import Form, Need, Pod

__all__ = ["served_as_it_is"]


def served_as_it_is(snapshot: Snapshot, cards: Iterable[Card]) -> tuple[Assignment, ...]:
    """Return which waiting pods get which idle wanted devices: by priority, then in order of arrival.

    A pod is served where all that it asks is there on one node that admits it and has cpu, memory and room for a pod;
    of several the first. Cost: the nodes with idle devices for each kind of pod.
    """
    return _Matching(snapshot, cards).found()


class _Matching:
    def __init__(self, snapshot: Snapshot, cards: Iterable[Card]) -> None:
        self._pending = sorted(snapshot.pending, key=lambda pod: -pod.priority)
        self._idle: dict[NodeName, dict[str, list[Share]]] = {}
        for card in cards:
            for share in reserved(card):
                self._idle.setdefault(card.node, defaultdict(list))[share.resource].append(share)
        self._nodes = {node.name: node for node in snapshot.nodes if node.name in self._idle}
        self._room = {name: [node.cpu_milli, node.memory_mib, node.max_pods] for name, node in self._nodes.items()}
        for running in snapshot.running:
            self._take(running.assignment.node, running.pod.need)
        self._admits: dict[tuple[Need, NodeName], bool] = {}

    def found(self) -> tuple[Assignment, ...]:
        exact = (pod for pod in self._pending if pod.need.asks and all(a.form is Form.EXACT for a in pod.need.asks))
        return tuple(assignment for assignment in map(self._serve, exact) if assignment is not None)

    def _serve(self, pod: Pod) -> Assignment | None:
        name = next((name for name in self._nodes if self._fits(pod.need, self._nodes[name])), None)
        if name is None:
            return None
        self._take(name, pod.need)
        shares: list[Share] = []
        for ask in pod.need.asks:
            there = self._idle[name][ask.resource]
            shares += there[: ask.count]
            del there[: ask.count]
        return Assignment(pod=pod.key, node=name, shares=tuple(shares))

    def _fits(self, need: Need, node: Node) -> bool:
        asked = Counter[str]()
        for ask in need.asks:
            asked[ask.resource] += ask.count
        idle = self._idle[node.name]
        if any(len(idle.get(resource, ())) < count for resource, count in asked.items()):
            return False
        key = need, node.name
        if key not in self._admits:
            self._admits[key] = refusal(need, node) is None
        return self._admits[key] and _holds(self._room[node.name], need)

    def _take(self, node: NodeName, need: Need) -> None:
        if node in self._room:
            room = self._room[node]
            self._room[node] = [room[0] - need.cpu_milli, room[1] - need.memory_mib, room[2] - 1]


def _holds(room: Sequence[int], need: Need) -> bool:
    return room[0] >= need.cpu_milli and room[1] >= need.memory_mib and room[2] >= 1
