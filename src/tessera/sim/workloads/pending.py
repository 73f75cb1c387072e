"""The pods that wait in a snapshot as a workload: what happens when manifests are applied to a fleet, one by one."""

from collections import Counter

from tessera.core.cluster.snapshot import Snapshot
from tessera.errors import InvalidInput
from tessera.sim.workloads.records import Arrival, Workload, allocated_milli, demands

__all__ = ["in_order"]


def in_order(snapshot: Snapshot, seed: int = 0) -> Workload:
    """Return the pending pods as arrivals, in their order, one each virtual second; none departs.

    Running pods stay where they are. Ties go in the order of the nodes; the seed is for policies that draw.

    Raises:
        InvalidInput: no pod waits.

    """
    if not snapshot.pending:
        raise InvalidInput("workload", found="it has no pods", hint="give manifests with -f PATH")
    numbers = {need: number for number, need in enumerate(dict.fromkeys(pod.need for pod in snapshot.pending))}
    kinds = tuple(numbers)
    gpus = {node.name: {gpu.index: gpu for gpu in node.gpus} for node in snapshot.nodes}
    assigned = [running.assignment for running in snapshot.running]
    counts = Counter(pod.need for pod in snapshot.pending)
    return Workload(
        name="manifests",
        seed=seed,
        snapshot=Snapshot(nodes=snapshot.nodes, running=snapshot.running),
        kinds=kinds,
        demands=demands(kinds, snapshot.nodes),
        arrivals=tuple(Arrival(pod.key, numbers[pod.need], float(at)) for at, pod in enumerate(snapshot.pending)),
        rank=tuple(range(len(snapshot.nodes))),
        mix=tuple(counts.most_common()),
        running_milli=sum(allocated_milli(gpus[each.node], each.shares) for each in assigned),
    )
