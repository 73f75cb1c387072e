"""MIG through unmodified pynvml: mode, profiles, placements, instances, MIG devices, what is refused."""

from collections.abc import Callable
from ctypes import Structure, byref, c_char, c_uint, c_ulonglong
from typing import Any

import pynvml
import pytest

from harness.nvmlcalls import computes, create_instance, cut_whole, instances, mig_devices, placements
from tessera.core.gpu.gpumodels import CATALOG, GpuModel
from tessera.sim.nvmlsim import Machine, Process

WITH_MIG = [each for each in CATALOG if each.memory_slices]


# ---- mode ----


def test_mode_changes_at_once_on_an_idle_gpu(start: Any) -> None:
    start()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetMigMode(gpu) == [0, 0]
    assert pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu) == 0
    assert pynvml.nvmlDeviceSetMigMode(gpu, 1) == pynvml.NVML_SUCCESS
    assert pynvml.nvmlDeviceGetMigMode(gpu) == [1, 1]
    assert pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu) == 7
    assert pynvml.nvmlDeviceSetMigMode(gpu, 0) == pynvml.NVML_SUCCESS
    assert pynvml.nvmlDeviceGetMigMode(gpu) == [0, 0]


@pytest.mark.parametrize("user", ["instance", "process"])
def test_mode_of_a_gpu_in_use_stays_pending(start: Any, user: str) -> None:
    machine = start()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    mode = int(user == "instance")
    pynvml.nvmlDeviceSetMigMode(gpu, mode)
    if user == "instance":
        create_instance(gpu, 19, 0, 1)
    else:
        machine.add_process(0, Process(pid=7))
    assert pynvml.nvmlDeviceSetMigMode(gpu, 1 - mode) == pynvml.NVML_ERROR_IN_USE
    assert pynvml.nvmlDeviceGetMigMode(gpu) == [mode, 1 - mode]
    assert pynvml.nvmlDeviceSetMigMode(gpu, mode) == pynvml.NVML_SUCCESS
    assert pynvml.nvmlDeviceGetMigMode(gpu) == [mode, mode]


def test_mode_that_needs_a_reset_changes_by_it(start: Any) -> None:
    machine = start()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    machine.set(0, "mig_needs_reset", 1)
    assert pynvml.nvmlDeviceSetMigMode(gpu, 1) == pynvml.NVML_ERROR_RESET_REQUIRED
    assert pynvml.nvmlDeviceGetMigMode(gpu) == [0, 1]
    machine.reset_gpu(0)
    assert pynvml.nvmlDeviceGetMigMode(gpu) == [1, 1]


@pytest.mark.parametrize(("model", "want"), [("A100-40GB", [1, 1]), ("H100-80GB", [0, 0])])
def test_mode_outlives_a_reboot_on_ampere_alone(start: Any, model: str, want: list[int]) -> None:
    machine = start(model)
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlDeviceSetMigMode(gpu, 1)
    create_instance(gpu, 19, 0, 1)
    machine.reboot()
    assert pynvml.nvmlDeviceGetMigMode(gpu) == want
    assert machine.describe()["gpus"][0]["instances"] == []


def test_a_gpu_without_mig_refuses_all_of_it(t4: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: pynvml.nvmlDeviceGetMigMode(t4),
        lambda: pynvml.nvmlDeviceSetMigMode(t4, 1),
        lambda: pynvml.nvmlDeviceGetGpuInstanceProfileInfo(t4, 0),
        lambda: pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(t4, 19),
        lambda: placements(t4, 19),
        lambda: pynvml.nvmlDeviceCreateGpuInstance(t4, 19),
        lambda: pynvml.nvmlDeviceGetGpuInstanceById(t4, 7),
        lambda: pynvml.nvmlDeviceGetMigDeviceHandleByIndex(t4, 0),
        lambda: instances(t4, 19),
    ]
    for call in calls:
        with pytest.raises(pynvml.NVMLError_NotSupported):
            call()
    assert pynvml.nvmlDeviceGetMaxMigDeviceCount(t4) == 0


