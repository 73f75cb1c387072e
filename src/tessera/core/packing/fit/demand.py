"""A need compiled against a fleet: which nodes fit it, for thousands of nodes at once."""

import functools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tessera.core.cluster.gputypes import Counts, Ints
from tessera.core.cluster.snapshot import Node
from tessera.core.packing.fit.admission import admits
from tessera.core.packing.fit.fleet import Fleet
from tessera.core.packing.fit.mixednames import mixtures
from tessera.core.packing.fit.ways import Amount, Way, Whole, ways_of
from tessera.core.workload.need import DeviceRequest, Form, Need

__all__ = ["Demand", "Devices", "Room"]

Room = tuple[Counts, ...]
"""For each request how many of its devices each GPU could serve, `(gpus, nodes)`."""


class Devices(NamedTuple):
    """The devices of one request and the ways to serve each."""

    request: DeviceRequest
    tiers: tuple[tuple[Way, ...], ...]
    """Equally preferred ways together, the preferred tier first."""

    @property
    def exact(self) -> bool:
        """Whether `per_gpu` is exact: one device a GPU, or devices of one way on each."""
        if self.request.form is not Form.EXACT or self.request.count == 1:
            return True
        types = [gpu_type for tier in self.tiers for way in tier for gpu_type in way.by_type]
        return len(types) == len(set(types))

    def per_gpu(self, fleet: Fleet, nodes: Ints) -> Counts:
        """Return an upper bound of the devices that each GPU could serve, `(gpus, len(nodes))`.

        Shares and needs take one device a GPU. The bound is exact unless devices of several ways compete for one GPU.
        """
        ways = [way.capacity(fleet, nodes) for tier in self.tiers for way in tier]
        if not ways:
            return np.zeros((len(fleet.kind), len(nodes)), dtype=np.int64)
        total: Counts = functools.reduce(np.add, ways)
        return total if self.request.form is Form.EXACT else np.minimum(total, 1)

    def tier(self, fleet: Fleet, nodes: Ints) -> Ints:
        """Return for each of `nodes` the worst tier that serving the ask there takes at best, `(len(nodes),)`.

        Of no meaning where the request does not fit.
        """
        if self.request.count > len(fleet.kind):
            return np.zeros(len(nodes), dtype=np.int64)
        best = np.full((len(fleet.kind), len(nodes)), len(self.tiers), dtype=np.int64)
        for i, tier in reversed(list(enumerate(self.tiers))):
            best[sum(way.capacity(fleet, nodes) for way in tier) > 0] = i
        best.sort(axis=0)
        worst: Ints = best[self.request.count - 1]
        return worst


class Demand:
    """A need and everything fixed about it on one fleet.

    Args:
        need: the need.
        fleet: the fleet.
        devices_only: whether cpu, memory, the number of pods and admission are judged elsewhere.

    Attributes:
        need: the need.
        request: cpu, memory and one pod, as a column to compare with `Fleet.room`.
        admits: nodes that admit the pod ignoring free resources, `(nodes,)`; empty if only devices are judged.
        devices: its requests.
        exact: whether `fits` is sufficient, and not only necessary.
        sole: the only way to serve a pod for one device, where it takes a GPU or an amount of one; else None.

    """

    def __init__(self, need: Need, fleet: Fleet, *, devices_only: bool = False) -> None:
        self.need = need
        self.request: Ints = np.array([[need.cpu_milli], [need.memory_mib], [1]], dtype=np.int64)
        self.admits: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_) if devices_only else admitting(need, fleet)
        self.devices = tuple(
            Devices(request, ways_of(request, fleet, need.models)) for request in need.requests if request.count
        )
        self.exact = not self.devices[1:] and all(devices.exact for devices in self.devices)
        self._devices_only = devices_only
        self._admits_all = bool(self.admits.all())
        self._ranked = tuple(devices for devices in self.devices if len(devices.tiers) > 1)
        self._one = sum(devices.request.count for devices in self.devices) == 1
        ways = [way for devices in self.devices for tier in devices.tiers for way in tier]
        self.sole = ways[0] if self._one and len(ways) == 1 and isinstance(ways[0], Amount | Whole) else None

    def room(self, fleet: Fleet, nodes: Ints) -> Room:
        """Return `Devices.per_gpu` of each request."""
        if self.sole is not None:
            return (self.sole.capacity(fleet, nodes),)
        return tuple(devices.per_gpu(fleet, nodes) for devices in self.devices)

    def fits(self, fleet: Fleet, nodes: Ints, room: Room | None = None) -> NDArray[np.bool_]:
        """Return for each of `nodes` whether the pod fits, `(len(nodes),)`; see `exact`. `room` saves its work."""
        rooms = self.room(fleet, nodes) if room is None else room
        fits: NDArray[np.bool_]
        if self._devices_only:
            fits = np.ones(len(nodes), dtype=np.bool_)
        else:
            fits = np.logical_and.reduce(fleet.room.take(nodes, 1) >= self.request)
            if not self._admits_all:
                fits &= self.admits.take(nodes)
        if self._one:
            fits &= np.logical_or.reduce(rooms[0])
            return fits
        for devices, per_gpu in zip(self.devices, rooms, strict=True):
            fits &= np.add.reduce(per_gpu) >= devices.request.count
        return fits

    def tiers(self, fleet: Fleet, nodes: Ints) -> Ints | None:
        """Return the sum over the requests of `Devices.tier`; None where all nodes stand equal."""
        if not self._ranked:
            return None
        ranked = [devices.tier(fleet, nodes) for devices in self._ranked]
        return sum(ranked[1:], start=ranked[0])


def admitting(need: Need, fleet: Fleet) -> NDArray[np.bool_]:
    """Return which nodes admit a pod, ignoring what is free; computed once for nodes that are alike for this need."""
    labeled = bool(need.node_selector) or need.affinity is not None
    named = bool(need.node_name) or need.affinity is not None

    def looks(node: Node) -> tuple[object, ...]:
        counted = node.units is not None and need.unit_mib < node.units.mib
        units, models = counted and node.units, bool(need.cached_models) and node.cached_models
        gpus = bool(need.requests) and (node.problem, node.reported, node.withheld)
        return node.taints, node.unschedulable, labeled and node.labels, named and node.name, units, models, gpus

    alike: dict[tuple[object, ...], bool] = {}
    found = np.zeros(len(fleet.nodes), dtype=np.bool_)
    for column, node in enumerate(fleet.nodes):
        key = looks(node)
        if key not in alike:
            alike[key] = admits(need, node)
        found[column] = alike[key]
    found[list(mixtures(need, fleet, np.arange(len(found))))] = False
    return found
