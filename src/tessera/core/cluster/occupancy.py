"""GPU usage of a fleet: the shares of running pods and of planned assignments on each GPU."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from tessera.core.cluster.snapshot import Assignment, Gpu, NodeName, Share, Snapshot
from tessera.core.gpu.mig import Placement, open_placements, placement_at
from tessera.core.gpu.sharing import AMOUNT_MODES, Mode
from tessera.core.workload.need import PodKey

__all__ = ["Occupancy", "PodShare", "occupancy"]


class PodShare(msgspec.Struct, frozen=True):
    """A share and the pod that is allocated it."""

    pod: PodKey
    share: Share


class Occupancy(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU and its shares in use."""

    gpu: Gpu
    pod_shares: tuple[PodShare, ...] = ()

    @property
    def allocated_mib(self) -> int:
        """Memory allocated; never more than the GPU's."""
        return sum(pod_share.share.memory_mib for pod_share in self.pod_shares)

    @property
    def left_mib(self) -> int:
        """Memory still available for amounts: none where devices use the GPU."""
        return self.gpu.memory_mib - self.allocated_mib if self.amounts or not self.pod_shares else 0

    @property
    def left_percent(self) -> int:
        """Compute still available for amounts."""
        return 100 - sum(h.share.compute_percent for h in self.pod_shares) if self.amounts or not self.pod_shares else 0

    @property
    def amounts(self) -> Mode | None:
        """The amount mode the GPU is committed to."""
        modes = {h.share.mode for h in self.pod_shares if h.share.profile is None}
        amount = modes.intersection(AMOUNT_MODES) if not self.gpu.sharing.replicas else set[Mode]()
        return next(iter(amount), None)

    def pod_shares_on(self, placement: Placement | None) -> tuple[PodShare, ...]:
        """Return the shares on one device, in order."""
        where = (placement.profile, placement.start) if placement else (None, None)
        return tuple(h for h in self.pod_shares if (h.share.profile, h.share.start) == where)

    def clients(self, placement: Placement | None) -> tuple[PodKey, ...]:
        """Return the pods on one device, in order."""
        return tuple(pod_share.pod for pod_share in self.pod_shares_on(placement))

    @property
    def instances(self) -> tuple[Placement, ...]:
        """The MIG instances after the plan, by start: used ones, and existing ones that do not conflict with them."""
        used = {p for p in self._placements if p}
        there = self.gpu.sharing.layout or ()
        if any(h.share.profile is None for h in self.pod_shares):
            return ()
        room = open_placements(self.gpu.model, tuple(sorted(used))) if there else ()
        return tuple(sorted(used.union(p for p in there if p in room)))

    @property
    def _placements(self) -> tuple[Placement | None, ...]:
        return tuple(
            placement_at(self.gpu.model, h.share.profile, h.share.start)
            if h.share.profile is not None and h.share.start is not None
            else None
            for h in self.pod_shares
        )


def occupancy(snapshot: Snapshot, assignments: Iterable[Assignment] = ()) -> Mapping[NodeName, tuple[Occupancy, ...]]:
    """Return every GPU of the snapshot with its shares, running pods first, by node in the snapshot's order."""
    pod_shares = defaultdict[tuple[NodeName, int], list[PodShare]](list)
    for assignment in (*(running.assignment for running in snapshot.running), *assignments):
        for share in assignment.shares:
            pod_shares[assignment.node, share.gpu].append(PodShare(assignment.pod, share))
    return {
        node.name: tuple(Occupancy(gpu=gpu, pod_shares=tuple(pod_shares[node.name, gpu.index])) for gpu in node.gpus)
        for node in snapshot.nodes
    }
