"""The exact answer for one node: the shares a pod would get there, or that it does not fit."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from tessera.core.cluster.snapshot import Share
from tessera.core.gpu.instancecounts import profile_of, starts
from tessera.core.packing.fit.demand import Demand
from tessera.core.packing.fit.fleet import Fleet
from tessera.core.packing.fit.ways import Existing, NewInstance, Way
from tessera.core.workload.need import DeviceRequest, Form

__all__ = ["Preference", "Tightest", "serve"]


class Preference(Protocol):
    """Preferences inside a node."""

    def gpus(self, fleet: Fleet, node: int, demand: Demand, rows: Sequence[int]) -> Sequence[int]:
        """Return the GPUs `rows`, all of which can serve a device of `demand`, the preferred first."""
        ...

    def starts(self, fleet: Fleet, node: int, row: int, way: NewInstance) -> Sequence[int]:
        """Return the starts at which GPU `row` can create the instance of `way`, the preferred first."""
        ...


class Tightest:
    """The GPU with least left, then the lowest index; the lowest start."""

    def gpus(self, fleet: Fleet, node: int, demand: Demand, rows: Sequence[int]) -> Sequence[int]:
        """Return `rows` by what is left; see `Preference`."""
        del demand
        remaining = fleet.remaining[:, node].tolist()
        return sorted(rows, key=remaining.__getitem__)

    def starts(self, fleet: Fleet, node: int, row: int, way: NewInstance) -> Sequence[int]:
        """Return the free starts, lowest first; see `Preference`."""
        return free_starts(fleet, node, row, way)


def free_starts(fleet: Fleet, node: int, row: int, way: NewInstance) -> tuple[int, ...]:
    """Return the starts at which GPU `row` can create the instance of `way`, lowest first."""
    kind = int(fleet.kind[row, node])
    model = fleet.types[kind].model
    return starts(model, profile_of(model, way.by_type[kind].profile or ""), int(fleet.used[row, node]))


def serve(fleet: Fleet, demand: Demand, node: int, preference: Preference) -> tuple[Share, ...] | None:
    """Return the shares that would serve the requests of `demand` on `node`, in their order; None if they do not fit.

    Cpu, memory and admission are ignored: see `Demand.fits`. Preferred GPUs come first; if one device's choice
    leaves a later one nothing, it backtracks. The fleet is changed meanwhile and restored. Cost: one step
    a device in the usual case, at worst one a distinct state of the node.
    """
    search = _Search(fleet, demand, node, preference)
    if len(search.sought) == 1:
        share = next(search.candidates(), None)
        return None if share is None else (share,)
    try:
        return tuple(search.shares) if search.complete() else None
    finally:
        for share in search.shares:
            fleet.drop(node, share)


class _Search:
    def __init__(self, fleet: Fleet, demand: Demand, node: int, preference: Preference) -> None:
        self.fleet = fleet
        self.demand = demand
        self.node = node
        self.preference = preference
        self.sought = [devices for devices in demand.devices for _ in range(devices.request.count)]
        self.shares: list[Share] = []
        self._rows: list[int] = []

    def complete(self) -> bool:
        """Take a share for every requested device; return whether that was possible."""
        tried: set[object] = set()
        trail = [self.candidates()]
        while trail and len(self.shares) < len(self.sought):
            for share in trail[-1]:
                self.fleet.hold(self.node, share)
                self.shares.append(share)
                state = len(self.shares), self._excluded_gpus(), self.fleet.state(self.node)
                if state not in tried:
                    tried.add(state)
                    trail.append(self.candidates())
                    break
                self.fleet.drop(self.node, self.shares.pop())
            else:
                trail.pop()
                if self.shares:
                    self.fleet.drop(self.node, self.shares.pop())
        return len(self.shares) == len(self.sought)

    def candidates(self) -> Iterator[Share]:
        """Yield the shares that would serve the next device, the preferred first."""
        devices = self.sought[len(self.shares)]
        taken = self._excluded_gpus()
        nodes = np.array([self.node])
        for way in (way for tier in devices.tiers for way in tier):
            rows = way.capacity(self.fleet, nodes)[:, 0].nonzero()[0].tolist()
            free = [row for row in rows if self.fleet.gpu_index[self.node][row] not in taken] if taken else rows
            for row in free if self._alike(free) else self.preference.gpus(self.fleet, self.node, self.demand, free):
                yield from self._shares(way, row, devices.request)

    def _alike(self, rows: Sequence[int]) -> bool:
        """Return whether there is nothing to prefer: one GPU, or all of one type and free."""
        if len(rows) < 2:  # noqa: PLR2004 (nothing to compare)
            return True
        column = self.node
        clients, kind = self.fleet.clients[:, column].tolist(), self.fleet.kind[:, column].tolist()
        return all(not clients[row] and kind[row] == kind[rows[0]] for row in rows)

    def _excluded_gpus(self) -> tuple[int, ...]:
        """Return the GPUs that the request of the next device may not use again."""
        at = min(len(self.shares), len(self.sought) - 1)
        devices = self.sought[at]
        if devices.request.form is Form.EXACT:
            return ()
        allocated = zip(self.sought, self.shares, strict=False)
        return tuple(sorted(share.gpu for of, share in allocated if of is devices))

    def _shares(self, way: Way, row: int, request: DeviceRequest) -> Iterator[Share]:
        option = way.by_type[int(self.fleet.kind[row, self.node])]
        gpu = self.fleet.gpu_index[self.node][row]
        if isinstance(way, NewInstance):
            for start in self.preference.starts(self.fleet, self.node, row, way):
                yield Share.of(gpu, request, option, start)
        elif isinstance(way, Existing):
            yield Share.of(gpu, request, option, self.fleet.free_start(self.node, row, option))
        else:
            yield Share.of(gpu, request, option)
