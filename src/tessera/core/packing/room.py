"""How many pods of a kind fit on the present GPUs."""

from collections.abc import Iterable

from tessera.core.cluster.snapshot import Snapshot
from tessera.core.packing.plan import plan
from tessera.core.workload.foreignnames import foreign_names
from tessera.core.workload.need import PodKey

__all__ = ["room"]


def room(snapshot: Snapshot, pods: Iterable[PodKey]) -> int | None:
    """Return how many of some pending pods fit beside the others, on devices that exist or can be created.

    Unused MIG instances stay. None where it is unknown: a pod was not read or requests no GPU or
    one of another system, or a node's GPUs are unknown.
    """
    keys = frozenset(pods)
    needs = [pod.need for pod in snapshot.pending if pod.key in keys]
    unknown = any(node.problem for node in snapshot.nodes)
    if (
        unknown
        or len(needs) < len(keys)
        or not all(need.requests and not foreign_names(need.requests) for need in needs)
    ):
        return None
    return sum(assignment.pod in keys for assignment in plan(snapshot).assignments)
