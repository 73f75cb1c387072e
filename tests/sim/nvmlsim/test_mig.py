"""MIG through unmodified pynvml: profiles, placements, instances, MIG devices, what is refused."""

from ctypes import byref, c_uint
from typing import Any

import pynvml
import pytest

from nvmlcalls import cut, cut_whole, instances, mig_devices, placements
from tessera.core.gpumodels import CATALOGUE, GpuModel

WITH_MIG = [each for each in CATALOGUE if each.units]


@pytest.mark.parametrize("gpu", WITH_MIG, ids=lambda each: each.name)
def test_profiles_and_placements_are_those_of_the_catalogue(start: Any, gpu: GpuModel) -> None:
    start(gpu.name)
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    got = {}
    for index in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, index)
        except pynvml.NVMLError_NotSupported:
            continue
        starts = tuple(start for start, size in placements(device, info.id))
        got[info.name] = (info.id, info.sliceCount, info.instanceCount, info.memorySizeMB, starts)
    want = {
        f"MIG {each.name}": (each.profile_id, each.compute_slices, each.max_instances, each.memory_mib, each.starts)
        for each in gpu.profiles
    }
    assert got == want


def test_an_instance_is_cut_and_seen_as_a_device(a100: Any) -> None:
    instance, _ = cut_whole(a100, 9, 4, 4)
    (device,) = mig_devices(a100)
    info = pynvml.nvmlGpuInstanceGetInfo(instance)
    assert (info.id, info.profileId, info.placement.start, info.placement.size) == (2, 9, 4, 4)
    assert pynvml.nvmlDeviceGetName(device) == "NVIDIA A100-SXM4-40GB MIG 3g.20gb"
    assert pynvml.nvmlDeviceGetMemoryInfo(device).total == 19968 << 20
    assert pynvml.nvmlDeviceIsMigDeviceHandle(device).value == 1
    assert pynvml.nvmlDeviceGetGpuInstanceId(device) == 2
    parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)
    assert pynvml.nvmlDeviceGetUUID(parent) == pynvml.nvmlDeviceGetUUID(a100)
    uuid = pynvml.nvmlDeviceGetUUID(device)
    assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByUUID(uuid)) == uuid


def test_a_uuid_differs_after_re_creation(a100: Any) -> None:
    seen = set()
    for _ in range(5):
        instance, compute = cut_whole(a100, 9, 0, 4)
        seen.add(pynvml.nvmlDeviceGetUUID(mig_devices(a100)[0]))
        pynvml.nvmlComputeInstanceDestroy(compute)
        pynvml.nvmlGpuInstanceDestroy(instance)
    assert len(seen) == 5


def test_two_halves_leave_no_room(a100: Any) -> None:
    cut(a100, 9, 0, 4)
    cut(a100, 9, 4, 4)
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        cut(a100, 19, 0, 1)
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        pynvml.nvmlDeviceCreateGpuInstance(a100, 19)
    assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(a100, 19) == 0
    assert len(instances(a100, 9)) == 2


def test_what_is_used_is_not_destroyed(a100: Any) -> None:
    instance, compute = cut_whole(a100, 19, 0, 1)
    with pytest.raises(pynvml.NVMLError_InUse):
        pynvml.nvmlGpuInstanceDestroy(instance)
    pynvml.nvmlComputeInstanceDestroy(compute)
    pynvml.nvmlGpuInstanceDestroy(instance)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlGpuInstanceDestroy(instance)
    count = c_uint()
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(a100, 99, None, byref(count))
