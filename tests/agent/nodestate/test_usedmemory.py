"""Memory in use is measured now and then, and small moves are left out."""

import pytest

from builders.gpunodes import shared
from tessera.agent.nodestate.usedmemory import UsedMemory
from tessera.clients.gpu import MemoryDriver
from tessera.core.cluster.gpunodestate import Used
from tessera.core.gpu.mig import Placement
from tessera.errors import Unavailable

pytestmark = pytest.mark.anyio


async def test_gpus_and_instances_are_measured() -> None:
    driver = MemoryDriver.of("A100-40GB", "T4")
    first, second = (await driver.inventory()).gpus
    half = Placement(0, 4, "3g.20gb")
    await driver.set_mig(first.uuid, enabled=True)
    await driver.create_instance(first.uuid, half)
    driver.start_process(first.uuid, 7, half, 3000)
    inventory = await driver.inventory()
    gpus = [shared(gpu) for gpu in inventory.gpus]
    used = UsedMemory(driver, every_s=0)
    # 14 MiB are of the empty instance.
    want = (
        Used(gpu=first.uuid, memory_mib=3014),
        Used(gpu=first.uuid, placement=half, memory_mib=3014),
        Used(gpu=second.uuid, memory_mib=0),
    )
    assert await used.read(gpus, inventory, ()) == want
    driver.start_process(second.uuid, 8, None, 100)
    assert await used.read(gpus, inventory, ()) == want
    driver.start_process(second.uuid, 9, None, 4000)
    assert (await used.read(gpus, inventory, ()))[-1] == Used(gpu=second.uuid, memory_mib=4100)


async def test_it_is_not_measured_more_often_than_said() -> None:
    driver = MemoryDriver.of("T4")
    inventory = await driver.inventory()
    gpus = [shared(gpu) for gpu in inventory.gpus]
    used = UsedMemory(driver)
    first = await used.read(gpus, inventory, ())
    driver.start_process(inventory.gpus[0].uuid, 8, None, 9000)
    assert await used.read(gpus, inventory, ()) == first


async def test_other_pods_or_another_layout_are_measured_at_once() -> None:
    driver = MemoryDriver.of("A100-40GB")
    inventory = await driver.inventory()
    (facts,) = inventory.gpus
    gpus = [shared(facts)]
    used = UsedMemory(driver)
    driver.start_process(facts.uuid, 8, None, 9000)
    assert [each.memory_mib for each in await used.read(gpus, inventory, ("a",))] == [9000]
    driver.end_process(8)
    assert [each.memory_mib for each in await used.read(gpus, inventory, ("a",))] == [9000]
    assert [each.memory_mib for each in await used.read(gpus, inventory, ())] == [0]
    await driver.set_mig(facts.uuid, enabled=True)
    half = Placement(0, 4, "3g.20gb")
    await driver.create_instance(facts.uuid, half)
    driver.start_process(facts.uuid, 9, half, 9000)
    assert [each.memory_mib for each in await used.read(gpus, await driver.inventory(), ())] == [9014, 9014]


async def test_what_the_driver_does_not_tell_is_left_out() -> None:
    driver = MemoryDriver.of("T4", "T4")
    inventory = await driver.inventory()
    driver.fail("use", Unavailable("GPU", found="silence", expected="an answer"))
    used = await UsedMemory(driver).read([shared(gpu) for gpu in inventory.gpus], inventory, ())
    assert [each.gpu for each in used] == [inventory.gpus[1].uuid]
