"""Changes that NVML refuses or half makes: nothing is left of them."""

import pynvml
import pytest

from conformance.gpusuite import LARGE, SMALL, partition
from harness.gpuworlds import NvmlWorld
from tessera.errors import Conflict, Unavailable
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
    a100 = await partition(world, SMALL)
    world.start_process(a100, 7, SMALL)
    hide_processes(world.machine)
    with pytest.raises(Conflict, match="in use"):
        await world.driver.destroy_instance(a100.uuid, SMALL)
    assert (await world.driver.inventory()).gpus[0] == a100


async def test_where_no_compute_instance_can_be_made_nothing_is_left(world: NvmlWorld) -> None:
    a100 = await partition(world, LARGE)
    world.machine.fault("nvmlGpuInstanceCreateComputeInstance", code=pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
    with pytest.raises(Conflict, match=r"creating 1g\.5gb at 0"):
        await world.driver.create_instance(a100.uuid, SMALL)
    assert (await world.driver.inventory()).gpus[0] == a100