def test_with_mig_off_profiles_are_reported_and_nothing_is_cut(start: Any) -> None:
    start()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, 0).id == 19
    assert len(placements(gpu, 19)) == 7
    calls: list[Callable[[], object]] = [
        lambda: pynvml.nvmlDeviceCreateGpuInstance(gpu, 19),
        lambda: create_instance(gpu, 19, 0, 1),
        lambda: pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, 19),
        lambda: instances(gpu, 19),
    ]
    for call in calls:
        with pytest.raises(pynvml.NVMLError_NotSupported):
            call()
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)


# ---- profiles ----


@pytest.mark.parametrize("gpu", WITH_MIG, ids=lambda each: each.name)
def test_profiles_and_placements_are_those_of_the_catalog(start: Any, gpu: GpuModel) -> None:
    start(gpu.name)
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    got = {}
    for index in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, index)
        except pynvml.NVMLError_NotSupported:
            continue
        starts = tuple(start for start, _ in placements(device, info.id))
        got[info.name] = (info.id, info.sliceCount, info.instanceCount, info.memorySizeMB, starts)
    want = {
        f"MIG {each.name}": (each.profile_id, each.compute_slices, each.max_instances, each.memory_mib, each.starts)
        for each in gpu.profiles
    }
    assert got == want


class ProfileV3(Structure):
    """The third layout of a profile, which nvidia-ml-py lacks."""

    _fields_ = (
        ("version", c_uint),
        *((f"number{n}", c_uint) for n in range(9)),
        ("memory", c_ulonglong),
        ("name", c_char * 96),
        ("capabilities", c_uint),
    )


def test_all_layouts_of_a_profile_say_the_same(a100: Any) -> None:
    first = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(a100, 2, version=1)
    second = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(a100, 2)
    by_id = pynvml.nvmlDeviceGetGpuInstanceProfileInfoById(a100, 9)
    third = ProfileV3(version=0x03000098)
    call = pynvml._nvmlGetFunctionPointer("nvmlDeviceGetGpuInstanceProfileInfoV")
    assert call(a100, 2, byref(third)) == pynvml.NVML_SUCCESS
    names = [name for name, _ in pynvml.c_nvmlGpuInstanceProfileInfo_t._fields_]
    assert [getattr(first, name) for name in names] == [getattr(second, name) for name in names]
    assert [getattr(second, name) for name in names] == [getattr(by_id, name) for name in names]
    assert (first.copyEngineCount, first.decoderCount, first.multiprocessorCount) == (3, 2, 42)
    assert (third.number0, third.number3, third.memory, third.name) == (9, 42, 19968, b"MIG 3g.20gb")


@pytest.mark.parametrize("version", [0, 0x02000099, 0x04000098])
def test_a_layout_of_another_version_is_refused(a100: Any, version: int) -> None:
    instance = create_instance(a100, 9, 0, 4)
    info = pynvml.c_nvmlGpuInstanceProfileInfo_v2_t()
    inner = pynvml.c_nvmlComputeInstanceProfileInfo_v2_t()
    info.version = inner.version = version
    for name, *before in (
        ("nvmlDeviceGetGpuInstanceProfileInfoV", a100, 0),
        ("nvmlDeviceGetGpuInstanceProfileInfoByIdV", a100, 19),
    ):
        got = pynvml._nvmlGetFunctionPointer(name)(*before, byref(info))
        assert got == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
    call = pynvml._nvmlGetFunctionPointer("nvmlGpuInstanceGetComputeInstanceProfileInfoV")
    assert call(instance, 0, 0, byref(inner)) == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH


def test_profiles_that_are_none(a100: Any) -> None:
    for index, error in ((5, pynvml.NVMLError_NotSupported), (0x12, pynvml.NVMLError_InvalidArgument)):
        for version in (1, 2):
            with pytest.raises(error):
                pynvml.nvmlDeviceGetGpuInstanceProfileInfo(a100, index, version=version)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetGpuInstanceProfileInfoById(a100, 99)
    for call in (pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity, pynvml.nvmlDeviceCreateGpuInstance, placements):
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            call(a100, 99)


# ---- GPU instances ----


