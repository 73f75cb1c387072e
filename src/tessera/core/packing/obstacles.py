"""Obstacles: why a pod does not fit on a node, with a cause for programs and a text for people.

`Obstacles` finds what prevents devices, for thousands of nodes at once, as a code for each node (`obstaclecodes`), in
few and short texts. `firstobstacle` adds obstacles of the node itself, as its CPU and taints, and names the one that
counts where there are several. The scheduler extender prints the texts of devices; `tessera plan` and
`tessera explain pod` print all of them.
"""

import enum
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tessera.core.cluster.gputypes import MODE_BIT, GpuType, Ints
from tessera.core.cluster.snapshot import Gpu, Node, NodeName
from tessera.core.gpu.instancecounts import profile_of, rooms
from tessera.core.gpu.mig import placements, placements_of
from tessera.core.gpu.sharing import MPS_MODES, Device, Mode, mig_resource, of_other_allocator
from tessera.core.gpu.sharing import devices as devices_of
from tessera.core.packing.fit import CLOSED, UNHEALTHY, Demand, Fleet
from tessera.core.packing.fit.demand import Devices
from tessera.core.packing.fit.ways import Amount, NewInstance, Way, Whole
from tessera.core.packing.obstaclecodes import (
    MOST_RESTS,
    counted,
    counts,
    pack,
    rank_above,
    split_slices,
    unpack,
    used_slices,
    with_rest,
)
from tessera.core.workload.need import DeviceRequest, Form
from tessera.core.workload.units import gib

__all__ = [
    "UNREPORTED",
    "Cause",
    "Obstacle",
    "Obstacles",
    "allocated_by_name",
    "describe",
    "lasting",
    "offer_of",
]


class Cause(enum.StrEnum):
    """Why a node cannot take a pod; the nearest misses first."""

    DEVICES_BUSY = "devices-busy"
    DEVICES_FEW_FREE = "devices-few-free"
    ADVERTISED = "devices-advertised"
    MEMORY_LEFT = "gpu-memory-left"
    COMPUTE_LEFT = "gpu-compute-left"
    SLICES_LEFT = "memory-slices-left"
    TOGETHER = "not-together"
    CPU = "cpu"
    MEMORY = "memory"
    PODS = "pods"
    NOT_KNOWN = "not-known"
    UNREPORTED = "unreported"
    DEVICES_FEW = "devices-few"
    BY_NAME = "allocated-by-name"
    BY_SCHEDULER = "allocated-by-scheduler"
    MIXED = "devices-mixed"
    WITHHELD = "withheld"
    NO_AGENT = "no-agent"
    UNREADABLE = "unreadable"
    REFUSED = "refused"
    REQUEST = "request-unreadable"
    NO_DEVICE = "no-device"
    NO_MODEL = "no-gpu-model"
    NO_GPU = "no-gpu"

    @property
    def lasting(self) -> bool:
        """Whether it remains even on an empty node."""
        return _ORDER[self] > _ORDER[Cause.UNREPORTED]

    @property
    def rank(self) -> int:
        """Its rank among causes, the nearest miss first."""
        return _ORDER[self]


