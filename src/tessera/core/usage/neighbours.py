"""Noisy neighbours: which containers cause a GPU to lower its clocks, or saturate a shared device."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec

from tessera.core.usage.attribution import ContainerUse, DeviceHolder, DeviceUse, GpuUse
from tessera.core.usage.throttling import causes

__all__ = ["SATURATED", "SATURATED_PERCENT", "Noise", "busiest", "noises"]

SATURATED = "saturated"
SATURATED_PERCENT = 95
_HALF = 0.5
_Busy = TypeVar("_Busy")


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """A cause that slows down other users of a GPU."""

    gpu: int
    """Index."""
    cause: str
    """Of throttling: `power-cap`; or `saturated`."""
    drivers: tuple[DeviceHolder, ...] = ()
    """Containers that cause it, the busiest first; empty where loads are unknown."""
    affected: tuple[DeviceHolder, ...] = ()
    """The other containers."""


def noises(gpu: GpuUse) -> Iterator[Noise]:
    """Yield what slows down the users of a GPU: each cause of throttling, and each saturated shared device.

    A throttled GPU is caused by the busiest containers that together make half of the load; a saturated device by
    those that take more than their equal part.
    """
    containers = [(each, load) for device in gpu.devices for each, load in _loads(gpu, device)]
    for cause in causes(gpu.reading.clocks_event_reasons):
        drivers = tuple(each.tenant for each in busiest((each, load) for each, load in containers if load))
        yield _noise(gpu, cause.value, drivers, (each.tenant for each, _ in containers))
    for device in gpu.devices:
        percent = device.gpu_percent if device.activity is None else device.activity.sm_percent
        if len(device.containers) > 1 and (percent or 0) >= SATURATED_PERCENT:
            own = sorted(device.containers, key=lambda each: -(each.gpu_percent or 0))
            part = 100 / len(own)
            drivers = tuple(each.tenant for each in own if (each.gpu_percent or 0) > part)
            yield _noise(gpu, SATURATED, drivers, (each.tenant for each in own))


def _noise(gpu: GpuUse, cause: str, drivers: tuple[DeviceHolder, ...], everybody: Iterable[DeviceHolder]) -> Noise:
    affected = tuple(dict.fromkeys(each for each in everybody if each not in drivers))
    return Noise(gpu=gpu.facts.index, cause=cause, drivers=drivers, affected=affected)


def _loads(gpu: GpuUse, device: DeviceUse) -> Iterator[tuple[ContainerUse, float | None]]:
    """Yield the containers of a device with the part of the GPU that they keep busy, in percent of the whole GPU."""
    slices = gpu.facts.model.memory_slices
    part = device.instance.placement.size / slices if device.instance is not None and slices else 1.0
    for each in device.containers:
        percent = each.gpu_percent
        if device.alone is not None and device.activity is not None and device.activity.sm_percent is not None:
            percent = device.activity.sm_percent
        yield each, None if percent is None else percent * part


def busiest(loads: Iterable[tuple[_Busy, float]]) -> Iterator[_Busy]:
    """Yield the busiest, until they make half of the load."""
    busy = sorted(loads, key=lambda each: -each[1])
    total, so_far = sum(load for _, load in busy), 0.0
    for each, load in busy:
        if so_far >= _HALF * total:
            return
        so_far += load
        yield each
