"""Small fleets and needs for tests, and the check that nothing is overcommitted, whoever decided."""

from builders.requests import exact, gpushare, need
from tessera.core.cluster.occupancy import occupancy
from tessera.core.cluster.snapshot import Assignment, Gpu, Node, NodeName, Snapshot
from tessera.core.gpu.gpumodels import GpuModel, model
from tessera.core.gpu.mig import is_legal
from tessera.core.gpu.sharing import AUTO, Sharing
from tessera.core.workload.need import Isolation, Need, Pod, PodKey

A30, A100, T4 = model("A30-24GB"), model("A100-40GB"), model("T4")


def gpu(index: int, kind: GpuModel = A100, sharing: Sharing = AUTO) -> Gpu:
    return Gpu(index=index, model=kind, memory_mib=kind.memory_mib, sharing=sharing)


def node(name: str, *gpus: Gpu, cpu_milli: int = 64_000, **labels: str) -> Node:
    labeled = tuple(labels.items())
    return Node(name=NodeName(name), cpu_milli=cpu_milli, memory_mib=1 << 20, gpus=gpus, labels=labeled)


def pod_of(need: Need, key: str = "ns/a", priority: int = 0) -> Pod:
    return Pod(key=PodKey(key), need=need, priority=priority)


def pods(need: Need, count: int, name: str = "p", priority: int = 0) -> tuple[Pod, ...]:
    return tuple(pod_of(need, f"default/{name}-{i}", priority) for i in range(count))


def slices(profile: str, count: int = 1, cpu_milli: int = 1000) -> Need:
    return Need(cpu_milli=cpu_milli, requests=(exact(count, f"nvidia.com/mig-{profile}"),))


def amount(mib: int, isolation: Isolation = Isolation.NONE, count: int = 1, compute_percent: int = 0) -> Need:
    return Need(cpu_milli=500, requests=(need(mib, count, compute_percent, isolation=isolation),))


def plain_share(mib: int) -> Need:
    return Need(cpu_milli=500, requests=(gpushare(mib),))


def check(snapshot: Snapshot, assignments: tuple[Assignment, ...]) -> None:
    """Nothing is overcommitted and every layout is legal, whoever decided."""
    for gpus in occupancy(snapshot, assignments).values():
        for held in gpus:
            whole = held.gpu
            assert held.allocated_mib <= whole.memory_mib
            assert sum(h.share.compute_percent for h in held.pod_shares) <= 100
            if held.instances:
                assert is_legal(whole.model, held.instances)
            for place in (None, *held.instances):
                device = next((d for d in whole.devices if d.placement == place), None)
                most = device.clients if device else (1 if place else 10_000)
                assert len(held.clients(place)) <= most
    needs = {pod.key: pod.need for pod in (*snapshot.pending, *(r.pod for r in snapshot.running))}
    where = [*assignments, *(r.assignment for r in snapshot.running)]
    for each in snapshot.nodes:
        here = [needs[a.pod] for a in where if a.node == each.name]
        assert sum(need.cpu_milli for need in here) <= each.cpu_milli
        assert sum(need.memory_mib for need in here) <= each.memory_mib
        assert len(here) <= each.max_pods
    for assignment in assignments:
        assert len(assignment.shares) == sum(request.count for request in needs[assignment.pod].requests)
