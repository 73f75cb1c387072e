"""How many pods of a kind find a place on the GPUs that there are."""

from collections.abc import Iterable

from tessera.core.cluster.snapshot import Snapshot
from tessera.core.packing.plan import plan
from tessera.core.workload.foreignnames import foreign_names
from tessera.core.workload.need import PodKey

__all__ = ["room"]


def room(snapshot: Snapshot, pods: Iterable[PodKey]) -> int | None:
    """Return how many of some pending pods find a place beside the others, on devices that exist or can be created.

    MIG instances that nobody uses stay as they are. None where nobody can say: a pod was not read or asks for no GPU or
    for another system's, or a node's GPUs are not known.
    """
    keys = frozenset(pods)
    needs = [pod.need for pod in snapshot.pending if pod.key in keys]
    unknown = any(node.problem for node in snapshot.nodes)
    if unknown or len(needs) < len(keys) or not all(need.asks and not foreign_names(need.asks) for need in needs):
        return None
    return sum(assignment.pod in keys for assignment in plan(snapshot).assignments)