def test_an_instance_is_cut_and_seen_as_a_device(a100: Any) -> None:
    instance, compute = cut_whole(a100, 9, 4, 4)
    (device,) = mig_devices(a100)
    info = pynvml.nvmlGpuInstanceGetInfo(instance)
    assert (info.id, info.profileId, info.placement.start, info.placement.size) == (2, 9, 4, 4)
    assert pynvml.nvmlDeviceGetUUID(info.device) == pynvml.nvmlDeviceGetUUID(a100)
    assert pynvml.nvmlDeviceGetName(device) == "NVIDIA A100-SXM4-40GB MIG 3g.20gb"
    assert pynvml.nvmlDeviceGetMemoryInfo(device).total == 19968 << 20
    assert pynvml.nvmlDeviceIsMigDeviceHandle(device).value == 1
    assert pynvml.nvmlDeviceIsMigDeviceHandle(a100).value == 0
    assert pynvml.nvmlDeviceGetGpuInstanceId(device) == 2
    assert pynvml.nvmlDeviceGetComputeInstanceId(device) == 0
    assert pynvml.nvmlDeviceGetIndex(device) == 0
    parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)
    assert pynvml.nvmlDeviceGetUUID(parent) == pynvml.nvmlDeviceGetUUID(a100)
    uuid = pynvml.nvmlDeviceGetUUID(device)
    assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByUUID(uuid)) == uuid
    inner = pynvml.nvmlComputeInstanceGetInfo(compute)
    assert (inner.id, inner.profileId, inner.placement.start, inner.placement.size) == (0, 2, 0, 3)


def test_ids_stand_for_places(a100: Any) -> None:
    """As nvidia-smi lists them on an A100: 1g from 7, 2g from 3, 3g and 4g from 1, 7g is 0."""
    got = {}
    for profile, start, size in (
        (19, 0, 1),
        (19, 6, 1),
        (14, 0, 2),
        (14, 4, 2),
        (9, 0, 4),
        (9, 4, 4),
        (5, 0, 4),
        (0, 0, 8),
    ):
        instance = create_instance(a100, profile, start, size)
        got[profile, start] = pynvml.nvmlGpuInstanceGetInfo(instance).id
        assert pynvml.nvmlDeviceGetGpuInstanceById(a100, got[profile, start])
        pynvml.nvmlGpuInstanceDestroy(instance)
    assert list(got.values()) == [7, 13, 3, 5, 1, 2, 1, 0]
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetGpuInstanceById(a100, 7)


def test_without_a_placement_the_one_that_harms_least_is_taken(a100: Any) -> None:
    starts = [
        pynvml.nvmlGpuInstanceGetInfo(pynvml.nvmlDeviceCreateGpuInstance(a100, profile)).placement.start
        for profile in (19, 14, 9)
    ]
    assert starts == [6, 4, 0]


def test_a_uuid_differs_after_re_creation(a100: Any) -> None:
    seen = set()
    for _ in range(5):
        instance, compute = cut_whole(a100, 9, 0, 4)
        seen.add(pynvml.nvmlDeviceGetUUID(mig_devices(a100)[0]))
        pynvml.nvmlComputeInstanceDestroy(compute)
        pynvml.nvmlGpuInstanceDestroy(instance)
    assert len(seen) == 5
    assert all(len(each) == 40 and each.startswith("MIG-") for each in seen)


def test_two_halves_leave_no_room(a100: Any) -> None:
    create_instance(a100, 9, 0, 4)
    create_instance(a100, 9, 4, 4)
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        create_instance(a100, 19, 0, 1)
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        pynvml.nvmlDeviceCreateGpuInstance(a100, 19)
    assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(a100, 19) == 0
    assert len(instances(a100, 9)) == 2


def test_one_instance_has_the_media_engines(a100: Any) -> None:
    create_instance(a100, 20, 3, 1)
    assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(a100, 20) == 0
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        create_instance(a100, 20, 0, 1)
    assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(a100, 19) == 6


@pytest.mark.parametrize(("first", "size"), [(1, 4), (4, 3), (8, 4), (0xFFFFFFFF, 4)])
def test_a_placement_that_the_profile_has_not_is_an_argument_error(a100: Any, first: int, size: int) -> None:
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        create_instance(a100, 9, first, size)


