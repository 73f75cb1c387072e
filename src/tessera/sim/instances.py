"""The existing MIG instances of every GPU during a run, to know which of a pod's must be created first."""

from tessera.core.cluster.snapshot import Share, Snapshot
from tessera.core.gpu.mig import Placement

__all__ = ["Instances"]


class Instances:
    """The instances of all GPUs over time; false for a fleet without MIG.

    An instance stays when its pod leaves, until an overlapping one is created or its GPU is used without MIG.

    Attributes:
        created: how many had to be created so far.

    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.created = 0
        self._sizes = [
            {gpu.index: {profile.name: profile.size for profile in gpu.model.profiles} for gpu in node.gpus}
            for node in snapshot.nodes
        ]
        self._mig = any(sizes for node in self._sizes for sizes in node.values())
        self._instances = {
            (number, gpu.index): frozenset(gpu.sharing.layout or ())
            for number, node in enumerate(snapshot.nodes)
            for gpu in node.gpus
        }
        numbers = {node.name: number for number, node in enumerate(snapshot.nodes)}
        for running in snapshot.running:
            self.hold(numbers[running.assignment.node], running.assignment.shares)
        self.created = 0

    def __bool__(self) -> bool:
        """Return whether any GPU of the fleet can have instances."""
        return self._mig

    def hold(self, node: int, shares: tuple[Share, ...]) -> int:
        """Note a pod's shares; return the most instances that one GPU must create for it."""
        created: dict[int, int] = {}
        for share in shares:
            created[share.gpu] = created.get(share.gpu, 0) + self._hold_one((node, share.gpu), share)
        self.created += sum(created.values())
        return max(created.values(), default=0)

    def _hold_one(self, gpu: tuple[int, int], share: Share) -> int:
        if share.profile is None or share.start is None:
            self._instances[gpu] = frozenset()
            return 0
        desired = Placement(share.start, self._sizes[gpu[0]][share.gpu][share.profile], share.profile)
        there = self._instances[gpu]
        if desired in there:
            return 0
        self._instances[gpu] = frozenset(other for other in there if not other.mask & desired.mask) | {desired}
        return 1
