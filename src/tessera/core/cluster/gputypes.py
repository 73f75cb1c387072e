"""GPU types: GPUs of one model, memory and configuration have the same capabilities, which are computed once."""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tessera.core.cluster.snapshot import Gpu, Share
from tessera.core.gpu.gpumodels import GpuModel
from tessera.core.gpu.instancecounts import occupied
from tessera.core.gpu.sharing import Device, Mode, Option, Sharing, devices, options
from tessera.core.workload.need import DeviceRequest

__all__ = ["ABSENT", "MODE_BIT", "Counts", "GpuType", "GpuTypes", "Ints"]

Ints = NDArray[np.int64]
Counts = NDArray[np.int64] | NDArray[np.int8]
"""Small whole numbers; sums of them are int64."""

MODE_BIT: Final = {Mode.WHOLE: 1, Mode.MIG: 2, Mode.MPS: 4, Mode.MEMORY_SHARE: 8}
"""Bits of `Fleet.serves`: the modes in which something new can be created on a GPU."""


class GpuType(msgspec.Struct, frozen=True, kw_only=True):
    """The capabilities of GPUs of one model, memory and configuration."""

    model: GpuModel
    memory_mib: int
    sharing: Sharing
    devices: tuple[Device, ...] = ()
    """Existing devices other than an exclusive whole GPU, in order of start."""
    bits: tuple[int, ...] = ()
    """For each device its part of the MIG state; 0 for the whole GPU."""
    fixed: bool = False
    """Whether the administrator fixed the devices, so that nothing new is created."""
    healthy: "GpuType | None" = None
    """The type of the GPUs when healthy, where unhealthy parts are closed to new pods."""
    serves: int = 0
    """Modes in which something can be created on an empty GPU, as bits of `MODE_BIT`."""

    def device_of(self, share: Share) -> int | None:
        """Return the existing device that a share is a part of; None for an instance to be created, or an amount."""
        for i, device in enumerate(self.devices):
            place = device.placement
            at = (place.profile, place.start) if place else (None, None)
            if device.mode is share.mode and at == (share.profile, share.start):
                return i
        return None

    def total_of(self, device: Device) -> tuple[int, int]:
        """Return the memory (MiB) and the compute (percent of the GPU) of an existing device, all its clients."""
        profile = next(
            (p for p in self.model.profiles if device.placement and p.name == device.placement.profile), None
        )
        if profile is None:
            return self.memory_mib, 100
        percent = 100 * profile.compute_slices // self.model.compute_slices
        return min(self.memory_mib, profile.memory_mib), percent

    @classmethod
    def of(cls, gpu: Gpu) -> "GpuType":
        """Return the type of one GPU."""
        sharing = gpu.sharing
        offered = tuple(d for d in devices(gpu.model, gpu.memory_mib, sharing) if d.mode is not Mode.WHOLE)
        fixed = bool(offered) and (sharing.layout is None or not sharing.allow_repartition)
        return cls(
            model=gpu.model,
            memory_mib=gpu.memory_mib,
            sharing=sharing,
            devices=offered,
            bits=tuple(occupied(gpu.model, d.placement) if d.placement else 0 for d in offered),
            fixed=fixed,
            healthy=None if gpu.healthy is None else cls.of(gpu.healthy),
            serves=0 if fixed else sum(MODE_BIT.get(mode, 0) for mode in sharing.modes),
        )

    def options(self, request: DeviceRequest) -> tuple[Option, ...]:
        """Return the ways to serve one device of `request` here, the preferred first."""
        return options(request, self.model, self.memory_mib, self.sharing)


ABSENT: Final = GpuType(
    model=GpuModel(name="", arch="", memory_mib=0), memory_mib=0, sharing=Sharing(modes=(), replicas=(("", 0),))
)
"""Pads nodes with fewer GPUs than the largest; serves nothing."""


class GpuTypes:
    """The distinct types of a fleet, in the order of their first occurrence; 0 is the absent GPU.

    Attributes:
        found: the types; types are added, never removed.

    """

    def __init__(self) -> None:
        self.found = [ABSENT]
        self._numbers: dict[tuple[GpuModel, int, Sharing, Gpu | None], int] = {}

    def of(self, gpu: Gpu) -> int:
        """Return the number of a GPU's type."""
        alike = gpu.healthy and msgspec.structs.replace(gpu.healthy, index=0, uuid="")
        number = self._numbers.setdefault((gpu.model, gpu.memory_mib, gpu.sharing, alike), len(self.found))
        if number == len(self.found):
            self.found.append(GpuType.of(gpu))
        return number

    def all_of(self, gpus: Sequence[Sequence[Gpu]], most: int) -> Ints:
        """Return the type of each GPU of nodes with at most that many, `(most, len(gpus))`."""
        numbers: dict[tuple[int, int, int, int], int] = {}  # by identity, which is faster than by value
        kinds = np.zeros((most, len(gpus)), dtype=np.int64)
        for node, row in enumerate(gpus):
            for column, gpu in enumerate(row):
                same = (id(gpu.model), gpu.memory_mib, id(gpu.sharing), id(gpu.healthy))
                if same not in numbers:
                    numbers[same] = self.of(gpu)
                kinds[column, node] = numbers[same]
        return kinds
