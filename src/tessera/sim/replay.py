"""What a log shows only when it is followed step by step: fragmentation, and whether anyone was refused wrongly."""

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from tessera.core.packing.fit import Demand, Fleet, Tightest
from tessera.core.packing.fit.fragmentation import FULL, Fragmentation, typical
from tessera.core.packing.fit.onenode import serve
from tessera.core.packing.pack import Choice
from tessera.sim.engine import Log, SimulatedMove

__all__ = ["COVER_PERCENT", "Replayed", "replay"]

Ints = NDArray[np.int64]

COVER_PERCENT = 95
"""Part of the mix that typical pods cover. Source: the artifact of "Beware of Fragmentation" (ATC 2023)."""

_LEAVES, _COMES, _LEAVES_AT_ONCE = 0, 1, 2
"""Steps of one moment, in their order: room is given back before it is taken."""


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """The states a run went through, one after each step."""

    at_s: NDArray[np.float64]
    fragmented_percent: NDArray[np.float64]
    """Idle GPU that the mix of pods cannot use, in percent of capacity."""
    idle_percent: NDArray[np.float64]
    """Idle GPU in percent of capacity."""
    refused_though_fitting: int
    """Pods dropped though some node fitted them."""


def replay(log: Log) -> Replayed:
    """Return what a run went through; a step is an arrival or a departure. Cost: some 30 microseconds a step."""
    walk = _Walk(log)
    at_s, fragmented, idle = [], [], []
    for moment_s, step, index in _steps(log):
        if step == _COMES:
            walk.come(index)
        else:
            walk.leave(index)
        at_s.append(moment_s)
        fragmented.append(walk.fragmented)
        idle.append(walk.idle)
    whole = FULL * sum(len(node.gpus) for node in log.workload.snapshot.nodes)
    return Replayed(
        at_s=np.array(at_s),
        fragmented_percent=100 * np.array(fragmented, dtype=np.float64) / (walk.weight * whole),
        idle_percent=100 * np.array(idle, dtype=np.float64) / whole,
        refused_though_fitting=walk.refused,
    )


def _steps(log: Log) -> list[tuple[float, int, int]]:
    """Return time, step and arrival, in the order of the run; dropped pods come when they arrived."""
    steps = []
    times = zip(log.workload.arrivals, log.placed_s, log.left_s, strict=True)
    for index, (arrival, placed_s, left_s) in enumerate(times):
        steps.append((placed_s if placed_s < math.inf else arrival.at_s, _COMES, index))
        if left_s < math.inf:
            steps.append((left_s, _LEAVES if left_s > placed_s else _LEAVES_AT_ONCE, index))
    return sorted(steps)


class _Walk:
    """A fleet that follows the log, with the fragmentation of each node."""

    def __init__(self, log: Log) -> None:
        workload = log.workload
        self.log = log
        self.fleet = Fleet.of(workload.snapshot)
        self.kind_of = [arrival.kind for arrival in workload.arrivals]
        self.needs = workload.kinds
        self.demands: dict[int, Demand] = {}
        self.nodes: Ints = np.arange(len(self.fleet.nodes))
        self.placed: dict[int, Choice] = {}
        self.full: set[int] = set()
        self.refused = 0
        self.moves: dict[int, SimulatedMove] = {move.made_for: move for move in log.moves}
        self._fragmentation = Fragmentation(self.fleet, typical(workload.mix, cover_percent=COVER_PERCENT))
        self.weight = self._fragmentation.weight
        self._amounts = self._fragmentation.amount(self.fleet, self.nodes).tolist()
        self._idle = self.fleet.remaining.sum(0).tolist()
        self.fragmented = sum(self._amounts)
        self.idle = sum(self._idle)

    def come(self, index: int) -> None:
        """Follow one arrival."""
        spot = self.log.spots[index]
        if spot is None:
            self.refuse(self.kind_of[index])
            return
        move = self.moves.get(index)
        if move is not None:
            self.leave(move.moved)
        self._take(index, spot)
        if move is not None:
            self._take(move.moved, move.spot)

    def leave(self, index: int) -> None:
        """Follow one departure."""
        spot = self.placed.pop(index)
        self.fleet.give(spot.node, self.needs[self.kind_of[index]], spot.shares)
        self.full.clear()
        self._note(spot.node)

    def refuse(self, kind: int) -> None:
        """Count a pod that was dropped though a node fits; what fits nowhere does so until someone leaves."""
        if self.log.rules.queue != "drop" or kind in self.full:
            return
        if kind not in self.demands:
            self.demands[kind] = Demand(self.needs[kind], self.fleet)
        demand = self.demands[kind]
        fitting = self.nodes[demand.fits(self.fleet, self.nodes)]
        if any(serve(self.fleet, demand, node, Tightest()) is not None for node in fitting.tolist()):
            self.refused += 1
        else:
            self.full.add(kind)

    def _take(self, index: int, spot: Choice) -> None:
        self.placed[index] = spot
        self.fleet.take(spot.node, self.needs[self.kind_of[index]], spot.shares)
        self._note(spot.node)

    def _note(self, node: int) -> None:
        """Bring the sums up to date with one node."""
        amount = int(self._fragmentation.amount(self.fleet, self.nodes[node : node + 1])[0])
        idle = int(self.fleet.remaining[:, node].sum())
        self.fragmented += amount - self._amounts[node]
        self.idle += idle - self._idle[node]
        self._amounts[node], self._idle[node] = amount, idle
