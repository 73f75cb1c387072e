"""GPU instance profiles and placements of a GPU, by NVML."""

import ctypes
import math
from collections.abc import Iterator
from typing import Any

import pynvml

from tessera.clients.gpu.nvml.faults import optional
from tessera.core.gpu.gpumodels import ObservedProfile

__all__ = ["profiles"]

_GIB_MIB = 1024
_ATTRIBUTES = {
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1: "+me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_REV1: "+me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_3_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_4_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_NO_ME: "-me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_NO_ME: "-me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME: "+me.all",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_ALL_ME: "+me.all",
}
"""The suffix of a profile's kind. Source: as `_name`."""


def profiles(device: Any, total_mib: int) -> tuple[ObservedProfile, ...]:
    """Return the profiles of a GPU in NVML's order; none where the driver lists none, as older ones with MIG off."""
    found: dict[int, ObservedProfile] = {}
    for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        info = _info(device, number)
        if info is not None and info.id not in found:
            name = getattr(info, "name", "").removeprefix("MIG ") or _name(info, total_mib, number)
            found[info.id] = _observed_profile(device, info, name)
    return tuple(found.values())


def _info(device: Any, number: int) -> Any:
    """Return the driver's facts about a profile, in the newest form it has; None if the GPU does not have it."""
    for version in (2, 1):
        try:
            return pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, number, version=version)
        except (
            pynvml.NVMLError_NotSupported,
            pynvml.NVMLError_InvalidArgument,
            pynvml.NVMLError_NotFound,
            pynvml.NVMLError_NoPermission,
        ):
            return None
        except (pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_ArgumentVersionMismatch):
            continue
    return None


def _observed_profile(device: Any, info: Any, name: str) -> ObservedProfile:
    return ObservedProfile(
        name=name,
        profile_id=info.id,
        compute_slices=info.sliceCount,
        max_instances=info.instanceCount,
        memory_mib=info.memorySizeMB,
        multiprocessors=info.multiprocessorCount,
        media_engines=bool(info.decoderCount or info.jpegCount or info.ofaCount),
        places=tuple(_places(device, info.id)),
    )


def _name(info: Any, total_mib: int, number: int) -> str:
    """Return a profile's name from slices, memory and kind, for drivers that do not report it.

    Source: NVIDIA go-nvlib, `pkg/nvlib/device/mig_profile.go`: the part of the memory in eighths, rounded up, of the
    whole gigabytes.
    """
    eighths = math.ceil(info.memorySizeMB * 8 / total_mib) if total_mib else 0
    gigabytes = round(eighths / 8 * math.ceil(total_mib / _GIB_MIB))
    return f"{info.sliceCount}g.{gigabytes}gb{_ATTRIBUTES.get(number, '')}"


def _places(device: Any, profile_id: int) -> Iterator[tuple[int, int]]:
    count = ctypes.c_uint()
    ask = pynvml.nvmlDeviceGetGpuInstancePossiblePlacements
    try:
        if optional(ask, device, profile_id, None, ctypes.byref(count)) is None or not count.value:
            return
        places = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
        ask(device, profile_id, places, ctypes.byref(count))
    except (pynvml.NVMLError_NoPermission, pynvml.NVMLError_InvalidArgument):
        return
    yield from ((each.start, each.size) for each in places[: count.value])
