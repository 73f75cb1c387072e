"""Which isolation is enforced on each device, and what can be offered where MPS does not run."""

import enum
from collections.abc import Collection, Iterable

import msgspec

from tessera.core.cluster.mpstargets import mps_key
from tessera.core.cluster.snapshot import Gpu
from tessera.core.gpu.inventory import Inventory
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import Mode, without_mps

__all__ = ["Enforcement", "Level", "enforceable", "enforcements"]


def enforceable(gpus: Iterable[Gpu], ready: Collection[str]) -> tuple[Gpu, ...]:
    """Return the GPUs without the shares that need MPS, except on devices whose key (`mps_key`) is in `ready`."""
    found = []
    for gpu in gpus:
        places = {place for place in (None, *(gpu.sharing.layout or ())) if mps_key(gpu.uuid, place) in ready}
        found.append(msgspec.structs.replace(gpu, sharing=without_mps(gpu.sharing, places)))
    return tuple(found)


class Level(enum.StrEnum):
    """How a pod is isolated on a device."""

    HARDWARE = "hardware"
    """The device is the pod's own: a whole GPU or a MIG instance."""
    DRIVER_MPS = "driver-mps"
    """MPS limits memory and compute of each process; a fatal fault is shared."""
    DRIVER_DMEM = "driver-dmem"
    """The driver limits the memory of the pod's cgroup; compute is not limited."""
    NONE = "none"
    """Nothing is enforced."""


class Enforcement(msgspec.Struct, frozen=True, kw_only=True):
    """The isolation between pods that share one device in one mode."""

    gpu: str
    """UUID of the GPU."""
    placement: Placement | None = None
    mode: Mode
    level: Level


def enforcements(gpus: Iterable[Gpu], inventory: Inventory) -> tuple[Enforcement, ...]:
    """Return the isolation on each device in each mode of the GPUs; `gpus` are those of `enforceable`.

    Memory limits by cgroup apply to memory shares alone: replicas have no amount of their own, and MIG instances cannot
    be limited.
    """
    return tuple(
        Enforcement(
            gpu=gpu.uuid, placement=placement, mode=mode, level=_level(mode, memory_limits=inventory.memory_limits)
        )
        for gpu in gpus
        for placement, mode in _offered(gpu)
    )


def _offered(gpu: Gpu) -> Iterable[tuple[Placement | None, Mode]]:
    yield from ((device.placement, device.mode) for device in gpu.devices)
    if gpu.sharing.creates_devices and gpu.sharing.layout is None and len(gpu.devices) == 0:
        yield from ((None, mode) for mode in gpu.sharing.modes if mode is not Mode.MIG)


def _level(mode: Mode, *, memory_limits: bool) -> Level:
    match mode:
        case Mode.WHOLE | Mode.MIG:
            return Level.HARDWARE
        case Mode.MPS | Mode.MIG_MPS:
            return Level.DRIVER_MPS
        case Mode.MEMORY_SHARE if memory_limits:
            return Level.DRIVER_DMEM
    return Level.NONE
