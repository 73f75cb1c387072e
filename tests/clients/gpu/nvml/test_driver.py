"""The driver by NVML over the simulated library: the conformance suite, and how it is opened and given up."""

import asyncio
import contextlib
import threading

import pynvml
import pytest

from conformance.gpusuite import SMALL, GpuSuite, partition
from harness.gpuworlds import NvmlWorld
from tessera.clients.gpu import Deadlines, NvmlDriver
from tessera.errors import Unavailable
from tessera.sim.nvmlsim import Machine

pytestmark = pytest.mark.anyio


class TestNvmlDriver(GpuSuite):
    pass


async def test_a_driver_that_hangs_is_given_up(machine: Machine) -> None:
    machine.fault("nvmlInit*", latency_ms=300)
    with pytest.raises(Unavailable, match="no answer within"):
        await NvmlDriver.open(deadlines=Deadlines(act_s=0.05))
    for thread in threading.enumerate():
        if thread.name == "nvml":
            await asyncio.to_thread(thread.join, 20)
    with pytest.raises(pynvml.NVMLError, match="Uninitialized"):
        pynvml.nvmlDeviceGetCount()


async def test_a_late_answer_hurts_nobody(machine: Machine) -> None:
    async with await NvmlDriver.open(deadlines=Deadlines(events_s=0.01, act_s=0.1)) as driver:
        world = NvmlWorld(machine, driver)
        a100 = await partition(world)
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