UNREPORTED: Final = "the node's agent has not reported its GPUs yet: check the agent there if this lasts"
_ORDER: Final = {cause: rank for rank, cause in enumerate(Cause)}
_CAUSES: Final = tuple(Cause)
_TEXTS: Final = {
    Cause.TOGETHER: "room for each request of the pod alone, but not for all of them together",
    Cause.UNREPORTED: UNREPORTED,
    Cause.NO_GPU: "the node has no GPU",
    Cause.NO_MODEL: "the node has no GPU of model {models}",
    Cause.NO_DEVICE: "no GPU of the node can provide {one}{alone}",
    Cause.BY_NAME: "{by_name}",
    Cause.BY_SCHEDULER: (
        "its devices are allocated by the scheduler: request an amount of tessera.dev/gpu-memory instead of {one}"
    ),
    Cause.DEVICES_FEW: "too few devices: {count} x {one} requested, the node can provide {value}",
    Cause.DEVICES_BUSY: "no room for {one}: {busy}",
    Cause.DEVICES_FEW_FREE: "too few free devices: {count} x {one} requested, {value} free",
    Cause.MEMORY_LEFT: "too little free GPU memory: {memory} requested, at most {left} free on one GPU (GPU {gpu})",
    Cause.COMPUTE_LEFT: (
        "too little free compute: {compute} % requested, at most {value} % free on a GPU with enough memory (GPU {gpu})"
    ),
    Cause.SLICES_LEFT: "{slices}",
}
_STATES: Final = (
    ("has no room for it either", "have no room for it either"),
    ("is allocated", "are allocated"),
    ("is partitioned by MIG", "are partitioned by MIG"),
    ("is shared by memory", "are shared by memory"),
    ("is shared by MPS", "are shared by MPS"),
    ("is unhealthy", "are unhealthy"),
    ("is closed to new pods", "are closed to new pods"),
)
"""What keeps a GPU that could serve a request from doing it now: of one, and of several."""
_FULL, _ALLOCATED, _PARTITIONED, _MEMORY_SHARE, _MPS, _UNHEALTHY, _CLOSED = range(len(_STATES))
_ALL, _ALL_BITS = range(len(_STATES)), 8
"""The states that a rest counts, and the bits of each number."""
_BUSY, _BUSY_BITS = range(_ALLOCATED, len(_STATES)), 5
"""The same of the value of `DEVICES_BUSY`, which has no full ones."""


class Obstacle(msgspec.Struct, frozen=True):
    """Why a pod does not fit on a node."""

    cause: Cause
    text: str
    """For people: the cause, then the fix; without full stop."""
    near: int = 0
    """How near a miss it is, among nodes with the same cause."""


def lasting(codes: Ints) -> NDArray[np.bool_]:
    """Return which codes of `Obstacles.codes` remain even on an empty node."""
    return rank_above(codes, Cause.UNREPORTED.rank)


