"""The same arrivals through the server over HTTP, as kube-scheduler asks, and through the simulator's packer.

kube-scheduler's own part is done here: nodes without the cpu and memory are not sent to the server, and pods without
GPUs, of which the server has no opinion, are bound where the simulator has them. Pods that no node has cpu for are sent
with no nodes, so that both learn from the same arrivals.
"""

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np

from harness.servers import Asked, settle
from tessera.api.kubernetes.nodes import read_node
from tessera.api.tessera.pods.assignments import write_shares
from tessera.api.tessera.pods.clusterpods import object_field, read_live_pod
from tessera.api.tessera.v1alpha1.gpunodes import new_object, status_fields
from tessera.clients.kube import GPU_NODES, NODES, PODS, MemoryKube, Object, annotations_of
from tessera.core.cluster.gpunodestate import GpuNodeState
from tessera.core.cluster.snapshot import Gpu, Node, NodeName
from tessera.core.packing.fit import Fleet
from tessera.core.packing.ledger import schedulable_node
from tessera.core.packing.pack import Choice, Packer
from tessera.core.workload.need import Need
from tessera.sim.engine import Log, RunRules, run
from tessera.sim.workloads import Arrival, Trace, Workload

__all__ = ["Machine", "Took", "differences", "make_machines", "pod", "simulated"]


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A node to be made."""

    name: str
    gpus: tuple[Gpu, ...]
    cpu_milli: int = 96_000
    memory_mib: int = 1 << 20

    @property
    def state(self) -> GpuNodeState:
        """What its agent reports."""
        gpus = (msgspec.structs.replace(each, uuid=f"GPU-{self.name}-{each.index}") for each in self.gpus)
        return GpuNodeState(name=NodeName(self.name), gpus=tuple(gpus), driver="580.65.06", reported=True)

    @property
    def object(self) -> Object:
        """Its Node."""
        amounts = {"cpu": f"{self.cpu_milli}m", "memory": f"{self.memory_mib}Mi", "pods": "1001"}
        return {"metadata": {"name": self.name}, "status": {"capacity": amounts, "allocatable": amounts}}

    @property
    def seen(self) -> Node:
        """What the readers make of both."""
        node, _ = read_node(object_field("Node", self.object), self.state)
        return schedulable_node(node, self.state)[0]


class Took(NamedTuple):
    """Seconds that the server took for one pod."""

    filter_s: float
    prioritize_s: float
    bind_s: float

    @property
    def total_s(self) -> float:
        """All three."""
        return sum(self)


def pod(name: str, limits: dict[str, int], *, cpu_milli: int = 0, memory_mib: int = 0, **annotations: str) -> Object:
    """Return a pod that waits; annotations without their domain."""
    requests = {"cpu": f"{cpu_milli}m", "memory": f"{memory_mib}Mi"}
    resources = {"requests": requests, "limits": {key: str(count) for key, count in limits.items()}}
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "annotations": {f"tessera.dev/{key.replace('_', '-')}": text for key, text in annotations.items()},
        },
        "spec": {"containers": [{"name": "main", "resources": resources}]},
    }


async def make_machines(kube: MemoryKube, machines: Sequence[Machine]) -> None:
    """Create the nodes and what their agents report."""
    for each in machines:
        made = await kube.create(NODES, each.object)
        await kube.create(GPU_NODES, new_object(each.name, made["metadata"]["uid"]))
        await kube.patch(GPU_NODES, each.name, {"status": status_fields(each.state)}, subresource="status")


def simulated(machines: Sequence[Machine], pods: Sequence[Object], stays: Sequence[float]) -> Log:
    """Return where the simulator places pods that come one each second and stay so many seconds; ties go by name."""
    machines = sorted(machines, key=lambda each: each.name)
    needs = [(each["metadata"]["name"], read_live_pod(each).need) for each in pods]
    trace = Trace.of("replay", [each.seen for each in machines], needs)
    kinds = dict(zip(trace.names, trace.kind_of, strict=True))
    arrivals = [
        Arrival(name, kinds[name], float(at), stay)
        for at, ((name, _), stay) in enumerate(zip(needs, stays, strict=True))
    ]
    workload = Workload.of(trace, 0, arrivals)
    return run(workload, _Packer(Fleet.of(workload.snapshot), "tessera"), RunRules())


class _Packer(Packer):
    """Learns nothing from pods without GPUs, about which kube-scheduler does not ask extenders."""

    def place(self, kind: int, *, again: bool = False) -> Choice | None:
        return super().place(kind, again=again or not self._needs[kind].requests)


class _Scheduler:
    """kube-scheduler, as far as it matters here."""

    def __init__(self, machines: Sequence[Machine]) -> None:
        ordered = sorted(machines, key=lambda each: each.name)
        self.names = np.array([each.name for each in ordered])
        self.index = {each.name: place for place, each in enumerate(ordered)}
        self.free = np.array([(each.cpu_milli, each.memory_mib) for each in ordered], dtype=np.int64)

    def candidates(self, need: Need) -> list[str]:
        """Return the nodes with enough cpu and memory."""
        names: list[str] = self.names[(self.free >= (need.cpu_milli, need.memory_mib)).all(1)].tolist()
        return names

    def take(self, node: str, need: Need, sign: int) -> None:
        self.free[self.index[node]] -= np.array((need.cpu_milli, need.memory_mib)) * sign


async def differences(
    kube: MemoryKube,
    server: Asked,
    machines: Sequence[Machine],
    pods: Sequence[Object],
    log: Log,
    *,
    filter_verb: str = "filter",
) -> tuple[list[Took], str]:
    """Send every pod through the server; return the times, and the first pod that is placed elsewhere than in the log.

    Kube and server are fresh.
    """
    scheduler, times, names = _Scheduler(machines), list[Took](), sorted(each.name for each in machines)
    leaving = _leaving(log)
    for number, each in enumerate(pods):
        while leaving and leaving[-1][0] <= number:
            gone = pods[leaving.pop()[1]]["metadata"]["name"]
            found = await kube.get(PODS, gone, "default")
            assert found is not None
            await kube.delete(PODS, gone, namespace="default")
            scheduler.take(found["spec"]["nodeName"], read_live_pod(found).need, -1)
            await settle()
        need, made = read_live_pod(each).need, await kube.create(PODS, each)
        spot = log.spots[number]
        names_sent = scheduler.candidates(need) if need.requests else [names[spot.node]] if spot else []
        node, took = await _placed(server, made, names_sent, filter_verb)
        if node:
            scheduler.take(node, need, 1)
        times.append(took)
        bound = await kube.get(PODS, made["metadata"]["name"], "default")
        assert bound is not None
        got = bound["spec"].get("nodeName"), annotations_of(bound).get("tessera.dev/assignment")
        want = (names[spot.node], write_shares(spot.shares, need) if spot.shares else None) if spot else (None, None)
        if got != want:
            return times, f"pod {number}, {each}: the server says {got}, the simulator {want}"
    return times, ""


def _leaving(log: Log) -> list[tuple[float, int]]:
    """Return when each pod that was placed leaves, the last first."""
    return sorted(((left_s, index) for index, left_s in enumerate(log.left_s) if left_s < 1e18), reverse=True)


async def _placed(server: Asked, made: Object, names: list[str], filter_verb: str) -> tuple[str, Took]:
    """Ask as kube-scheduler asks: the node with the highest score, the first of equals; not for scores of one alone."""
    marks = [time.perf_counter()]
    _, answer = await server.post(f"/{filter_verb}", {"Pod": made, "Nodes": None, "NodeNames": names})
    fitting, node = answer["NodeNames"], ""
    marks.append(time.perf_counter())
    if len(fitting) > 1:
        _, scores = await server.post("/prioritize", {"Pod": made, "Nodes": None, "NodeNames": fitting})
        node = max(scores, key=lambda score: int(score["Score"]))["Host"]
    elif fitting:
        node = fitting[0]
    marks.append(time.perf_counter())
    if node:
        error = await server.bind(made, node)
        assert not error, error
    marks.append(time.perf_counter())
    return node, Took(*(after - before for before, after in pairwise(marks)))