def test_what_is_used_is_not_destroyed(machine: Machine, a100: Any) -> None:
    instance, compute = cut_whole(a100, 19, 0, 1)
    with pytest.raises(pynvml.NVMLError_InUse):
        pynvml.nvmlGpuInstanceDestroy(instance)
    machine.add_process(0, Process(pid=7, gpu_instance=7, compute_instance=0))
    with pytest.raises(pynvml.NVMLError_InUse):
        pynvml.nvmlComputeInstanceDestroy(compute)
    machine.remove_process(7)
    pynvml.nvmlComputeInstanceDestroy(compute)
    pynvml.nvmlGpuInstanceDestroy(instance)
    assert instances(a100, 19) == []


def test_a_handle_of_what_is_gone_is_refused(a100: Any) -> None:
    instance, compute = cut_whole(a100, 19, 0, 1)
    (device,) = mig_devices(a100)
    pynvml.nvmlComputeInstanceDestroy(compute)
    pynvml.nvmlGpuInstanceDestroy(instance)
    cut_whole(a100, 19, 0, 1)  # takes the same place, id and slot
    calls: list[Callable[[], object]] = [
        lambda: pynvml.nvmlGpuInstanceDestroy(instance),
        lambda: pynvml.nvmlGpuInstanceGetInfo(instance),
        lambda: pynvml.nvmlComputeInstanceDestroy(compute),
        lambda: pynvml.nvmlComputeInstanceGetInfo(compute),
        lambda: pynvml.nvmlDeviceGetUUID(device),
        lambda: pynvml.nvmlDeviceGetMemoryInfo(device),
        lambda: pynvml.nvmlGpuInstanceDestroy(a100),
        lambda: pynvml.nvmlDeviceGetName(instance),
    ]
    for call in calls:
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            call()


# ---- compute instances ----


@pytest.mark.parametrize(
    ("profile", "size", "want"),
    [
        pytest.param(19, 1, {0: (1, 1)}, id="1g holds one of 1"),
        pytest.param(14, 2, {0: (1, 2), 1: (2, 1)}, id="2g"),
        pytest.param(9, 4, {0: (1, 3), 1: (2, 1), 2: (3, 1)}, id="3g"),
        pytest.param(5, 4, {0: (1, 4), 1: (2, 2), 3: (4, 1)}, id="4g"),
        pytest.param(0, 8, {0: (1, 7), 1: (2, 3), 2: (3, 2), 3: (4, 1), 4: (7, 1)}, id="7g"),
    ],
)
def test_compute_profiles_divide_an_instance(
    a100: Any, profile: int, size: int, want: dict[int, tuple[int, int]]
) -> None:
    instance = create_instance(a100, profile, 0, size)
    got = {}
    for index in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, index, 0)
        except pynvml.NVMLError_NotSupported:
            continue
        assert info.id == index
        assert info.multiprocessorCount == 14 * info.sliceCount
        count = c_uint()
        places = (pynvml.c_nvmlComputeInstancePlacement_t * 8)()
        pynvml.nvmlGpuInstanceGetComputeInstancePossiblePlacements(instance, index, places, byref(count))
        assert count.value == info.instanceCount
        assert pynvml.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance, index) == info.instanceCount
        got[index] = (info.sliceCount, info.instanceCount)
    assert got == want


def test_compute_profile_layouts_say_the_same(a100: Any) -> None:
    instance = create_instance(a100, 9, 0, 4)
    first = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, 1, 0, version=1)
    second = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, 1, 0)
    names = [name for name, _ in pynvml.c_nvmlComputeInstanceProfileInfo_t._fields_]
    assert [getattr(first, name) for name in names] == [getattr(second, name) for name in names]
    assert second.name == "MIG 2c.3g.20gb"
    room = (c_uint * 35)(0x0300008C)
    call = pynvml._nvmlGetFunctionPointer("nvmlGpuInstanceGetComputeInstanceProfileInfoV")
    assert call(instance, 1, 0, room) == pynvml.NVML_SUCCESS
    assert (room[1], room[2], room[34]) == (1, 2, 0)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, 1, 1)


