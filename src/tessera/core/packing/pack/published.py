"""The baseline policies of the FGD paper, with the integer scores of its artifact.

Source: Weng et al., USENIX ATC 2023, and hkust-adsl/kubernetes-scheduler-simulator at 8f3d6417. The artifact writes the
largest node of its cluster into the formulas (128 cores, 8 GPUs); here it is the largest node of the fleet.
"""

import math
from typing import Final

import numpy as np

from tessera.core.cluster.gputypes import Ints
from tessera.core.gpu.sharing import GPU_RESOURCE
from tessera.core.packing.fit import CPU, Demand, Fleet
from tessera.core.packing.fit.fragmentation import FULL, percent_of
from tessera.core.packing.fit.spread import Spread
from tessera.core.packing.pack.policy import Policy, Room
from tessera.core.workload.need import Need

__all__ = ["BestFit", "Clustering", "DotProduct", "Packing"]


class _Sized(Policy):
    """A policy that compares a pod's request with a node's free resources."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self._cpu, self._gpu = self.outlook()
        self._requested: dict[Need, Spread[np.int64]] = {}

    def outlook(self) -> tuple[int, int]:
        """Return cpu and GPU of the largest node; see `Policy`."""
        return max(int(self.fleet.size[CPU].max(initial=1)), 1), max(FULL * self.fleet.widest, 1)

    def requested(self, need: Need, nodes: Ints) -> Ints:
        """Return the percent of GPU that the pod takes on each of `nodes`, by the type of their first GPU."""
        if need not in self._requested:
            count = sum(request.count for request in need.requests)
            sizes = [count * (percent_of(need.requests, gpu_type) or 0) for gpu_type in self.fleet.types]
            self._requested[need] = Spread(self.fleet, np.array(sizes, dtype=np.int64), first=True)
        return self._requested[need].values.take(nodes)


class DotProduct(_Sized):
    """Least product of what is asked and what is left: 100 (1 - (cpu x cpu + gpu x gpu) / 2), each part of a node."""

    def scores(self, demand: Demand, nodes: Ints, room: Room) -> Ints:
        """Return 0 to 100; see `Policy`."""
        del room
        common = math.gcd(self._cpu**2, self._gpu**2)
        cpu = self.fleet.room[CPU].take(nodes) * demand.need.cpu_milli * (self._gpu**2 // common)
        gpu = self.fleet.remaining.take(nodes, 1).sum(0) * self.requested(demand.need, nodes) * (self._cpu**2 // common)
        score: Ints = FULL + -FULL * (cpu + gpu) // (2 * self._cpu**2 * self._gpu**2 // common)
        return score


class BestFit(_Sized):
    """The fullest node after placing. The artifact stretches scores to 0..100 at last, which changes no order."""

    def scores(self, demand: Demand, nodes: Ints, room: Room) -> Ints:
        """Return 0 to 100; see `Policy`."""
        del room
        cpu = (self.fleet.room[CPU].take(nodes) - demand.need.cpu_milli) * self._gpu
        gpu = (self.fleet.remaining.take(nodes, 1).sum(0) - self.requested(demand.need, nodes)) * self._cpu
        score: Ints = FULL + -FULL * (cpu + gpu) // (2 * self._cpu * self._gpu)
        return score


_EMPTY: Final = 33
_OPENED: Final = 50
"""GPU packing's scores: about 33 for a node without GPU pods, to 50 for free GPUs of another, above that for GPUs in
use."""


class Packing(Policy):
    """GPUs in use first, then free GPUs of nodes in use, then empty nodes."""

    def scores(self, demand: Demand, nodes: Ints, room: Room) -> Ints:
        """Return 0 to 100; see `Policy`."""
        if not room:
            return np.zeros(len(nodes), dtype=np.int64)
        remaining = self.fleet.remaining.take(nodes, 1)
        count = sum(request.count for request in demand.need.requests)
        tightest = np.where(sum(room) > 0, remaining, FULL + 1)
        tightest.sort(axis=0)
        taken = tightest[:count]
        opened = (taken >= FULL).sum(0)
        free = (remaining == FULL).sum(0)
        empty = remaining.sum(0) == FULL * (self.fleet.kind.take(nodes, 1) > 0).sum(0)
        used = np.where(
            opened > 0, np.maximum(_OPENED - opened, _EMPTY), np.maximum(FULL - taken.sum(0) // 10, _OPENED)
        )
        score: Ints = np.where(empty, np.maximum(_EMPTY - free, free), used)
        return score


class Clustering(Policy):
    """Nodes that hold pods of the same size: a share of one GPU, one GPU, or several.

    Pods that ran before the policy was made are not counted.
    """

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self._gpu = self.outlook()
        self._sizes: dict[int, Ints] = {}

    def scores(self, demand: Demand, nodes: Ints, room: Room) -> Ints:
        """Return 0 to 100; see `Policy`."""
        if not room:
            return np.zeros(len(nodes), dtype=np.int64)
        used: Ints = self._gpu - self.fleet.remaining.take(nodes, 1).sum(0)
        own = self._pods(demand.need).take(nodes)
        every = sum(pods.take(nodes) for pods in self._sizes.values())
        holds = np.where(own > 0, np.where(own == every, 75, 50), np.where(every == 0, 25, 0))
        score: Ints = 25 * used // self._gpu + holds
        return score

    def outlook(self) -> int:
        """Return the GPU of the largest node; see `Policy`."""
        return max(FULL * self.fleet.widest, 1)

    def changed(self, need: Need, node: int, pods: int) -> None:
        """Count the pods of each size on a node; see `Policy`."""
        if need.requests:
            self._pods(need)[node] += pods

    def _pods(self, need: Need) -> Ints:
        whole = [request.count for request in need.requests if request.resource == GPU_RESOURCE]
        if sum(whole) not in self._sizes:
            self._sizes[sum(whole)] = np.zeros(len(self.fleet.nodes), dtype=np.int64)
        return self._sizes[sum(whole)]
