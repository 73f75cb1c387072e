"""Noisy neighbours: which containers cause a GPU to lower its clocks, or saturate a shared device."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from tessera.core.gpu.gpumodels import GpuModel
from tessera.core.usage.attribution import DeviceUse, GpuUse

__all__ = ["SATURATED", "ContainerLoad", "DeviceLoad", "Noise", "device_loads", "instance_part", "noises"]

SATURATED = "saturated"
_SATURATED_PERCENT = 95
_HALF = 0.5


class Noise(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A cause that slows down the users of a GPU; containers as `namespace/pod/container`."""

    cause: str
    """Of throttling: `power-cap`; or `saturated`."""
    drivers: tuple[str, ...] = ()
    """Containers that certainly cause it, the busiest first; empty where that is unknown."""
    affected: tuple[str, ...] = ()
    """The other containers."""


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


def noises(causes: Iterable[str], devices: Sequence[DeviceLoad]) -> Iterator[Noise]:
    """Yield what slows down the users of a GPU: each cause of throttling, and each saturated shared device.

    A throttled GPU is driven by the busiest containers that together make half of its load, a saturated device by
    those that take more than their equal part. Load of which nobody is known counts as that of one more container,
    so that nobody is named who may not be a driver.

    Args:
        causes: why the GPU's clocks are lowered.
        devices: all of the GPU.

    """
    everybody = tuple(each.name for device in devices for each in device.containers)
    drivers = tuple(_busiest(devices))
    for cause in causes:
        yield _noise(cause, drivers, everybody)
    for device in devices:
        own = sorted(device.containers, key=lambda each: -(each.percent or 0))
        if len(own) > 1 and (device.percent or 0) >= _SATURATED_PERCENT:
            most = tuple(each.name for each in own if (each.percent or 0) > 100 / len(own))
            yield _noise(SATURATED, most, (each.name for each in own))


def _noise(cause: str, drivers: Iterable[str], everybody: Iterable[str]) -> Noise:
    drivers = tuple(dict.fromkeys(drivers))
    affected = tuple(dict.fromkeys(each for each in everybody if each not in drivers))
    return Noise(cause=cause, drivers=drivers, affected=affected)


def _busiest(devices: Iterable[DeviceLoad]) -> Iterator[str]:
    """Yield the busiest containers, until they make half of the load; none where it is unknown."""
    loads: list[tuple[float, str]] = []
    for device in devices:
        known = [each.percent for each in device.containers if each.percent is not None]
        complete = len(known) == len(device.containers)
        if device.containers and (device.part is None or (device.percent is None and not complete)):
            return
        part = device.part or 0.0
        loads += [(each.percent * part, each.name) for each in device.containers if each.percent is not None]
        loads.append((max((device.percent or 0.0) - sum(known), 0.0) * part, ""))
    total, so_far = sum(load for load, _ in loads), 0.0
    for load, name in sorted(loads, key=lambda each: (-each[0], bool(each[1]))):
        if so_far >= _HALF * total:
            return
        so_far += load
        if name:
            yield name


def device_loads(gpu: GpuUse) -> tuple[DeviceLoad, ...]:
    """Return how busy the devices of a GPU and their containers are."""
    return tuple(
        DeviceLoad(
            percent=device.busy_percent if device.alone else _saturation(device),
            part=1.0 if device.instance is None else instance_part(gpu.facts.model, device.instance.placement.profile),
            containers=tuple(
                ContainerLoad(name=each.tenant.name, percent=each.busy_percent) for each in device.containers
            ),
        )
        for device in gpu.devices
    )


def _saturation(device: DeviceUse) -> float | None:
    """Return how busy a shared device is: in time, as its containers are measured, or in its multiprocessors."""
    return max((each for each in (device.gpu_percent, device.busy_percent) if each is not None), default=None)


def instance_part(model: GpuModel, profile: str) -> float | None:
    """Return the part of a GPU's compute that a MIG instance has; None where the model has no such profile."""
    slices = {each.name: each.compute_slices for each in model.profiles}.get(profile)
    return slices / model.compute_slices if slices else None
