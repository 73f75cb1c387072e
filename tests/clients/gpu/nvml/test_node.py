"""GPUs that do not answer hide no other."""

from types import SimpleNamespace

import msgspec
import pynvml
import pytest

from conformance.gpusuite import soon
from harness.gpuworlds import QUICK, NvmlWorld
from tessera.clients.gpu import NvmlDriver
from tessera.core.gpu.inventory import GpuEvent
from tessera.sim.nvmlsim import FOREVER, Machine

pytestmark = pytest.mark.anyio


async def test_a_gpu_that_was_lost_before_is_reported_and_taken_up_when_it_is_back(machine: Machine) -> None:
    machine.lose(0)
    async with await NvmlDriver.open(deadlines=QUICK) as driver:
        inventory = await driver.inventory()
        assert ([each.index for each in inventory.gpus], inventory.unseen) == ([1], (0,))
        assert inventory.remarks == (
            "GPU 0: lost before Tessera started, or of the UUID of another, so it is not listed",
        )
        machine.clear_faults()
        inventory = await driver.inventory()
        assert ([each.index for each in inventory.gpus], inventory.unseen) == ([0, 1], ())
        assert not any(each.lost for each in inventory.gpus)


@pytest.mark.parametrize("function", ["nvmlDeviceGetUUID", "nvmlDeviceGetName"])
async def test_a_gpu_that_never_answered_is_unseen_and_hides_no_other(machine: Machine, function: str) -> None:
    machine.fault(function, code=pynvml.NVML_ERROR_UNKNOWN, gpu=1, times=FOREVER)
    async with await NvmlDriver.open(deadlines=QUICK) as driver:
        inventory = await driver.inventory()
        assert ([each.index for each in inventory.gpus], inventory.unseen) == ([0], (1,))
        machine.clear_faults()
        assert [each.index for each in (await driver.inventory()).gpus] == [0, 1]


async def test_two_gpus_of_one_uuid_are_listed_once_and_the_other_is_reported(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that names two GPUs alike: what is allocated by that name is one GPU."""
    del machine
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", lambda _: "GPU-one")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda _: pynvml.nvmlDeviceGetHandleByIndex(0))
    async with await NvmlDriver.open(deadlines=QUICK) as driver:
        for _ in range(2):
            inventory = await driver.inventory()
            assert ([each.index for each in inventory.gpus], inventory.unseen) == ([0], (1,))
            assert len(inventory.remarks) == 1


@pytest.mark.parametrize(("total", "reserved"), [(40 << 30, 41 << 30), (0, 1), (0, 0), (1 << 63, 0)])
async def test_memory_that_no_gpu_has_is_never_allocated(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, total: int, reserved: int
) -> None:
    del machine
    said = SimpleNamespace(total=total, reserved=reserved, used=0, free=0)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda *_, **__: said)
    async with await NvmlDriver.open(deadlines=QUICK) as driver:
        inventory = await driver.inventory()
    assert [each.memory_mib for each in inventory.gpus] == [0, 0]
    assert any("memory" in note and "none is allocated" in note for note in inventory.notes)


async def test_a_gpu_that_cannot_be_read_does_not_hide_the_others(world: NvmlWorld) -> None:
    before, _ = (await world.driver.inventory()).gpus
    world.machine.fault("nvmlDeviceGetName", code=pynvml.NVML_ERROR_UNKNOWN, gpu=0, times=FOREVER)
    events = world.driver.events()
    inventory = await world.driver.inventory()
    assert [each.lost for each in inventory.gpus] == [True, False]
    assert inventory.gpus[0] == msgspec.structs.replace(before, lost=True)
    assert inventory.notes[0].startswith("GPU 0 (NVIDIA A100-SXM4-40GB): it cannot be read: Unknown Error")
    assert await soon(events, lambda event: event.lost) == GpuEvent(gpu=before.uuid, lost=True)
    world.machine.clear_faults()
    assert (await world.driver.inventory()).gpus[0] == before
