"""The driver by NVML over the simulated library: the conformance suite, and how it is opened and given up."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import NoReturn

import pynvml
import pytest

from conformance.gpusuite import SMALL, GpuSuite, cut
from harness.gpuworlds import NvmlWorld
from tessera.clients.gpu import Deadlines, NvmlDriver
from tessera.errors import Unavailable, Unsupported
from tessera.sim.nvmlsim import Machine

pytestmark = pytest.mark.anyio


class TestNvmlDriver(GpuSuite):
    pass


async def test_no_library_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlInit", failing(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND))
    with pytest.raises(Unsupported, match=r"Found \(12\): install NVIDIA's driver"):
        await NvmlDriver.open()


async def test_a_driver_that_is_not_loaded_is_unavailable(machine: Machine) -> None:
    machine.fault("nvmlInit*", code=pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    with pytest.raises(Unavailable, match="modprobe nvidia"):
        await NvmlDriver.open()


async def test_a_driver_that_hangs_is_given_up(machine: Machine) -> None:
    machine.fault("nvmlInit*", latency_ms=300)
    with pytest.raises(Unavailable, match="no answer within"):
        await NvmlDriver.open(deadlines=Deadlines(act_s=0.05))
    for thread in threading.enumerate():
        if thread.name == "nvml":
            await asyncio.to_thread(thread.join, 20)
    with pytest.raises(pynvml.NVMLError, match="Uninitialized"):
        pynvml.nvmlDeviceGetCount()


def failing(code: int) -> Callable[..., NoReturn]:
    """Return a function that fails as NVML does."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise pynvml.NVMLError(code)

    return fail


async def test_a_driver_that_goes_away_is_unavailable(world: NvmlWorld) -> None:
    world.machine.fault("nvmlDeviceGetName", code=pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    with pytest.raises(Unavailable, match="the driver was replaced"):
        await world.driver.inventory()
    assert len((await world.driver.inventory()).gpus) == 2


async def test_a_late_answer_hurts_nobody(machine: Machine) -> None:
    async with await NvmlDriver.open(deadlines=Deadlines(events_s=0.01, act_s=0.1)) as driver:
        world = NvmlWorld(machine, driver)
        a100 = await cut(world)
        machine.fault("nvmlDeviceCreateGpuInstanceWithPlacement", latency_ms=400)
        with pytest.raises(Unavailable, match="creating an instance"):
            await driver.create_instance(a100.uuid, SMALL)
        with pytest.raises(Unavailable, match="`creating an instance` hanging"):
            await driver.inventory()
        async with asyncio.timeout(20):
            while True:
                with contextlib.suppress(Unavailable):
                    after, _ = (await driver.inventory()).gpus
                    break
                await asyncio.sleep(0.01)
        assert after.layout == (SMALL,)
