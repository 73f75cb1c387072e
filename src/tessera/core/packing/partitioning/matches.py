"""Which pending pods are served by devices that are desired already and not in use."""

from collections import Counter, defaultdict
from collections.abc import Iterable

from tessera.core.cluster.snapshot import Assignment, Node, NodeName, Share, Snapshot
from tessera.core.packing.fit.admission import admits
from tessera.core.packing.fit.mixednames import is_mixed
from tessera.core.packing.partitioning.managedgpus import ManagedGpu, reserved
from tessera.core.workload.need import Form, Need, Pod

__all__ = ["served_as_it_is"]


def served_as_it_is(snapshot: Snapshot, gpus: Iterable[ManagedGpu]) -> tuple[Assignment, ...]:
    """Return which pending pods get which idle desired devices: by priority, then in order of arrival.

    A pod is served if one node has everything it requests, admits it and has cpu, memory and a pod slot for it;
    of several the first. Cost: the nodes with idle devices for each kind of pod.
    """
    return _Matching(snapshot, gpus).found()


class _Matching:
    def __init__(self, snapshot: Snapshot, gpus: Iterable[ManagedGpu]) -> None:
        self._pending = sorted(snapshot.pending, key=lambda pod: -pod.priority)
        self._idle: dict[NodeName, dict[str, list[Share]]] = {}
        for managed in gpus:
            for share in reserved(managed):
                self._idle.setdefault(managed.node, defaultdict(list))[share.resource].append(share)
        self._nodes = {node.name: node for node in snapshot.nodes if node.name in self._idle}
        self._room = {name: [node.cpu_milli, node.memory_mib, node.max_pods] for name, node in self._nodes.items()}
        for running in snapshot.running:
            self._take(running.assignment.node, running.pod.need)
        self._admits: dict[tuple[Need, NodeName], bool] = {}

    def found(self) -> tuple[Assignment, ...]:
        exact = (
            pod for pod in self._pending if pod.need.requests and all(a.form is Form.EXACT for a in pod.need.requests)
        )
        return tuple(assignment for assignment in map(self._serve, exact) if assignment is not None)

    def _serve(self, pod: Pod) -> Assignment | None:
        name = next((name for name in self._nodes if self._fits(pod.need, self._nodes[name])), None)
        if name is None:
            return None
        self._take(name, pod.need)
        shares: list[Share] = []
        for request in pod.need.requests:
            there = self._idle[name][request.resource]
            shares += there[: request.count]
            del there[: request.count]
        return Assignment(pod=pod.key, node=name, shares=tuple(shares))

    def _fits(self, need: Need, node: Node) -> bool:
        requested = Counter[str]()
        for request in need.requests:
            requested[request.resource] += request.count
        idle = self._idle[node.name]
        if any(len(idle.get(resource, ())) < count for resource, count in requested.items()):
            return False
        key = need, node.name
        if key not in self._admits:
            self._admits[key] = admits(need, node) and not is_mixed(need, node.gpus)
        cpu_milli, memory_mib, pods = self._room[node.name]
        return self._admits[key] and cpu_milli >= need.cpu_milli and memory_mib >= need.memory_mib and pods >= 1

    def _take(self, node: NodeName, need: Need) -> None:
        if node in self._room:
            room = self._room[node]
            self._room[node] = [room[0] - need.cpu_milli, room[1] - need.memory_mib, room[2] - 1]
