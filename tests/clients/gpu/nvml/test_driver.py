"""The driver by NVML over the simulated library: the conformance suite, and how it is opened and given up."""

import asyncio
import contextlib
import threading

import pynvml
import pytest

from conformance.gpusuite import SMALL, GpuSuite, partition, soon
from harness.gpuworlds import QUICK, NvmlWorld
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


async def test_a_lazy_driver_fails_until_it_is_loaded(machine: Machine) -> None:
    opened: list[str] = []
    machine.fault("nvmlInit*", code=pynvml.NVML_ERROR_DRIVER_NOT_LOADED, times=2)
    driver = NvmlDriver.lazy(deadlines=QUICK, on_open=lambda: opened.append("open"))
    async with driver:
        events = driver.events()
        for _ in range(2):
            with pytest.raises(Unavailable, match="modprobe nvidia"):
                await driver.inventory()
            assert not opened
        assert len((await driver.inventory()).gpus) == 2
        assert opened == ["open"]
        (a100, _) = (await driver.inventory()).gpus
        NvmlWorld(machine, driver).xid(a100, 48)
        assert (await soon(events, lambda event: event.xid is not None)).xid == 48
        assert opened == ["open"]


async def test_a_library_that_is_not_there_yet_may_come_later(machine: Machine) -> None:
    machine.fault("nvmlInit*", code=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, times=1)
    async with NvmlDriver.lazy(deadlines=QUICK) as driver:
        with pytest.raises(Unavailable, match=r"Found \(12\): install NVIDIA's driver"):
            await driver.processes("GPU-0")
        assert len((await driver.inventory()).gpus) == 2


async def test_a_lazy_driver_that_hangs_has_one_thread_and_answers_once_it_is_open(machine: Machine) -> None:
    machine.fault("nvmlInit*", latency_ms=400)
    before, opened = threading.active_count(), list[str]()
    deadlines = Deadlines(events_s=0.01, read_s=0.1)
    async with NvmlDriver.lazy(deadlines=deadlines, on_open=lambda: opened.append("open")) as driver:
        with pytest.raises(Unavailable, match=r"opening it: no answer within 0\.1 s"):
            await driver.inventory()
        for _ in range(3):
            with pytest.raises(Unavailable, match="`opening it` hanging"):
                await driver.inventory()
        assert threading.active_count() == before + 1
        async with asyncio.timeout(20):
            while True:
                with contextlib.suppress(Unavailable):
                    assert len((await driver.inventory()).gpus) == 2
                    break
                await asyncio.sleep(0.01)
        assert opened == ["open"], "although no call waited until it was"


async def test_a_driver_that_hangs_delays_no_end(machine: Machine) -> None:
    machine.fault("nvmlInit*", latency_ms=1000)
    async with asyncio.timeout(0.9):
        async with NvmlDriver.lazy(deadlines=Deadlines(read_s=0.05)) as driver:
            with pytest.raises(Unavailable):
                await driver.inventory()
    for thread in threading.enumerate():
        if thread.name == "nvml":
            await asyncio.to_thread(thread.join, 20)
    with pytest.raises(pynvml.NVMLError, match="Uninitialized"):
        pynvml.nvmlDeviceGetCount()
