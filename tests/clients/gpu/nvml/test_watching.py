"""Events of GPUs: watched again when they come back, and done without where a driver has none."""

import asyncio
import contextlib

import pynvml
import pytest

from conformance.gpusuite import soon
from harness.gpuworlds import QUICK, NvmlWorld
from tessera.clients.gpu import NvmlDriver
from tessera.errors import Unavailable
from tessera.sim.nvmlsim import Machine

pytestmark = pytest.mark.anyio


async def test_a_gpu_whose_errors_are_not_told_is_noted(machine: Machine) -> None:
    machine.fault("nvmlDeviceRegisterEvents", code=pynvml.NVML_ERROR_NOT_SUPPORTED, gpu=1)
    async with await NvmlDriver.open(deadlines=QUICK) as driver:
        inventory = await driver.inventory()
    assert inventory.notes == ("GPU 1: the driver does not report its errors, so only its loss is noticed",)


async def test_a_gpu_that_comes_back_is_watched_again(world: NvmlWorld) -> None:
    a100, _ = (await world.driver.inventory()).gpus
    events = world.driver.events()
    world.lose(a100)
    assert (await soon(events, lambda event: event.xid is not None)).xid == 79
    assert (await soon(events, lambda event: event.lost)).gpu == a100.uuid
    world.machine.clear_faults()
    assert not (await world.driver.inventory()).gpus[0].lost
    world.xid(a100, 48)
    async with asyncio.timeout(20):
        while True:
            world.xid(a100, 48)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    event = await anext(events)
                    break
    assert (event.gpu, event.xid) == (a100.uuid, 48)


async def test_a_gpu_lost_before_its_events_are_watched_is_reported(machine: Machine) -> None:
    machine.fault("nvmlDeviceGetHandleByUUID*", code=pynvml.NVML_ERROR_GPU_IS_LOST)
    async with await NvmlDriver.open(deadlines=QUICK) as driver:
        assert not any(each.lost for each in (await driver.inventory()).gpus)


async def test_what_is_wrong_with_events_is_reported_when_it_is_opened(machine: Machine) -> None:
    machine.fault("nvmlDeviceRegisterEvents", code=pynvml.NVML_ERROR_NO_PERMISSION)
    with pytest.raises(Unavailable, match="run as root"):
        await NvmlDriver.open(deadlines=QUICK)
    with pytest.raises(pynvml.NVMLError, match="Uninitialized"):
        pynvml.nvmlDeviceGetCount()


async def test_a_driver_whose_events_cannot_be_read_works_and_reports_them_once_they_can(world: NvmlWorld) -> None:
    world.machine.fault("nvmlEventSetWait*", code=pynvml.NVML_ERROR_UNKNOWN, times=3)
    events = world.driver.events()
    a100 = (await world.driver.inventory()).gpus[0]
    world.xid(a100, 48)
    event = await soon(events, lambda _: True)
    assert (event.gpu, event.xid) == (a100.uuid, 48)
    assert world.machine.describe()["faults"] == []


async def test_a_defect_in_reading_events_ends_no_reading(world: NvmlWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    a100, _ = (await world.driver.inventory()).gpus
    events, broken = world.driver.events(), asyncio.Event()
    wait, loop = pynvml.nvmlEventSetWait_v2, asyncio.get_running_loop()

    def breaks(events: object, timeout_ms: int) -> object:
        if not broken.is_set():
            loop.call_soon_threadsafe(broken.set)
            raise ValueError
        return wait(events, timeout_ms)

    monkeypatch.setattr(pynvml, "nvmlEventSetWait_v2", breaks)
    async with asyncio.timeout(20):
        await broken.wait()
    world.xid(a100, 48)
    assert (await soon(events, lambda event: event.xid is not None)).xid == 48
