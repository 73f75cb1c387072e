"""The driver in memory: the conformance suite, and the faults only it has on demand."""

import asyncio

import pytest

from conformance.gpusuite import FIRST, LAST, GpuSuite, Rig
from tessera.clients.gpu import MemoryDriver
from tessera.core.inventory import GpuEvent
from tessera.errors import Conflict, InvalidInput, Unavailable, Unsupported


@pytest.fixture
def driver() -> MemoryDriver:
    return MemoryDriver.of("A100-40GB", "T4")


class TestMemoryDriver(GpuSuite):
    @pytest.fixture
    def rig(self, driver: MemoryDriver) -> Rig:
        return Rig(
            driver=driver, start_process=driver.start_process, end_process=driver.end_process, report=driver.report
        )


async def a100_of(driver: MemoryDriver) -> str:
    return (await driver.inventory()).gpus[0].uuid


@pytest.mark.anyio
async def test_the_second_creation_fails_once(driver: MemoryDriver) -> None:
    gpu = await a100_of(driver)
    await driver.set_mig(gpu, enabled=True)
    driver.fail("create_instance", Unavailable("GPU 0", found="a fault", wanted="an instance"), after=1)
    await driver.create_instance(gpu, FIRST)
    with pytest.raises(Unavailable, match="a fault"):
        await driver.create_instance(gpu, LAST)
    await driver.create_instance(gpu, LAST)


@pytest.mark.anyio
async def test_a_mode_change_may_wait_for_a_reset(driver: MemoryDriver) -> None:
    gpu = await a100_of(driver)
    driver.hold_mode_changes(gpu)
    assert (await driver.set_mig(gpu, enabled=True)).needs_reset
    with pytest.raises(Conflict, match="MIG off"):
        await driver.create_instance(gpu, FIRST)
    driver.reset(gpu)
    await driver.create_instance(gpu, FIRST)
    driver.reset(gpu)
    assert (await driver.inventory()).gpus[0].layout == ()


@pytest.mark.anyio
async def test_a_lost_gpu_is_listed_and_refuses(driver: MemoryDriver) -> None:
    gpu = await a100_of(driver)
    told = asyncio.ensure_future(anext(driver.events()))
    await asyncio.sleep(0)
    driver.lose(gpu)
    assert await told == GpuEvent(gpu=gpu, lost=True)
    assert (await driver.inventory()).gpus[0].lost
    with pytest.raises(Unavailable, match="lost"):
        await driver.processes(gpu)


@pytest.mark.anyio
async def test_clocks_are_locked_and_let_go(driver: MemoryDriver) -> None:
    gpu = await a100_of(driver)
    await driver.lock_clocks(gpu, (210, 1410))
    assert driver.clocks_mhz == {gpu: (210, 1410)}
    with pytest.raises(InvalidInput, match="MHz"):
        await driver.lock_clocks(gpu, (2, 1))
    await driver.lock_clocks(gpu, None)
    assert driver.clocks_mhz == {}


@pytest.mark.anyio
async def test_an_older_driver_limits_no_memory() -> None:
    driver = MemoryDriver.of("T4", memory_limits=False)
    gpu = await a100_of(driver)
    assert not (await driver.inventory()).memory_limits
    with pytest.raises(Unsupported, match="615"):
        await driver.set_memory_limit(gpu, "/kubepods", 1)
