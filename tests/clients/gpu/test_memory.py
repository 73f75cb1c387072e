"""GPUs in memory: the conformance suite, and the faults only they have on demand."""

import msgspec
import pytest

from conformance.gpusuite import LARGE, SMALL, GpuSuite, World, partition
from harness.gpuworlds import SILENT, MemoryWorld
from tessera.clients.gpu import MemoryDriver
from tessera.core.gpu.inventory import GpuEvent
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.readings import EngineActivity
from tessera.errors import Conflict, Unavailable, Unsupported

pytestmark = pytest.mark.anyio


class TestMemoryDriver(GpuSuite):
    @pytest.fixture
    def world(self) -> World:
        return MemoryWorld()


@pytest.fixture
def world() -> MemoryWorld:
    return MemoryWorld()


async def test_the_chosen_call_fails_and_no_other(world: MemoryWorld) -> None:
    a100 = await partition(world)
    world.driver.fail("create_instance", SILENT, after=1)
    await world.driver.create_instance(a100.uuid, SMALL)
    with pytest.raises(Unavailable, match="none"):
        await world.driver.create_instance(a100.uuid, LARGE)
    assert (await world.driver.inventory()).gpus[0].layout == (SMALL,)
    await world.driver.create_instance(a100.uuid, LARGE)


@pytest.mark.parametrize("half_done", [False, True])
async def test_reading_fails_as_set(world: MemoryWorld, *, half_done: bool) -> None:
    world.driver.fail("inventory", Conflict("GPU", found="another", expected="this"), half_done=half_done)
    with pytest.raises(Conflict, match="another"):
        await world.driver.inventory()
    await world.driver.inventory()


async def test_a_half_done_destruction_leaves_the_gpu_instance(world: MemoryWorld) -> None:
    a100 = await partition(world, SMALL, LARGE)
    world.driver.fail("destroy_instance", SILENT, half_done=True)
    with pytest.raises(Unavailable):
        await world.driver.destroy_instance(a100.uuid, SMALL)
    after = (await world.driver.inventory()).gpus[0]
    assert (after.layout, after.incomplete) == ((SMALL, LARGE), (SMALL,))


async def test_a_change_whose_answer_is_lost_has_happened(world: MemoryWorld) -> None:
    gpu = (await world.driver.inventory()).gpus[0].uuid
    world.driver.fail("set_mig", SILENT, half_done=True)
    with pytest.raises(Unavailable):
        await world.driver.set_mig(gpu, enabled=True)
    assert (await world.driver.inventory()).gpus[0].layout == ()


async def test_a_reboot_takes_instances_processes_and_limits(world: MemoryWorld) -> None:
    a100 = await partition(world, SMALL)
    t4 = (await world.driver.inventory()).gpus[1]
    world.driver.start_process(a100.uuid, 7, SMALL)
    await world.driver.set_memory_limit(t4.uuid, "/pod", 1024)
    await world.driver.lock_clocks(t4.uuid, (300, 900))
    assert world.driver.clocks_mhz == {t4.uuid: (300, 900)}
    world.driver.reboot()
    assert (await world.driver.inventory()).gpus[0].layout == ()
    assert await world.driver.processes(a100.uuid) == ()
    assert (await world.driver.memory_limit(t4.uuid, "/pod")).hard_mib is None
    assert world.driver.clocks_mhz == {}


async def test_clocks_are_locked_and_let_go(world: MemoryWorld) -> None:
    gpu = (await world.driver.inventory()).gpus[0].uuid
    await world.driver.lock_clocks(gpu, (210, 1410))
    assert world.driver.clocks_mhz == {gpu: (210, 1410)}
    await world.driver.lock_clocks(gpu, None)
    assert world.driver.clocks_mhz == {}


async def test_a_lost_gpu_can_be_found_again(world: MemoryWorld) -> None:
    gpu = (await world.driver.inventory()).gpus[0].uuid
    world.driver.lose(gpu)
    world.driver.find(gpu)
    await world.driver.set_mig(gpu, enabled=True)


async def test_a_gpu_without_power_limits_is_refused() -> None:
    (known,) = (await MemoryDriver.of("T4").inventory()).gpus
    driver = MemoryDriver((msgspec.structs.replace(known, power_range_watts=None),))
    with pytest.raises(Unsupported, match="no power limits"):
        await driver.set_power_limit(known.uuid, 100)


async def test_a_driver_may_limit_no_memory() -> None:
    driver = MemoryDriver.of("T4", memory_limits=False)
    inventory = await driver.inventory()
    assert not inventory.memory_limits
    with pytest.raises(Unsupported, match=r"615.*MPS"):
        await driver.set_memory_limit(inventory.gpus[0].uuid, "/pod", 1024)


async def test_a_reader_that_does_not_read_misses_the_oldest_events(world: MemoryWorld) -> None:
    events = world.driver.events()
    for number in range(2000):
        world.driver.report(GpuEvent(gpu="GPU-0", xid=number))
    await world.driver.close()
    found = [event.xid async for event in events]
    assert found == list(range(977, 2000))


async def test_multiprocessors_are_measured_from_hopper_on_also_under_mig() -> None:
    driver = MemoryDriver.of("H100-80GB", "A100-40GB")
    hopper, ampere = (each.uuid for each in (await driver.inventory()).gpus)
    for uuid in (hopper, ampere):
        driver.start_process(uuid, 7, sm_percent=60)
    assert [(await driver.measure(each)).activity for each in (hopper, ampere)] == [EngineActivity(sm_percent=60), None]
    driver.end_process(7)
    placement = Placement(0, 1, "1g.10gb")
    await driver.set_mig(hopper, enabled=True)
    await driver.create_instance(hopper, placement)
    driver.start_process(hopper, 8, placement, sm_percent=90)
    found = await driver.measure(hopper)
    assert [each.activity for each in found.instances] == [EngineActivity(sm_percent=90)]
    assert (found.activity, found.gpu_percent) == (None, None)
