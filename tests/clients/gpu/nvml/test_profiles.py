"""Profiles of GPU instances, as drivers of several ages list them."""

import ctypes

import pynvml
import pytest

from conformance.gpusuite import LARGE, SMALL, partition
from harness.gpuworlds import NvmlWorld
from tessera.errors import Unsupported
from tessera.sim.nvmlsim import FOREVER

pytestmark = pytest.mark.anyio


async def test_a_driver_without_compute_profiles_is_unsupported(world: NvmlWorld) -> None:
    a100 = await partition(world)
    function = "nvmlGpuInstanceGetComputeInstanceProfileInfo*"
    world.machine.fault(function, code=pynvml.NVML_ERROR_NOT_SUPPORTED, times=FOREVER)
    with pytest.raises(Unsupported, match="another GPU, or a newer driver"):
        await world.driver.create_instance(a100.uuid, SMALL)
    assert (await world.driver.inventory()).gpus[0] == a100


async def test_an_older_form_of_compute_profiles_will_do(world: NvmlWorld) -> None:
    a100 = await partition(world)
    function = "nvmlGpuInstanceGetComputeInstanceProfileInfoV"
    world.machine.fault(function, code=pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, times=FOREVER)
    await world.driver.create_instance(a100.uuid, SMALL)


async def test_a_gpu_instance_filled_by_several_compute_instances_is_not_offered(world: NvmlWorld) -> None:
    a100 = await partition(world, SMALL)
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    place = pynvml.c_nvmlGpuInstancePlacement_t(LARGE.start, LARGE.size)
    made = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(device, 9, ctypes.byref(place))
    for _ in range(2):
        pynvml.nvmlGpuInstanceCreateComputeInstance(made, pynvml.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE)
    after, _ = (await world.driver.inventory()).gpus
    assert (after.instances, after.incomplete) == (a100.instances, (LARGE,))
    await world.driver.destroy_instance(a100.uuid, LARGE)
    assert (await world.driver.inventory()).gpus[0] == a100
