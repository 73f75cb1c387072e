"""A cluster as observed for partitioning."""

from collections.abc import Iterator

from tessera.core.cluster.cluster import Cluster, Phase, Record
from tessera.core.cluster.snapshot import Assignment, Running
from tessera.core.packing.partitioning.records import PartitioningState
from tessera.core.workload.need import Need, Pod

__all__ = ["observe_cluster"]


def observe_cluster(cluster: Cluster) -> PartitioningState:
    """Return the input of partitioning: nodes whose agents report, recorded allocations of pods, pending pods.

    Pods that request no GPU, are terminating, or have scheduling gates, are not pending for one.
    """
    without_node = (each for each in cluster.pods if each.phase is Phase.WAITING and not each.ending and not each.gated)
    pending = {each.pod.key for each in without_node if any(request.count for request in each.pod.need.requests)}
    return PartitioningState(
        nodes=tuple(each.node for each in cluster.nodes if not each.problem),
        states=tuple(each.state for each in cluster.nodes if each.state is not None and each.state.reported),
        running=(*_running(cluster), *_claimed(cluster)),
        pending=tuple(pod for pod in cluster.snapshot.pending if pod.key in pending),
    )


def _running(cluster: Cluster) -> Iterator[Running]:
    for each in cluster.pods:
        if each.node is not None:
            # Guessed devices are better guessed among the desired ones.
            shares = each.shares if each.record is Record.RECORDED else ()
            assignment = Assignment(pod=each.pod.key, node=each.node, shares=shares)
            yield Running(pod=each.pod, assignment=assignment)


def _claimed(cluster: Cluster) -> Iterator[Running]:
    """Yield the servers' claims for pods that are not observed yet: these may be on their way."""
    known = {each.uid for each in cluster.pods}
    for node in cluster.nodes:
        for claim in node.state.claims if node.state else ():
            if claim.uid not in known:
                assignment = Assignment(pod=claim.pod, node=node.node.name, shares=claim.shares)
                yield Running(pod=Pod(key=claim.pod, need=Need()), assignment=assignment)
