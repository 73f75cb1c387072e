"""GPU types: GPUs of one model, memory and configuration can do the same, so what they offer is worked out once."""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tessera.core.fit.rooms import occupied
from tessera.core.gpumodels import GpuModel
from tessera.core.need import Ask
from tessera.core.sharing import Device, Mode, Option, Sharing, devices, options
from tessera.core.snapshot import Gpu

__all__ = ["ABSENT", "MODE_BIT", "Counts", "GpuType", "Ints", "gpu_types"]

Ints = NDArray[np.int64]
Counts = NDArray[np.int64] | NDArray[np.int8]
"""Small whole numbers; sums of them are int64."""

MODE_BIT: Final = {Mode.WHOLE: 1, Mode.MIG: 2, Mode.MPS: 4, Mode.MEMORY_SHARE: 8}
"""Bits of `Fleet.serves`: the modes in which something new can be made on a GPU."""


class GpuType(msgspec.Struct, frozen=True, kw_only=True):
    """What GPUs of one model, memory and configuration can do."""

    model: GpuModel
    memory_mib: int
    sharing: Sharing
    devices: tuple[Device, ...] = ()
    """Devices that exist and are not the whole GPU to itself, in order of start."""
    bits: tuple[int, ...] = ()
    """For each device what it takes of the MIG state; 0 for the whole GPU."""
    kept: bool = False
    """Whether the administrator fixed the devices, so that nothing new is made."""
    serves: int = 0
    """Modes in which something can be made while nobody holds anything, as bits of `MODE_BIT`."""

    @classmethod
    def of(cls, gpu: Gpu) -> "GpuType":
        """Return the type of one GPU."""
        sharing = gpu.sharing
        offered = tuple(d for d in devices(gpu.model, gpu.memory_mib, sharing) if d.mode is not Mode.WHOLE)
        kept = bool(offered) and (sharing.layout is None or not sharing.recut)
        return cls(
            model=gpu.model,
            memory_mib=gpu.memory_mib,
            sharing=sharing,
            devices=offered,
            bits=tuple(occupied(gpu.model, d.placement) if d.placement else 0 for d in offered),
            kept=kept,
            serves=0 if kept else sum(MODE_BIT.get(mode, 0) for mode in sharing.modes),
        )

    def options(self, ask: Ask) -> tuple[Option, ...]:
        """Return the ways one device of `ask` may be served here, the preferred first."""
        return options(ask, self.model, self.memory_mib, self.sharing)


ABSENT: Final = GpuType(
    model=GpuModel(name="", arch="", memory_mib=0), memory_mib=0, sharing=Sharing(modes=(), replicas=(("", 0),))
)
"""Pads nodes that have fewer GPUs than the largest; serves nothing."""


def gpu_types(gpus: Sequence[Sequence[Gpu]], most: int) -> tuple[tuple[GpuType, ...], Ints]:
    """Return the distinct types, the absent one first, and each GPU's index among them, `(most, len(gpus))`."""
    types: dict[tuple[GpuModel, int, Sharing], int] = {}
    seen: dict[tuple[int, int, int], int] = {}  # by identity: hashing a model with its profiles is slow
    found = [ABSENT]
    kinds = np.zeros((most, len(gpus)), dtype=np.int64)
    for node, row in enumerate(gpus):
        for column, gpu in enumerate(row):
            same = (id(gpu.model), gpu.memory_mib, id(gpu.sharing))
            if same not in seen:
                seen[same] = types.setdefault((gpu.model, gpu.memory_mib, gpu.sharing), len(found))
                if seen[same] == len(found):
                    found.append(GpuType.of(gpu))
            kinds[column, node] = seen[same]
    return tuple(found), kinds