class Obstacles:
    """The obstacles of one need on a fleet; nodes with the same obstacle have the same code.

    The text of an obstacle accounts for every GPU of a node.
    """

    def __init__(self, fleet: Fleet, demand: Demand) -> None:
        self._fleet = fleet
        self._demand = demand
        models = demand.need.models
        self._types = [each.healthy or each for each in fleet.types]
        """An unhealthy GPU has no room now, and is not reported as one of another kind."""
        self._models = np.array([bool(t.model.name) and (not models or t.model.name in models) for t in fleet.types])
        self._most = _most(fleet, demand)
        self._others = [
            np.array([bool(_other_s(each, devices.request)) for each in self._types]) & self._models
            for devices in demand.devices
        ]
        self._single = [
            np.array([_by_mps(each, devices.request) for each in self._types]) for devices in demand.devices
        ]
        """The types of which one GPU would serve by MPS what a request for several wants of each."""
        self._known: dict[int, Obstacle] = {}
        self._rests: dict[tuple[int, ...], int] = {(): 0}
        """The rest of a node by number: the types of its unable GPUs, sorted, then the states of the others."""

    def codes(self, nodes: Ints) -> Ints:
        """Return a code for each of `nodes`, on which the pod does not fit; the first request that is short decides."""
        kinds = self._fleet.kind.take(nodes, 1)
        codes = np.full(len(nodes), -1, dtype=np.int64)
        if self._fleet.unreported:
            _put(codes, np.isin(nodes, list(self._fleet.unreported)), pack(Cause.UNREPORTED.rank))
        _put(codes, np.logical_and.reduce(kinds == 0), pack(Cause.NO_GPU.rank))
        _put(codes, np.logical_and.reduce(~self._models[kinds]), pack(Cause.NO_MODEL.rank))
        for number, (devices, most) in enumerate(zip(self._demand.devices, self._most, strict=True)):
            able = most[kinds].sum(axis=0)
            _put(codes, able == 0, self._unable(number, devices.request, kinds))
            few = able < devices.request.count
            if few.any():
                _put(codes, few, pack(Cause.DEVICES_FEW.rank, number, able, rest=self._rest(kinds, most[kinds] == 0)))
        for number, (devices, most) in enumerate(zip(self._demand.devices, self._most, strict=True)):
            left = (codes < 0).nonzero()[0]
            if len(left):
                codes[left] = self._now(number, devices, most, nodes[left])
        codes[codes < 0] = pack(Cause.TOGETHER.rank)
        return codes

    def of_code(self, code: int) -> Obstacle:
        """Return the obstacle of a code."""
        if code not in self._known:
            self._known[code] = self._obstacle(code)
        return self._known[code]

    def _unable(self, number: int, request: DeviceRequest, kinds: Ints) -> Ints:
        """Return that no GPU serves a request, or the type of the first whose devices would, if its allocator did."""
        none = pack(Cause.NO_DEVICE.rank, number, (self._single[number] & self._models)[kinds].any(axis=0))
        if not self._others[number].any():
            return none
        others = self._others[number][kinds]
        rest = self._rest(kinds, ~others)
        first = np.take_along_axis(kinds, others.argmax(axis=0)[np.newaxis], axis=0)[0]
        cause = Cause.BY_SCHEDULER if request.form is Form.EXACT else Cause.BY_NAME
        return np.where(others.any(axis=0), pack(cause.rank, number, first, rest=rest), none)

    def _now(self, number: int, devices: Devices, most: Ints, nodes: Ints) -> Ints:
        """Return what is short for one request on nodes that could serve it if they were empty; -1 for nothing."""
        free = devices.per_gpu(self._fleet, nodes).sum(axis=0)
        kinds = self._fleet.kind.take(nodes, 1)
        able = most[kinds]
        rest = self._rest(kinds, able == 0)
        codes = np.where(free < devices.request.count, pack(Cause.DEVICES_FEW_FREE.rank, number, free, rest=rest), -1)
        none = (free == 0) & (codes >= 0)
        if not none.any():
            return codes
        states = np.where(able > 0, self._states(devices, nodes), -1)
        nearest = pack(Cause.DEVICES_BUSY.rank, number, counted(states, _BUSY, _BUSY_BITS), rest=rest)
        for sort, find in ((NewInstance, self._slices), (Amount, self._amounts)):
            serving = self._open(devices, sort, nodes)
            if serving.any():
                others = np.where(serving, -1 if sort is Amount else _FULL, states)
                left = counted(others, _ALL, _ALL_BITS)
                rest = self._rest(kinds, able == 0, left if sort is Amount else left - serving.any(axis=0))
                found = find(number, serving, nodes)
                nearest = np.where(found >= 0, with_rest(found, rest), nearest)
        return np.where(none, nearest, codes)

    def _rest(self, kinds: Ints, unable: NDArray[np.bool_], more: Ints | int = 0) -> Ints:
        """Return a number for the GPUs of each node that its obstacle leaves out; 0 for none, or too many kinds.

        Args:
            kinds: type of each GPU.
            unable: those that could never serve the request.
            more: of the others, how many are in each state, see `counted`.

        """
        counted = np.vstack((np.where(unable, kinds, 0), np.zeros(kinds.shape[1], dtype=np.int64) + more))
        if not counted.any():
            return np.zeros(kinds.shape[1], dtype=np.int64)
        counted[:-1].sort(axis=0)
        found = map(tuple, counted.T.tolist())
        return np.fromiter(map(self._numbered, found), dtype=np.int64, count=counted.shape[1])

    def _numbered(self, rest: tuple[int, ...]) -> int:
        """Return the number of a rest; 0, for no text, where there are too many different ones."""
        if rest not in self._rests and len(self._rests) < MOST_RESTS:
            self._rests[rest] = len(self._rests)
        return self._rests.get(rest, 0)

    def _open(self, devices: Devices, sort: type[Amount | NewInstance], nodes: Ints) -> NDArray[np.bool_]:
        """Return the GPUs that now serve one of the modes in which ways of this sort serve a request there."""
        modes = np.zeros(len(self._fleet.types), dtype=np.int64)
        for way in (way for tier in devices.tiers for way in tier if isinstance(way, sort)):
            for kind, option in way.by_type.items():
                modes[kind] |= MODE_BIT[option.mode] if self._fleet.types[kind].healthy is None else 0
        serving: NDArray[np.bool_] = (self._fleet.serves.take(nodes, 1) & modes[self._fleet.kind.take(nodes, 1)]) > 0
        return serving

    def _states(self, devices: Devices, nodes: Ints) -> Ints:
        """Return for each GPU what keeps it from serving a request that it could serve, an index into `_STATES`."""
        fleet, kinds = self._fleet, self._fleet.kind.take(nodes, 1)
        existing = [way for tier in devices.tiers for way in tier if not isinstance(way, Amount | NewInstance | Whole)]
        instances = np.array([any(kind in way.by_type for way in existing) for kind in range(len(fleet.types))])[kinds]
        shared = np.where(fleet.clients.take(nodes, 1) > 0, fleet.serves.take(nodes, 1), 0)
        states = np.full(kinds.shape, _ALLOCATED, dtype=np.int64)
        states[(fleet.used.take(nodes, 1) > 0) & ~instances] = _PARTITIONED
        states[(shared & MODE_BIT[Mode.MEMORY_SHARE]) > 0] = _MEMORY_SHARE
        states[(shared & MODE_BIT[Mode.MPS]) > 0] = _MPS
        closed = fleet.closed.take(nodes, 1)
        states[closed == UNHEALTHY] = _UNHEALTHY
        states[closed == CLOSED] = _CLOSED
        return states

    def _amounts(self, number: int, able: NDArray[np.bool_], nodes: Ints) -> Ints:
        """Return the GPU with most memory left among those that serve amounts; -1 where none does."""
        fleet, request = self._fleet, self._demand.devices[number].request
        memory = np.where(able, fleet.memory_left.take(nodes, 1), -1)
        compute = np.where(memory >= request.memory_mib, fleet.compute_left.take(nodes, 1), -1)
        most_memory, most_compute = memory.max(axis=0), compute.max(axis=0)
        found = np.where(
            most_compute >= 0,
            pack(Cause.COMPUTE_LEFT.rank, number, most_compute, self._index(compute.argmax(axis=0), nodes)),
            pack(Cause.MEMORY_LEFT.rank, number, most_memory, self._index(memory.argmax(axis=0), nodes)),
        )
        return np.where(most_memory >= 0, found, -1)

    def _slices(self, number: int, able: NDArray[np.bool_], nodes: Ints) -> Ints:
        """Return the GPU with most memory slices free among those that can be repartitioned; -1 where none can."""
        fleet = self._fleet
        kind = fleet.kind.take(nodes, 1)
        slices = np.array([t.model.memory_slices for t in fleet.types], dtype=np.int64)[kind]
        used = fleet.used.take(nodes, 1) & ((1 << slices) - 1)
        free = np.where(able, slices - np.bitwise_count(used).astype(np.int64), -1)
        rows = free.argmax(axis=0)
        value = np.take_along_axis(used_slices(kind, used), rows[np.newaxis], axis=0)[0]
        return np.where(
            free.max(axis=0) >= 0, pack(Cause.SLICES_LEFT.rank, number, value, self._index(rows, nodes)), -1
        )

    def _index(self, rows: Ints, nodes: Ints) -> Ints:
        """Return the index in its node of the GPU in each row, 0 where there is none."""
        index = self._fleet.gpu_index
        found = zip(nodes.tolist(), rows.tolist(), strict=True)
        return np.array([index[node][row] if row < len(index[node]) else 0 for node, row in found], dtype=np.int64)

    def _obstacle(self, code: int) -> Obstacle:
        rank, number, gpu, rest, value = unpack(code)
        cause = _CAUSES[rank]
        devices = self._demand.devices[number]
        request, near = devices.request, 0 if cause.lasting and cause is not Cause.DEVICES_FEW else value
        busy = counts(value, _BUSY, _BUSY_BITS) if cause is Cause.DEVICES_BUSY else {}
        parts = {}
        if cause is Cause.BY_NAME:
            parts["by_name"] = allocated_by_name(_other_s(self._types[value], request))
        if cause is Cause.DEVICES_BUSY:
            parts["busy"], near = _states_text(busy, _BUSY_BITS), sum(busy.values())
        if cause is Cause.SLICES_LEFT:
            parts["slices"], near = self._slices_text(devices, value, gpu)
        text = _TEXTS[cause].format(
            models=" or ".join(self._demand.need.models),
            one=_one(request),
            alone=f" on {request.count} GPUs: MPS gives a container a part of one GPU alone" if value else "",
            count=request.count,
            memory=gib(request.memory_mib, up=True),
            compute=request.compute_percent,
            value=value,
            left=gib(value),
            gpu=gpu,
            **parts,
        )
        return Obstacle(cause, "; ".join((text, *self._rest_texts(request, rest))), near)

    def _rest_texts(self, request: DeviceRequest, number: int) -> Iterator[str]:
        """Yield the text about the GPUs that an obstacle leaves out."""
        *kinds, more = next(rest for rest, known in self._rests.items() if known == number) or (0,)
        if more:
            yield _states_text(counts(more, _ALL, _ALL_BITS), _ALL_BITS, "more ")
        kinds_of = Counter(self._named(self._types[kind], request) for kind in kinds if kind)
        if kinds_of:
            named = (f"{count} x {name}" for name, count in sorted(kinds_of.items()))
            yield f"{' and '.join(named)} cannot provide it"

    def _named(self, gpu_type: GpuType, request: DeviceRequest) -> str:
        """Return a GPU that cannot serve a request, with what it has instead."""
        models, name = self._demand.need.models, gpu_type.model.name
        if models and name not in models:
            return name
        if _other_s(gpu_type, request):
            return (
                f"{name} whose devices are allocated {'by the scheduler' if request.form is Form.EXACT else 'by name'}"
            )
        return f"{name}{offer_of(gpu_type, request)}"

    def _slices_text(self, devices: Devices, value: int, gpu: int) -> tuple[str, int]:
        """Return the free memory slices of a GPU and the possible starts of the instance, and the number of slices."""
        kind, used = split_slices(value)
        model = self._fleet.types[kind].model
        ways = (way.by_type.get(kind) for tier in devices.tiers for way in tier if isinstance(way, NewInstance))
        profile = next(way.profile or "" for way in ways if way is not None)
        free = [str(each) for each in range(model.memory_slices) if not used >> each & 1]
        if not free:
            return f"no room for {profile}: GPU {gpu} has no free memory slice", 0
        has = f"GPU {gpu} has memory {'slice' if len(free) == 1 else 'slices'} {', '.join(free)} free"
        places = placements_of(model, profile)
        if any(not place.mask & used for place in places):
            why = "the media engines it needs are allocated"
        else:
            why = f"{profile} starts only at {', '.join(str(place.start) for place in places)}"
        return f"no room for {profile}: {has}, but {why}", len(free)


