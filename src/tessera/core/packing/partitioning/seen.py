"""A cluster as partitioning observes it."""

from collections.abc import Iterator

from tessera.core.cluster.cluster import Cluster, Phase, Record, SeenPod
from tessera.core.cluster.snapshot import Assignment, Running, Share
from tessera.core.packing.partitioning.records import Observed
from tessera.core.workload.need import Need, Pod

__all__ = ["observed"]


def observed(cluster: Cluster) -> Observed:
    """Return what partitioning decides upon: nodes whose agents report, what pods hold by their records, who waits.

    Pods that ask no GPU, or are ending, do not wait for one.
    """
    without_node = (each for each in cluster.pods if each.phase is Phase.WAITING and not each.ending)
    waiting = {each.pod.key for each in without_node if _waits(each.pod)}
    return Observed(
        nodes=tuple(each.node for each in cluster.nodes if not each.problem),
        states=tuple(each.state for each in cluster.nodes if each.state is not None and each.state.reported),
        running=(*_running(cluster), *_claimed(cluster)),
        pending=tuple(pod for pod in cluster.snapshot.pending if pod.key in waiting),
    )


def _running(cluster: Cluster) -> Iterator[Running]:
    for each in cluster.pods:
        if each.node is not None:
            assignment = Assignment(pod=each.pod.key, node=each.node, shares=_recorded(each))
            yield Running(pod=each.pod, assignment=assignment)


def _claimed(cluster: Cluster) -> Iterator[Running]:
    """Yield what servers claim for pods that are not seen: they may be on their way."""
    seen = {each.uid for each in cluster.pods}
    for node in cluster.nodes:
        for claim in node.state.claims if node.state else ():
            if claim.uid not in seen:
                assignment = Assignment(pod=claim.pod, node=node.node.name, shares=claim.shares)
                yield Running(pod=Pod(key=claim.pod, need=Need()), assignment=assignment)


def _recorded(pod: SeenPod) -> tuple[Share, ...]:
    """Return what a pod holds by its record; what was only guessed is guessed better among what is wanted."""
    return pod.shares if pod.record is Record.RECORDED else ()


def _waits(pod: Pod) -> bool:
    return any(ask.count for ask in pod.need.asks)
