"""Contention: which containers make a GPU or its node lower clocks, or saturate a shared device."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from tessera.core.usage.activity import IDLE_PERCENT, UNUSED_MIB
from tessera.core.usage.attribution import DeviceUsage, GpuUsage
from tessera.core.usage.throttling import ThrottleCause, causes

__all__ = [
    "SATURATED",
    "ContainerLoad",
    "Contention",
    "DeviceLoad",
    "GpuLoad",
    "contention_of",
    "gpu_load",
]

SATURATED = "saturated"
_SATURATED_PERCENT = 95
_MOST_OF_LOAD = 0.5 * (1 - 1e-9)
"""The part of a throttled GPU's load that the named containers make together, at least: half, but for the rounding of
sums."""
_WELL_ABOVE = 1.25
"""Times the equal part of the load of a device: what a container that saturates it uses at least. A load of a fifth
less than a named one, by this factor, is nearly equal: the next sample may order them differently."""
_TAKING_TURNS = 5 / 3
"""A load of which so many times is that of a container that saturates the device is nearly equal to it, if it is an
equal part at least: the driver of an H100 measured two programs of equal work, which took turns for 6 s, as 60 and
40 %."""
_EVENLY = 0.5
"""Times the equal part: what a container that uses a saturated device evenly with others uses at least. No more than
that is of processes that belong to no known container."""
_BUSY_PERCENT = 50
_OF_NODE = frozenset(
    {ThrottleCause.THERMAL, ThrottleCause.HARDWARE_THERMAL, ThrottleCause.HARDWARE_SLOWDOWN, ThrottleCause.POWER_BRAKE}
)
"""What other GPUs may cause: by their heat, and at the supply of all."""


class Contention(msgspec.Struct, frozen=True, kw_only=True):
    """A cause that slows down the users of a GPU; containers as `namespace/pod/container`."""

    cause: str
    """Of throttling: `power-cap`; or `saturated`."""
    caused_by: tuple[str, ...] = ()
    """Containers that certainly cause it, the busiest first; empty where that is unknown."""
    nobody: bool = False
    """Whether it is known that no container causes it, nor any other process: the cause is cooling or power supply."""
    scope: Literal["gpu", "node"] = "gpu"
    """Where they are."""
    evenly: tuple[str, ...] = ()
    """Of a saturated device that none of them saturates alone: the containers that use it about equally."""
    affected: tuple[str, ...] = ()
    """Containers on the GPU that it slows down."""
    ended: bool = False
    """Whether processes that exited, of containers that are unknown, make some of the load."""

    @property
    def verdict(self) -> Literal["caused", "even", "nobody", "unknown"]:
        """What is known: containers cause it, share it evenly, none causes it, or nothing."""
        if self.evenly:
            return "even"
        if self.caused_by:
            return "caused"
        return "nobody" if self.nobody else "unknown"


class ContainerLoad(msgspec.Struct, frozen=True, kw_only=True):
    """How busy a container keeps its device."""

    name: str
    """`namespace/pod/container`."""
    percent: float | None = None


class DeviceLoad(msgspec.Struct, frozen=True, kw_only=True):
    """How busy a GPU without MIG, or a MIG instance, is."""

    percent: float | None = None
    """With all that runs on it."""
    part: float | None = 1.0
    """Of the compute of its GPU; None where unknown."""
    containers: tuple[ContainerLoad, ...] = ()
    ended: bool = False
    """Whether processes that exited make some of its load."""


class GpuLoad(msgspec.Struct, frozen=True, kw_only=True):
    """How busy a GPU is, and why its clocks are lowered."""

    causes: tuple[str, ...] = ()
    devices: tuple[DeviceLoad, ...] = ()
    """All of the GPU."""

    @property
    def percent(self) -> float | None:
        """Of the whole GPU; None where unknown."""
        loads = [_loads(device) for device in self.devices]
        return None if None in loads else sum(load for each in loads for load, _ in each or ())


def contention_of(node: Sequence[GpuLoad]) -> tuple[tuple[Contention, ...], ...]:
    """Return what slows down the users of each GPU of a node: causes of throttling, and saturated shared devices.

    Throttling is caused by the busiest containers that together make half of the GPU's load; saturation by those that
    take well above an equal part of the device's load; where none does, it is shared evenly. Containers that are nearly
    as busy as the last of these cause it too: of equal loads all are named, or none. Nobody saturates a device with
    less than an equal part.
    Where a GPU is hot or short of power with less than half of its compute in use, the cause is on the node's GPUs that
    use more: the busiest containers there; where there are none, nobody causes it. Load outside known containers counts
    as that of one more container, so a container is named only if it is a cause whatever the unknown load is. A
    container alone on a GPU that reaches its power limit is no contention: every busy GPU may.
    """
    known = all(each.percent is not None for each in node)
    busy = [device for gpu in node if (gpu.percent or 0) >= _BUSY_PERCENT for device in gpu.devices] if known else []
    return tuple(tuple(_contention_on(gpu, busy, nobody=known and not busy)) for gpu in node)


def _contention_on(gpu: GpuLoad, busy: Sequence[DeviceLoad], *, nobody: bool) -> Iterator[Contention]:
    """Yield what slows down the users of a GPU.

    Args:
        gpu: the GPU.
        busy: the devices of the node's busy GPUs; empty if unknown.
        nobody: whether it is known that no GPU of the node is busy.

    """
    containers = [each for device in gpu.devices for each in device.containers]
    everybody = tuple(each.name for each in containers)
    of_another = gpu.percent and len(containers) == 1 and containers[0].percent is not None
    for cause in gpu.causes:
        of_node = cause in _OF_NODE and gpu.percent is not None and gpu.percent < _BUSY_PERCENT
        devices = busy if of_node else gpu.devices
        found = _contention(cause, _busiest(devices), everybody, scope="node" if of_node else "gpu")
        alone = cause == ThrottleCause.POWER_CAP and len(set(everybody)) <= 1
        if not alone or (of_another and found.affected):
            idle = nobody if of_node else gpu.percent == 0
            yield msgspec.structs.replace(found, nobody=idle, ended=any(each.ended for each in devices))
    for device in gpu.devices:
        own = device.containers
        if len(own) > 1 and (device.percent or 0) >= _SATURATED_PERCENT:
            equal = _most_load(own) / len(own)
            most = tuple(_well_above(own, equal))
            found = _contention(SATURATED, most, (each.name for each in own))
            evenly = () if most else _evenly(device, equal)
            yield msgspec.structs.replace(found, evenly=evenly, ended=device.ended)


def _contention(
    cause: str, caused_by: Iterable[str], everybody: Iterable[str], scope: Literal["gpu", "node"] = "gpu"
) -> Contention:
    caused_by = tuple(dict.fromkeys(caused_by))
    affected = tuple(dict.fromkeys(each for each in everybody if each not in caused_by))
    return Contention(cause=cause, caused_by=caused_by, affected=affected, scope=scope)


def _most_load(containers: Iterable[ContainerLoad]) -> float:
    """Return what the load of all may be, in percent: above 100 where kernels overlap, as with MPS."""
    return max(100.0, sum(100.0 if each.percent is None else each.percent for each in containers))


def _well_above(containers: Sequence[ContainerLoad], equal: float) -> Iterator[str]:
    """Yield the containers that certainly use well above an equal part of their device, and those nearly as busy."""
    loads = [(each.percent, each.name) for each in containers if each.percent is not None]
    least = min((load for load, _ in loads if load > _WELL_ABOVE * equal), default=math.inf)
    return _down_to(max(least / _TAKING_TURNS, equal), loads)


def _evenly(device: DeviceLoad, equal: float) -> tuple[str, ...]:
    """Return the containers that use a device about equally, if none uses well above an equal part.

    None where a load is unknown, or half of an equal part is of processes that belong to no known container.
    """
    containers = device.containers
    known = [each.percent for each in containers if each.percent is not None]
    rest = (device.percent or 0.0) - sum(known)
    sharers = tuple(each.name for each in containers if (each.percent or 0.0) >= _EVENLY * equal)
    complete = len(known) == len(containers) and rest <= _EVENLY * equal
    return sharers if complete and len(sharers) > 1 else ()


def _loads(device: DeviceLoad) -> tuple[tuple[float, str], ...] | None:
    """Return the part of its GPU that each container of a device uses, and the rest, of no known container.

    None where that is unknown. In percent; the name of the rest is empty.
    """
    if device.percent is None or (device.part is None and (device.percent or device.containers)):
        return None
    known = [each.percent for each in device.containers if each.percent is not None]
    part = device.part or 0.0
    rest = max(device.percent - sum(known), 0.0)
    named = ((each.percent * part, each.name) for each in device.containers if each.percent is not None)
    return (*named, (rest * part, ""))


def _busiest(devices: Iterable[DeviceLoad]) -> Iterator[str]:
    """Yield the busiest containers that are needed for half of the load, and those nearly as busy.

    Yields none where the load is unknown.
    """
    found = [_loads(device) for device in devices]
    if None in found:
        return iter(())
    loads = [load for each in found for load in each or ()]
    half = _MOST_OF_LOAD * sum(load for load, _ in loads)
    named = [(load, name) for load, name in loads if name]
    above, least = 0.0, math.inf
    for load in sorted((load for load, _ in named), reverse=True):
        if above + sum(rest for rest, name in loads if not name and rest >= load) >= half:
            break
        above, least = above + load, load
    return _down_to(least / _WELL_ABOVE, named)


def _down_to(least: float, loads: Iterable[tuple[float, str]]) -> Iterator[str]:
    """Yield the containers that have the least load or more, the busiest first."""
    return (name for load, name in sorted(loads, key=lambda each: -each[0]) if load >= least)


def gpu_load(gpu: GpuUsage) -> GpuLoad:
    """Return how busy the devices of a GPU and their containers are."""
    devices = tuple(
        DeviceLoad(
            percent=_percent(device),
            part=1.0 if device.instance is None else gpu.facts.model.compute_part(device.instance.placement.profile),
            containers=tuple(
                ContainerLoad(name=each.allocation.name, percent=each.busy_percent) for each in device.containers
            ),
            ended=(device.ended_percent or 0.0) >= IDLE_PERCENT,
        )
        for device in gpu.devices
    )
    return GpuLoad(causes=tuple(each.value for each in causes(gpu.reading.clocks_event_reasons)), devices=devices)


def _percent(device: DeviceUsage) -> float | None:
    """Return how busy a device is; a shared one in time, as its containers are measured, or in its multiprocessors."""
    percents = [device.busy_percent, None if device.exclusive_allocation else device.gpu_percent]
    if device.used_mib is not None and device.used_mib <= UNUSED_MIB:
        percents.append(0.0)  # less than a process needs
    return max((each for each in percents if each is not None), default=None)
