"""Changes that NVML refuses or half makes: nothing is left of them."""

import ctypes

import pynvml
import pytest

from conformance.gpusuite import LARGE, SMALL, cut
from harness.gpuworlds import NvmlWorld
from tessera.errors import Conflict, Unavailable, Unsupported
from tessera.sim.nvmlsim import FOREVER, Machine

pytestmark = pytest.mark.anyio


async def test_what_holds_a_gpu_open_unseen_keeps_its_mode_and_nothing_is_pending(world: NvmlWorld) -> None:
    a100, _ = (await world.driver.inventory()).gpus
    world.start_process(a100, 7)
    hide_processes(world.machine)
    with pytest.raises(Conflict, match=r"\(19\).*monitoring"):
        await world.driver.set_mig(a100.uuid, enabled=True)
    assert (await world.driver.inventory()).gpus[0].mig == a100.mig


def hide_processes(machine: Machine) -> None:
    """Let no list of processes be told, as where they run in another namespace."""
    for kind in ("Compute", "Graphics", "MPSCompute"):
        machine.fault(f"nvmlDeviceGet{kind}RunningProcesses*", code=pynvml.NVML_ERROR_NOT_SUPPORTED, times=FOREVER)


async def test_a_mode_that_does_not_come_into_force_is_taken_back(
    world: NvmlWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    a100, _ = (await world.driver.inventory()).gpus
    requested: list[int] = []

    def answer(_: object, mode: int) -> int:
        requested.append(mode)
        return 999

    monkeypatch.setattr(pynvml, "nvmlDeviceSetMigMode", answer)
    with pytest.raises(Unavailable, match="Unknown Error"):
        await world.driver.set_mig(a100.uuid, enabled=True)
    assert requested == [1, 0]


async def test_an_instance_in_use_unseen_is_not_destroyed(world: NvmlWorld) -> None:
    a100 = await cut(world, SMALL)
    world.start_process(a100, 7, SMALL)
    hide_processes(world.machine)
    with pytest.raises(Conflict, match="in use"):
        await world.driver.destroy_instance(a100.uuid, SMALL)
    assert (await world.driver.inventory()).gpus[0] == a100


async def test_where_no_compute_instance_can_be_made_nothing_is_left(world: NvmlWorld) -> None:
    a100 = await cut(world, LARGE)
    world.machine.fault("nvmlGpuInstanceCreateComputeInstance", code=pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
    with pytest.raises(Conflict, match=r"creating 1g\.5gb at 0"):
        await world.driver.create_instance(a100.uuid, SMALL)
    assert (await world.driver.inventory()).gpus[0] == a100


async def test_a_driver_without_compute_profiles_is_unsupported(world: NvmlWorld) -> None:
    a100 = await cut(world)
    function = "nvmlGpuInstanceGetComputeInstanceProfileInfo*"
    world.machine.fault(function, code=pynvml.NVML_ERROR_NOT_SUPPORTED, times=FOREVER)
    with pytest.raises(Unsupported, match="another GPU, or a newer driver"):
        await world.driver.create_instance(a100.uuid, SMALL)
    assert (await world.driver.inventory()).gpus[0] == a100


async def test_an_older_form_of_compute_profiles_will_do(world: NvmlWorld) -> None:
    a100 = await cut(world)
    function = "nvmlGpuInstanceGetComputeInstanceProfileInfoV"
    world.machine.fault(function, code=pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, times=FOREVER)
    await world.driver.create_instance(a100.uuid, SMALL)


async def test_a_gpu_instance_filled_by_several_compute_instances_is_not_offered(world: NvmlWorld) -> None:
    a100 = await cut(world, SMALL)
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    place = pynvml.c_nvmlGpuInstancePlacement_t(LARGE.start, LARGE.size)
    made = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(device, 9, ctypes.byref(place))
    for _ in range(2):
        pynvml.nvmlGpuInstanceCreateComputeInstance(made, pynvml.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE)
    after, _ = (await world.driver.inventory()).gpus
    assert (after.instances, after.incomplete) == (a100.instances, (LARGE,))
    await world.driver.destroy_instance(a100.uuid, LARGE)
    assert (await world.driver.inventory()).gpus[0] == a100


async def test_want_of_rights_is_told(world: NvmlWorld) -> None:
    _, t4 = (await world.driver.inventory()).gpus
    world.machine.fault("nvmlDeviceSetPowerManagementLimit*", code=pynvml.NVML_ERROR_NO_PERMISSION)
    with pytest.raises(Unavailable, match=r"power limit of GPU 1 .*run as root"):
        await world.driver.set_power_limit(t4.uuid, 65)
    world.machine.fault("nvmlDeviceGetMemoryLimits_v1", code=pynvml.NVML_ERROR_NO_PERMISSION)
    with pytest.raises(Unavailable, match="memory limit of /pod on GPU 1"):
        await world.driver.memory_limit(t4.uuid, "/pod")