def _states_text(by_state: Mapping[int, int], bits: int, more: str = "") -> str:
    """Return how many GPUs are in each state: `2 more GPUs are allocated, 1 is unhealthy`."""
    most, (first, *_) = (1 << bits) - 1, by_state
    parts = []
    for state, count in by_state.items():
        number = f"{count} or more" if count == most else str(count)
        gpus = f" {more}{'GPU' if count == 1 else 'GPUs'}" if state == first else ""
        parts.append(f"{number}{gpus} {_STATES[state][count > 1]}")
    return ", ".join(parts)


def allocated_by_name(devices: Iterable[Device]) -> str:
    """Return that these devices, which the kubelet allocates, do not serve a need, with the fix; names two."""
    names = " or ".join(list(dict.fromkeys(device.resource for device in devices))[:2])
    return (
        f"its devices are allocated by name ({names}): request one by name, "
        "or set allocator: scheduler in the node's GPUPolicy"
    )


def offer_of(gpu: Gpu | GpuType, request: DeviceRequest) -> str:
    """Return what a GPU that does not serve a request has instead, for a text after its name."""
    profiles = ", ".join(profile.name for profile in gpu.model.profiles if profile.starts)
    by_profile = request.resource.startswith(mig_resource(""))
    if by_profile and profiles and gpu.sharing.can_repartition:
        return f" with profiles {profiles}"  # whatever instances it has now
    present = () if gpu.sharing.can_repartition else devices_of(gpu.model, gpu.memory_mib, gpu.sharing)
    names = sorted({device.resource for device in present})
    if names or not gpu.sharing.modes:
        return f" offering {', '.join(names) or 'nothing'}"
    if by_profile:
        return " with MIG ruled out by its sharing" if profiles else " without MIG"
    memory = "" if request.form is Form.EXACT else f" of {gpu.memory_mib} MiB"
    modes = (mode for mode in gpu.sharing.modes if mode is not Mode.MIG or placements(gpu.model))
    return f"{memory} shared as {', '.join(modes)}"


