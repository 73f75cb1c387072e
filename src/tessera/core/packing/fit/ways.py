"""The ways to serve one device of a request, each as a capacity over the whole fleet.

`core.gpu.sharing.options` has the options of a GPU type for a request; here equal options become arrays, so that one
call answers for thousands of nodes.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tessera.core.cluster.gputypes import MODE_BIT, Counts, Ints
from tessera.core.gpu.instancecounts import profile_of, rooms
from tessera.core.gpu.sharing import AMOUNT_MODES, Mode, Option
from tessera.core.packing.fit.deviceclasses import class_of
from tessera.core.packing.fit.fleet import Fleet
from tessera.core.packing.fit.spread import Spread
from tessera.core.workload.need import DeviceRequest, Form

__all__ = ["Amount", "Existing", "NewInstance", "Way", "Whole", "ways_of"]

ByType = dict[int, Option]
"""The GPU types with this way, and its share there."""


class Way(Protocol):
    """One way to serve a device of a request."""

    @property
    def by_type(self) -> ByType:
        """The GPU types with this way, and its share there."""
        ...

    def capacity(self, fleet: Fleet, nodes: Ints) -> Counts:
        """Return how many devices of the request each GPU of `nodes` could serve this way, `(gpus, len(nodes))`."""
        ...


class Whole:
    """A whole GPU that is free."""

    def __init__(self, fleet: Fleet, by_type: ByType) -> None:
        self.by_type = by_type
        self._open = _Open(fleet, by_type, MODE_BIT[Mode.WHOLE])

    def capacity(self, fleet: Fleet, nodes: Ints) -> Counts:
        """Return 1 where the GPU is free."""
        return self._open.serving(fleet, nodes)


class Amount:
    """An amount of compute and memory of a GPU, in one mode."""

    def __init__(self, fleet: Fleet, by_type: ByType) -> None:
        self.by_type = by_type
        option = next(iter(by_type.values()))
        self.compute_percent = option.compute_percent
        self.memory_mib = option.memory_mib
        self._mode = AMOUNT_MODES.index(option.mode)
        self._only = _only(fleet, by_type, MODE_BIT[option.mode])

    def capacity(self, fleet: Fleet, nodes: Ints) -> Counts:
        """Return 1 where the GPU has that much left in this mode."""
        fits: NDArray[np.bool_] = fleet.amounts[self._mode].take(nodes, 1) >= self.compute_percent
        if self.memory_mib:
            fits &= fleet.memory_left.take(nodes, 1) >= self.memory_mib
        if self._only is not None:
            fits &= self._only.values.take(nodes, 1)
        return fits.view(np.int8)


class NewInstance:
    """A MIG instance to be created, where unused instances may be in the way but no used one."""

    def __init__(self, fleet: Fleet, by_type: ByType) -> None:
        self.by_type = by_type
        self._open = _Open(fleet, by_type, MODE_BIT[Mode.MIG])
        tables = [np.zeros(1, dtype=np.int8)]
        offsets = np.zeros(len(fleet.types), dtype=np.int64)
        for i, option in by_type.items():
            model = fleet.types[i].model
            offsets[i] = sum(map(len, tables))
            tables.append(rooms(model, profile_of(model, option.profile or "")))
        self._rooms = np.concatenate(tables).astype(np.int64)
        self._offset: Ints = offsets

    def capacity(self, fleet: Fleet, nodes: Ints) -> Counts:
        """Return how many instances fit beside those in use."""
        offset = self._offset.take(fleet.kind.take(nodes, 1))
        state = np.where(offset, offset + fleet.used.take(nodes, 1), 0)
        room: Ints = self._rooms.take(state) * self._open.serving(fleet, nodes)
        return room


class Existing:
    """A free client of an existing device."""

    def __init__(self, fleet: Fleet, by_type: ByType) -> None:
        self.by_type = by_type
        self._class = fleet.classes[class_of(next(iter(by_type.values())))]
        self._types = _allowed(fleet, by_type)

    def capacity(self, fleet: Fleet, nodes: Ints) -> Counts:
        """Return how many clients are free."""
        free: Ints = fleet.offers[self._class].take(nodes, 1) * self._types.values.take(nodes, 1)
        return free


def ways_of(request: DeviceRequest, fleet: Fleet, models: tuple[str, ...]) -> tuple[tuple[Way, ...], ...]:
    """Return the ways to serve one device of `request` in tiers, the tier to prefer first; models empty means any.

    An exact request has one tier: any device of the name serves it. For shares and needs a weaker mode is preferred
    to a stronger one on the whole fleet, and a smaller device to a larger one, so that no pod takes a GPU where a part
    would do.
    """
    groups: dict[tuple[object, ...], ByType] = {}
    for i in fleet.present:
        gpu_type = fleet.types[i]
        if not models or gpu_type.model.name in models:
            for option in gpu_type.options(request):
                groups.setdefault(_rank(request, option), {}).setdefault(i, option)
    ways = tuple(_way(fleet, groups[rank]) for rank in sorted(groups))
    return (ways,) if request.form is Form.EXACT else tuple((way,) for way in ways)


_ORDER = (Mode.MEMORY_SHARE, Mode.MPS, Mode.MIG, Mode.WHOLE)


def _rank(request: DeviceRequest, option: Option) -> tuple[object, ...]:
    """Return the rank of an option in the fleet; options of equal rank are one way."""
    size = option.memory_mib, option.compute_percent
    if option.exists and option.mode is not Mode.WHOLE:
        return 0, *size, option.mode, option.profile or "", option.resource
    place = 1 + _ORDER.index(option.mode)
    return (place,) if request.form is Form.EXACT else (place, *size)


def _way(fleet: Fleet, by_type: ByType) -> Way:
    option = next(iter(by_type.values()))
    if option.mode is Mode.WHOLE:
        return Whole(fleet, by_type)
    if option.exists:
        return Existing(fleet, by_type)
    return NewInstance(fleet, by_type) if option.mode is Mode.MIG else Amount(fleet, by_type)


class _Open:
    """Where a way is open: GPUs of its types that serve its mode now."""

    def __init__(self, fleet: Fleet, by_type: ByType, bit: int) -> None:
        self._bit = bit
        self._only = _only(fleet, by_type, bit)

    def serving(self, fleet: Fleet, nodes: Ints) -> NDArray[np.int8]:
        """Return 1 where open; 0 elsewhere."""
        serving: NDArray[np.bool_] = (fleet.serves.take(nodes, 1) & self._bit) > 0
        if self._only is not None:
            serving &= self._only.values.take(nodes, 1)
        return serving.view(np.int8)


def _only(fleet: Fleet, by_type: ByType, bit: int) -> Spread[np.bool_] | None:
    """Return `_allowed` where GPUs of other types serve the mode too; None where none does."""
    others = any(t.serves & bit for i, t in enumerate(fleet.types) if i not in by_type)
    return _allowed(fleet, by_type) if others else None


def _allowed(fleet: Fleet, by_type: ByType) -> Spread[np.bool_]:
    """Return whether GPUs are of the types, `(gpus, nodes)`."""
    return Spread(fleet, np.isin(np.arange(len(fleet.types)), list(by_type)))
