"""Which single running pod to move so that another fits, on a packer's fleet: in milliseconds, for simulated time.

`propose` finds the fewest moves on a live cluster, whose pods have owners and budgets; here only the fleet counts
(docs/decisions/0036-one-move-in-the-simulator.md).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tessera.core.packing.fit import CPU, Fleet, Tightest
from tessera.core.packing.fit.onenode import serve
from tessera.core.packing.pack import Choice, Packer

__all__ = ["MadeRoom", "Mover"]

_Running = tuple[int, Choice]
_Bools = NDArray[np.bool_]


class MadeRoom(NamedTuple):
    """What one move did."""

    spot: Choice
    """Of the pod that fits now."""
    moved: int
    """Number of the pod that moved."""
    elsewhere: Choice
    """Its new place."""


class Mover:
    """Moves one pod so that another fits; trials run on a copy of the packer's fleet."""

    def __init__(self, packer: Packer) -> None:
        self._packer = packer
        self._nodes = np.arange(len(packer.fleet.nodes))
        self._empty = Fleet(packer.fleet.nodes)
        self._possible: dict[int, _Bools] = {}

    def make_room(self, kind: int, running: Iterable[tuple[int, int, Choice]]) -> MadeRoom | None:
        """Place a pod of `kind` after moving one of `running`; None where no single move helps.

        `running` is number, kind and place of the pods that may move; one moves that fits on another node while it
        still has its place. The smallest pods are tried first: by their part of GPUs, then by cpu, then by
        number. Cost: milliseconds, where little can move; some 30 microseconds for each pod tried.
        """
        by_number = {number: (of_kind, spot) for number, of_kind, spot in running}
        moved = self._find(kind, by_number)
        if moved is None:
            return None
        of_kind, before = by_number[moved]
        self._packer.release(of_kind, before)
        spot = self._packer.place(kind, again=True)
        elsewhere = self._packer.place(of_kind, again=True)
        assert spot is not None, "it fits"
        assert elsewhere is not None, "it fits elsewhere"
        return MadeRoom(spot, moved, elsewhere)

    def _find(self, kind: int, running: Mapping[int, _Running]) -> int | None:
        """Return the number of a pod that fits on another node and makes room for a pod of `kind`."""
        if kind not in self._possible:
            self._possible[kind] = self._fitting(self._empty, kind, self._nodes)
        possible = self._possible[kind]
        by_kind: dict[int, list[_Running]] = defaultdict(list)
        for number, (of_kind, spot) in running.items():
            if possible[spot.node]:
                by_kind[of_kind].append((number, spot))
        fleet = self._packer.fleet.copy()
        for other in sorted(by_kind, key=self._takes):
            for number, spot in self._movable(other, by_kind[other]):
                if self._helps(fleet, kind, other, spot):
                    return number
        return None

    def _takes(self, kind: int) -> tuple[int, int, int]:
        need = self._packer.demand(kind).need
        gpus = sum(request.count * (request.compute_percent or 100) for request in need.requests)
        return gpus, need.cpu_milli, kind

    def _movable(self, kind: int, running: list[_Running]) -> Iterator[_Running]:
        """Yield the pods of one kind that fit somewhere else; of those on the same GPUs the first."""
        elsewhere = self._fitting(self._packer.fleet, kind, self._nodes)
        count = int(elsewhere.sum())
        if not count:
            return
        tried: set[tuple[int, ...]] = set()
        for number, spot in running:
            place = (spot.node, *(share.gpu for share in spot.shares))
            if place not in tried and count > elsewhere[spot.node]:
                tried.add(place)
                yield number, spot

    def _helps(self, fleet: Fleet, kind: int, other: int, spot: Choice) -> bool:
        """Return whether `kind` fits where a pod of kind `other` is now, once that is gone."""
        removed, added = self._packer.demand(other).need, self._packer.demand(kind).need
        if fleet.room[CPU, spot.node] + removed.cpu_milli < added.cpu_milli:
            return False
        fleet.give(spot.node, removed, spot.shares)
        fits = self._fitting(fleet, kind, self._nodes[spot.node : spot.node + 1])
        fleet.take(spot.node, removed, spot.shares)
        return bool(fits[0])

    def _fitting(self, fleet: Fleet, kind: int, nodes: NDArray[np.int64]) -> _Bools:
        """Return which of `nodes` fit a kind, exactly."""
        demand = self._packer.demand(kind)
        fits = demand.fits(fleet, nodes)
        if not demand.exact:
            for at in fits.nonzero()[0].tolist():
                fits[at] = serve(fleet, demand, int(nodes[at]), Tightest()) is not None
        return fits