def test_compute_instances_share_an_instance(a100: Any) -> None:
    instance = create_instance(a100, 9, 0, 4)
    two = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 1)
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 1)
    one = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    assert pynvml.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance, 0) == 0
    assert [pynvml.nvmlDeviceGetName(each)[-14:] for each in mig_devices(a100)] == ["MIG 2c.3g.20gb", "MIG 1c.3g.20gb"]
    assert len(computes(instance, 0)) == len(computes(instance, 1)) == 1
    got = pynvml.nvmlDeviceGetAttributes(mig_devices(a100)[1])
    assert (got.multiprocessorCount, got.gpuInstanceSliceCount, got.computeInstanceSliceCount) == (14, 3, 1)
    assert (got.memorySizeMB, got.sharedCopyEngineCount, got.sharedDecoderCount) == (19968, 3, 2)
    assert pynvml.nvmlComputeInstanceGetInfo(one).placement.start == 2
    assert pynvml.nvmlComputeInstanceGetInfo(pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0)).profileId == 1
    pynvml.nvmlComputeInstanceDestroy(two)
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetAttributes(a100)


def test_a_compute_instance_is_created_at_the_requested_place(a100: Any) -> None:
    instance = create_instance(a100, 0, 0, 8)
    place = pynvml.c_nvmlComputeInstancePlacement_t
    create = pynvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement
    made = create(instance, 1, byref(place(2, 2)))
    assert pynvml.nvmlComputeInstanceGetInfo(made).placement.start == 2
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        create(instance, 0, byref(place(3, 1)))
    for start, size in ((1, 2), (6, 2), (0, 1), (0xFFFFFFFE, 2)):
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            create(instance, 1, byref(place(start, size)))
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 5)


# ---- MIG devices ----


def test_mig_devices_are_numbered_without_gaps(a100: Any) -> None:
    for start in (4, 0, 2):
        cut_whole(a100, 14, start, 2)
    got = mig_devices(a100)
    assert [pynvml.nvmlDeviceGetIndex(each) for each in got] == [0, 1, 2]
    assert [pynvml.nvmlDeviceGetGpuInstanceId(each) for each in got] == [3, 4, 5]
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetMigDeviceHandleByIndex(a100, 3)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetMigDeviceHandleByIndex(a100, 7)


def test_a_mig_device_refuses_what_only_gpus_have(a100: Any) -> None:
    cut_whole(a100, 9, 0, 4)
    (device,) = mig_devices(a100)
    refused: list[Callable[[Any], object]] = [
        pynvml.nvmlDeviceGetUtilizationRates,
        pynvml.nvmlDeviceGetMinorNumber,
        pynvml.nvmlDeviceGetSerial,
        pynvml.nvmlDeviceGetPciInfo,
        pynvml.nvmlDeviceGetPowerUsage,
        pynvml.nvmlDeviceGetMigMode,
        pynvml.nvmlDeviceGetMaxMigDeviceCount,
        pynvml.nvmlDeviceGetComputeMode,
        pynvml.nvmlDeviceGetSupportedEventTypes,
    ]
    for call in refused:
        with pytest.raises(pynvml.NVMLError_NotSupported):
            call(device)
    for call in (pynvml.nvmlDeviceGetGpuInstanceId, pynvml.nvmlDeviceGetComputeInstanceId):
        with pytest.raises(pynvml.NVMLError_NotSupported):
            call(a100)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(a100)


def test_a_gpu_with_mig_refuses_what_real_ones_refuse(machine: Machine, a100: Any) -> None:
    cut_whole(a100, 9, 0, 4)
    machine.add_process(0, Process(pid=7, gpu_instance=1, compute_instance=0, sm_percent=50))
    refused: list[Callable[[], object]] = [
        lambda: pynvml.nvmlDeviceGetUtilizationRates(a100),
        lambda: pynvml.nvmlDeviceGetEncoderUtilization(a100),
        lambda: pynvml.nvmlDeviceGetDecoderUtilization(a100),
        lambda: pynvml.nvmlDeviceGetProcessUtilization(a100, 0),
        lambda: pynvml.nvmlDeviceGetNumGpuCores(a100),
        lambda: pynvml.nvmlDeviceSetComputeMode(a100, pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS),
    ]
    for call in refused:
        with pytest.raises(pynvml.NVMLError_NotSupported):
            call()
