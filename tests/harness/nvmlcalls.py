"""NVML calls that tests make often, through unmodified pynvml, with Python's values in and out."""

from ctypes import byref, c_uint
from typing import Any

import pynvml


def placements(gpu: Any, profile_id: int) -> list[tuple[int, int]]:
    """Return start and size of all placements of a profile."""
    count = c_uint()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, profile_id, None, byref(count))
    array = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, profile_id, array, byref(count))
    return [(each.start, each.size) for each in array]


def create_instance(gpu: Any, profile_id: int, start: int, size: int) -> Any:
    """Return a new GPU instance at a place."""
    return pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(
        gpu, profile_id, byref(pynvml.c_nvmlGpuInstancePlacement_t(start, size))
    )


def cut_whole(gpu: Any, profile_id: int, start: int, size: int) -> tuple[Any, Any]:
    """Return a new GPU instance at a place and a compute instance that fills it."""
    instance = create_instance(gpu, profile_id, start, size)
    slices = pynvml.nvmlDeviceGetGpuInstanceProfileInfoById(gpu, profile_id).sliceCount
    profile = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}[slices]
    return instance, pynvml.nvmlGpuInstanceCreateComputeInstance(instance, profile)


def instances(gpu: Any, profile_id: int) -> list[Any]:
    """Return the GPU instances of a profile."""
    count = c_uint()
    array = (pynvml.c_nvmlGpuInstance_t * 16)()
    pynvml.nvmlDeviceGetGpuInstances(gpu, profile_id, array, byref(count))
    return [array[n] for n in range(count.value)]


def mig_devices(gpu: Any) -> list[Any]:
    """Return the handles of a GPU's MIG devices."""
    found = []
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            found.append(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index))
        except pynvml.NVMLError_NotFound:
            break
    return found


def computes(instance: Any, profile: int) -> list[Any]:
    """Return the compute instances of a profile in a GPU instance."""
    count = c_uint()
    array = (pynvml.c_nvmlComputeInstance_t * 8)()
    pynvml.nvmlGpuInstanceGetComputeInstances(instance, profile, array, byref(count))
    return [array[n] for n in range(count.value)]