def _other_s(gpu_type: GpuType, request: DeviceRequest) -> tuple[Device, ...]:
    return of_other_allocator(request, gpu_type.model, gpu_type.memory_mib, gpu_type.sharing)


def _most(fleet: Fleet, demand: Demand) -> list[Ints]:
    """Return for each request how many of its devices a free GPU of each type could serve, at most, were it healthy."""
    found = [np.array(_of_types(fleet, devices), dtype=np.int64) for devices in demand.devices]
    unhealthy = {kind: each.healthy for kind, each in enumerate(fleet.types) if each.healthy is not None}
    if unhealthy:
        gpus = (
            Gpu(index=kind, model=each.model, memory_mib=each.memory_mib, sharing=each.sharing)
            for kind, each in unhealthy.items()
        )
        healthy = Fleet((Node(name=NodeName(""), cpu_milli=0, memory_mib=0, gpus=tuple(gpus)),))
        for most, devices in zip(found, Demand(demand.need, healthy, devices_only=True).devices, strict=True):
            most[list(unhealthy)] = np.array(_of_types(healthy, devices), dtype=np.int64)[healthy.kind[:, 0]]
    return found


def _by_mps(gpu: GpuType, request: DeviceRequest) -> bool:
    """Return whether one GPU would serve by MPS what a request for several wants of each."""
    single = msgspec.structs.replace(request, count=1)
    return request.count > 1 and bool({option.mode for option in gpu.options(single)} & MPS_MODES)


