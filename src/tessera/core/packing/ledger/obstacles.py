"""Why a pod's devices do not fit a node, for thousands of nodes at once, in few and short texts."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tessera.core.cluster.gputypes import MODE_BIT, GpuType, Ints
from tessera.core.gpu.rooms import profile_of, rooms
from tessera.core.gpu.sharing import Device, Mode, of_other_allocator
from tessera.core.packing.fit import Demand, Fleet
from tessera.core.packing.fit.demand import Devices
from tessera.core.packing.fit.ways import Amount, Cut, Way, Whole
from tessera.core.workload.need import Ask, Form

__all__ = ["Obstacle", "Obstacles", "allocated_by_name", "size"]

_GIB: Final = 1024
_TEXTS: Final = (
    "has a place for each device alone, but not for all together",
    "the node has no GPU",
    "no GPU of model {models}",
    "no GPU here can give {one}",
    "{by_name}",
    "its devices are allocated by the scheduler: ask for an amount of tessera.dev/gpu-memory instead of {one}",
    "needs {count} x {one}, the node can give {value} at most",
    "needs {one}, every GPU that could give it is in use, in use in another mode, or closed",
    "needs {count} x {one}, {value} free",
    "needs {memory} on one GPU, at most {left} is left on any (GPU {gpu})",
    "needs {compute} % compute on one GPU, at most {value} % is left where the memory is enough (GPU {gpu})",
    "needs a place for {profile}, at most {value} MIG units are free, in pieces (GPU {gpu})",
)
(
    _TOGETHER,
    _NO_GPU,
    _NO_MODEL,
    _UNABLE,
    _BY_NAME,
    _BY_SCHEDULER,
    _FEW_ABLE,
    _BUSY,
    _FEW_FREE,
    _MEMORY,
    _COMPUTE,
    _UNITS,
) = range(len(_TEXTS))
_HOPELESS: Final = frozenset({_NO_GPU, _NO_MODEL, _UNABLE, _BY_NAME, _BY_SCHEDULER, _FEW_ABLE})
"""What stays in the way even if nothing runs on the node."""
_GPU_BITS: Final = 16
_VALUE_BITS: Final = 32
_ASK_BITS: Final = 8


class Obstacle(NamedTuple):
    """What keeps a pod off a node."""

    text: str
    """Without full stop."""
    hopeless: bool
    """Whether it stays even if nothing runs on the node."""


class Obstacles:
    """The obstacles of one need on a fleet; nodes with the same have the same code."""

    def __init__(self, fleet: Fleet, demand: Demand) -> None:
        self._fleet = fleet
        self._demand = demand
        self._models = np.array([_allowed(demand, t.model.name) for t in fleet.types])
        self._most = [np.array(_most(fleet, devices), dtype=np.int64) for devices in demand.devices]
        self._others = [
            np.array([bool(_other_s(each, devices.ask)) for each in fleet.types]) & self._models
            for devices in demand.devices
        ]
        self._told: dict[int, Obstacle] = {}

    def codes(self, nodes: Ints) -> Ints:
        """Return a code for each of `nodes`, on which the pod does not fit; the first ask that is short decides."""
        kinds = self._fleet.kind.take(nodes, 1)
        codes = np.full(len(nodes), -1, dtype=np.int64)
        _put(codes, np.logical_and.reduce(kinds == 0), _code(_NO_GPU))
        _put(codes, np.logical_and.reduce(~self._models[kinds]), _code(_NO_MODEL))
        for number, (devices, most) in enumerate(zip(self._demand.devices, self._most, strict=True)):
            able = most[kinds].sum(axis=0)
            _put(codes, able == 0, self._unable(number, devices.ask, kinds))
            _put(codes, able < devices.ask.count, _code(_FEW_ABLE, number, able))
        for number, (devices, most) in enumerate(zip(self._demand.devices, self._most, strict=True)):
            left = (codes < 0).nonzero()[0]
            if len(left):
                codes[left] = self._now(number, devices, most, nodes[left])
        codes[codes < 0] = _code(_TOGETHER)
        return codes

    def tell(self, code: int) -> Obstacle:
        """Return what a code stands for."""
        if code not in self._told:
            self._told[code] = self._tell(code)
        return self._told[code]

    def _unable(self, number: int, ask: Ask, kinds: Ints) -> Ints:
        """Return that no GPU serves an ask, or the type of the first whose devices would if their allocator did."""
        if not self._others[number].any():
            return _code(_UNABLE, number)
        others = self._others[number][kinds]
        first = np.take_along_axis(kinds, others.argmax(axis=0)[np.newaxis], axis=0)[0]
        what = _BY_SCHEDULER if ask.form is Form.EXACT else _BY_NAME
        return np.where(others.any(axis=0), _code(what, number, 0, first), _code(_UNABLE, number))

    def _now(self, number: int, devices: Devices, most: Ints, nodes: Ints) -> Ints:
        """Return what is short for one ask on nodes that could serve it if they were free; -1 where nothing is."""
        free = devices.per_gpu(self._fleet, nodes).sum(axis=0)
        able = most[self._fleet.kind.take(nodes, 1)] > 0
        codes = np.where(free < devices.ask.count, _code(_FEW_FREE, number, free), -1)
        none = (free == 0) & (codes >= 0)
        ways = [way for tier in devices.tiers for way in tier]
        if any(isinstance(way, Amount) for way in ways):
            nearest = self._amounts(number, devices.ask, able, nodes)
        elif any(isinstance(way, Cut) for way in ways):
            nearest = self._units(number, able, nodes)
        else:
            nearest = np.full(len(nodes), _code(_BUSY, number), dtype=np.int64)
        return np.where(none, nearest, codes)

    def _amounts(self, number: int, ask: Ask, able: NDArray[np.bool_], nodes: Ints) -> Ints:
        """Return the GPU with most memory left among those that serve amounts, or what else is in the way."""
        fleet = self._fleet
        modes = MODE_BIT[Mode.MPS] | MODE_BIT[Mode.MEMORY_SHARE]
        serving = able & ((fleet.serves.take(nodes, 1) & modes) > 0)
        memory = np.where(serving, fleet.memory_left.take(nodes, 1), -1)
        compute = np.where(memory >= ask.memory_mib, fleet.compute_left.take(nodes, 1), -1)
        by_memory, most_memory = self._best(memory, nodes)
        by_compute, most_compute = self._best(compute, nodes)
        found = np.where(
            most_compute >= 0,
            _code(_COMPUTE, number, most_compute, by_compute),
            _code(_MEMORY, number, most_memory, by_memory),
        )
        return np.where(most_memory >= 0, found, _code(_BUSY, number))

    def _units(self, number: int, able: NDArray[np.bool_], nodes: Ints) -> Ints:
        """Return the GPU with most MIG units free among those that can be cut, or what else is in the way."""
        fleet = self._fleet
        units = np.array([t.model.units for t in fleet.types], dtype=np.int64)[fleet.kind.take(nodes, 1)]
        used = np.bitwise_count(fleet.used.take(nodes, 1) & ((1 << units) - 1)).astype(np.int64)
        serving = able & ((fleet.serves.take(nodes, 1) & MODE_BIT[Mode.MIG]) > 0)
        by_units, most = self._best(np.where(serving, units - used, -1), nodes)
        return np.where(most >= 0, _code(_UNITS, number, most, by_units), _code(_BUSY, number))

    def _best(self, values: Ints, nodes: Ints) -> tuple[Ints, Ints]:
        """Return the index of the GPU with the highest value on each node, the first of equals, and that value."""
        rows = values.argmax(axis=0)
        index = [
            self._fleet.gpu_index[node][row] if row < len(self._fleet.gpu_index[node]) else 0
            for node, row in zip(nodes.tolist(), rows.tolist(), strict=True)
        ]
        return np.array(index, dtype=np.int64), values.max(axis=0)

    def _tell(self, code: int) -> Obstacle:
        value = code & ((1 << _VALUE_BITS) - 1)
        gpu = code >> _VALUE_BITS & ((1 << _GPU_BITS) - 1)
        number = code >> (_VALUE_BITS + _GPU_BITS) & ((1 << _ASK_BITS) - 1)
        what = code >> (_VALUE_BITS + _GPU_BITS + _ASK_BITS)
        text = self._text(what, self._demand.devices[number], value, gpu)
        return Obstacle(text, what in _HOPELESS)

    def _text(self, what: int, devices: Devices, value: int, gpu: int) -> str:
        ask = devices.ask
        return _TEXTS[what].format(
            models=" or ".join(self._demand.need.models),
            one=_one(ask),
            count=ask.count,
            memory=size(ask.memory_mib, up=True),
            compute=ask.compute_percent,
            profile=_profile(devices),
            value=value,
            left=size(value),
            gpu=gpu,
            by_name=allocated_by_name(_other_s(self._fleet.types[gpu], ask)) if what == _BY_NAME else "",
        )


def allocated_by_name(devices: Iterable[Device], policy: str = "") -> str:
    """Return that a need is not served by devices which are the kubelet's, and what to do; names the first two.

    Args:
        devices: those that would serve it.
        policy: name of the GPUPolicy that applies; empty where that is not known.

    """
    names = " or ".join(list(dict.fromkeys(device.resource for device in devices))[:2])
    where = f"GPUPolicy {policy}" if policy else "a GPUPolicy"
    return f"its devices are allocated by name ({names}): ask for one by name, or set allocator: scheduler in {where}"


def size(memory_mib: int, *, up: bool = False) -> str:
    """Return an amount of memory for people, in GiB with a tenth from 1 GiB on, rounded down or up."""
    if memory_mib < _GIB:
        return f"{memory_mib} MiB"
    tenths = -(-10 * memory_mib // _GIB) if up else 10 * memory_mib // _GIB
    return f"{tenths / 10:g} GiB"


def _other_s(gpu_type: GpuType, ask: Ask) -> tuple[Device, ...]:
    return of_other_allocator(ask, gpu_type.model, gpu_type.memory_mib, gpu_type.sharing)


def _allowed(demand: Demand, model: str) -> bool:
    return bool(model) and (not demand.need.models or model in demand.need.models)


def _most(fleet: Fleet, devices: Devices) -> list[int]:
    """Return how many devices of an ask a free GPU of each type could serve, at most."""
    ways = [way for tier in devices.tiers for way in tier]
    found = [sum(_of_free(fleet, way, kind) for way in ways) for kind in range(len(fleet.types))]
    return found if devices.ask.form is Form.EXACT else [min(each, 1) for each in found]


def _of_free(fleet: Fleet, way: Way, kind: int) -> int:
    if kind not in way.by_type:
        return 0
    option, gpu_type = way.by_type[kind], fleet.types[kind]
    if isinstance(way, Cut):
        return int(rooms(gpu_type.model, profile_of(gpu_type.model, option.profile or ""))[0])
    if isinstance(way, Amount | Whole):
        return 1
    return sum(device.clients for device in gpu_type.devices if device.option == option)


def _code(what: int, number: int = 0, value: Ints | int = 0, gpu: Ints | int = 0) -> Ints:
    """Return a code; what is too large for it is cut to the largest."""
    most = np.minimum(value, (1 << _VALUE_BITS) - 1).astype(np.int64)
    index = np.clip(gpu, 0, (1 << _GPU_BITS) - 1).astype(np.int64)
    ask = min(number, (1 << _ASK_BITS) - 1)
    code: Ints = (((what << _ASK_BITS) + ask) << (_GPU_BITS + _VALUE_BITS)) + (index << _VALUE_BITS) + most
    return code


def _put(codes: Ints, where: NDArray[np.bool_], code: Ints) -> None:
    """Set the codes that are not set yet."""
    np.copyto(codes, code, where=where & (codes < 0))


def _one(ask: Ask) -> str:
    """Return one device of an ask in words."""
    if ask.form is Form.EXACT:
        return ask.resource
    compute = f" and {ask.compute_percent} % compute" if ask.compute_percent else ""
    grade = f" with {ask.isolation} isolation" if ask.isolation != "none" else ""
    return f"{size(ask.memory_mib, up=True)}{compute}{grade}"


def _profile(devices: Devices) -> str:
    """Return the MIG profiles that would serve, the first two."""
    ways: Sequence[Way] = [way for tier in devices.tiers for way in tier if isinstance(way, Cut)]
    names = dict.fromkeys(option.profile or "" for way in ways for option in way.by_type.values())
    return " or ".join(list(names)[:2])