def _of_types(fleet: Fleet, devices: Devices) -> list[int]:
    """Return for each type how many devices it could serve in the one of its ways that serves most of them."""
    ways = [way for tier in devices.tiers for way in tier]
    found = [max((_of_free(fleet, way, kind) for way in ways), default=0) for kind in range(len(fleet.types))]
    return found if devices.request.form is Form.EXACT else [min(each, 1) for each in found]


def _of_free(fleet: Fleet, way: Way, kind: int) -> int:
    if kind not in way.by_type:
        return 0
    option, gpu_type = way.by_type[kind], fleet.types[kind]
    if isinstance(way, NewInstance):
        return int(rooms(gpu_type.model, profile_of(gpu_type.model, option.profile or ""))[0])
    if isinstance(way, Amount | Whole):
        return 1
    return sum(device.clients for device in gpu_type.devices if device.option == option)


def _put(codes: Ints, where: NDArray[np.bool_], code: Ints) -> None:
    """Set the codes that are not set yet."""
    np.copyto(codes, code, where=where & (codes < 0))


def describe(request: DeviceRequest) -> str:
    """Return a request in words: `2 x nvidia.com/gpu`, `37 GiB with hardware isolation`."""
    return f"{request.count} x {_one(request)}" if request.count > 1 else _one(request)


def _one(request: DeviceRequest) -> str:
    """Return one device of a request in words."""
    if request.form is Form.EXACT:
        return request.resource
    compute = f" and {request.compute_percent} % compute" if request.compute_percent else ""
    grade = f" with {request.isolation} isolation" if request.isolation != "none" else ""
    return f"{gib(request.memory_mib, up=True)}{compute}{grade}"
