"""What every implementation of the GPU driver's Protocol does; each is run through it by a subclass."""

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from tessera.clients.gpu import GpuDriver
from tessera.core.inventory import ComputeMode, GpuEvent, GpuFacts
from tessera.core.mig import Placement, placements
from tessera.errors import Conflict, InvalidInput, Unsupported

FIRST, MIDDLE, LAST = Placement(0, 1, "1g.5gb"), Placement(2, 2, "2g.10gb"), Placement(4, 4, "3g.20gb")


class Rig(msgspec.Struct, kw_only=True):
    """A driver with an A100-40GB and a T4, and what the suite does to the node behind its back."""

    driver: GpuDriver
    start_process: Callable[[str, int, Placement | None], object]
    end_process: Callable[[int], object]
    report: Callable[[GpuEvent], object]

    async def gpus(self) -> tuple[GpuFacts, GpuFacts]:
        """Return the A100 and the T4."""
        first, second = (await self.driver.inventory()).gpus
        return first, second

    async def cut(self, *layout: Placement) -> str:
        """Return the UUID of the A100, cut so."""
        first, _ = await self.gpus()
        await self.driver.set_mig(first.uuid, enabled=True)
        for placement in layout:
            await self.driver.create_instance(first.uuid, placement)
        return first.uuid


@pytest.mark.anyio
class GpuSuite:
    """Subclasses give the fixture `rig`, with MIG off and nothing running."""

    async def test_the_inventory_tells_what_is_there(self, rig: Rig) -> None:
        a100, t4 = await rig.gpus()
        assert (a100.index, t4.index) == (0, 1)
        assert (a100.model.name, t4.model.name) == ("A100-40GB", "T4")
        assert a100.uuid.startswith("GPU-")
        assert a100.uuid != t4.uuid
        assert a100.mig is not None
        assert not a100.mig.current
        assert t4.mig is None
        assert 0 < a100.memory_mib <= a100.memory_total_mib
        assert (await rig.driver.inventory()).notes == ()

    async def test_instances_are_made_where_they_are_wanted(self, rig: Rig) -> None:
        gpu = await rig.cut(FIRST, LAST, MIDDLE)
        a100, _ = await rig.gpus()
        assert a100.layout == (FIRST, MIDDLE, LAST)
        assert [each.placement for each in a100.instances] == [FIRST, MIDDLE, LAST]
        assert len({each.uuid for each in a100.instances}) == 3
        assert all(each.uuid.startswith("MIG-") and each.memory_mib > 0 for each in a100.instances)
        await rig.driver.destroy_instance(gpu, MIDDLE)
        assert (await rig.gpus())[0].layout == (FIRST, LAST)

    async def test_a_new_instance_has_a_new_uuid(self, rig: Rig) -> None:
        gpu = await rig.cut(FIRST)
        (before,) = (await rig.gpus())[0].instances
        await rig.driver.destroy_instance(gpu, FIRST)
        after = await rig.driver.create_instance(gpu, FIRST)
        assert after.uuid != before.uuid
        assert (await rig.gpus())[0].instances == (after,)

    async def test_a_taken_place_is_refused(self, rig: Rig) -> None:
        gpu = await rig.cut(FIRST)
        with pytest.raises(Conflict, match="GPU 0"):
            await rig.driver.create_instance(gpu, Placement(0, 4, "3g.20gb"))
        assert (await rig.gpus())[0].layout == (FIRST,)

    async def test_every_placement_of_the_catalogue_can_be_made(self, rig: Rig) -> None:
        gpu = await rig.cut()
        a100, _ = await rig.gpus()
        for placement in placements(a100.model):
            made = await rig.driver.create_instance(gpu, placement)
            assert made.placement == placement
            await rig.driver.destroy_instance(gpu, placement)

    async def test_instances_need_mig(self, rig: Rig) -> None:
        a100, t4 = await rig.gpus()
        with pytest.raises(Conflict, match="GPU 0"):
            await rig.driver.create_instance(a100.uuid, FIRST)
        with pytest.raises(Unsupported, match="GPU 1"):
            await rig.driver.set_mig(t4.uuid, enabled=True)

    async def test_what_is_not_there_is_not_destroyed(self, rig: Rig) -> None:
        gpu = await rig.cut(FIRST)
        with pytest.raises(Conflict, match=r"2g\.10gb at 2"):
            await rig.driver.destroy_instance(gpu, MIDDLE)

    async def test_an_unknown_gpu_is_named(self, rig: Rig) -> None:
        with pytest.raises(InvalidInput, match="GPU-none"):
            await rig.driver.processes("GPU-none")

    async def test_a_used_instance_stays(self, rig: Rig) -> None:
        gpu = await rig.cut(FIRST, LAST)
        rig.start_process(gpu, 4711, LAST)
        with pytest.raises(Conflict, match=r"3g\.20gb at 4"):
            await rig.driver.destroy_instance(gpu, LAST)
        (process,) = await rig.driver.processes(gpu)
        last = (await rig.gpus())[0].instances[1]
        assert (process.pid, process.gpu_instance) == (4711, last.gpu_instance)
        assert (await rig.driver.use(gpu, LAST)).memory_used_mib > (await rig.driver.use(gpu, FIRST)).memory_used_mib
        rig.end_process(4711)
        await rig.driver.destroy_instance(gpu, LAST)

    async def test_a_used_gpu_keeps_its_mode(self, rig: Rig) -> None:
        a100, _ = await rig.gpus()
        rig.start_process(a100.uuid, 4711, None)
        with pytest.raises(Conflict, match="GPU 0"):
            await rig.driver.set_mig(a100.uuid, enabled=True)
        rig.end_process(4711)
        assert (await rig.driver.set_mig(a100.uuid, enabled=True)).current

    async def test_utilization_is_not_told_under_mig(self, rig: Rig) -> None:
        a100, t4 = await rig.gpus()
        await rig.cut()
        assert (await rig.driver.use(t4.uuid)).gpu_percent is not None
        assert (await rig.driver.use(a100.uuid)).gpu_percent is None

    async def test_the_compute_mode_is_set(self, rig: Rig) -> None:
        _, t4 = await rig.gpus()
        await rig.driver.set_compute_mode(t4.uuid, ComputeMode.EXCLUSIVE_PROCESS)
        assert (await rig.gpus())[1].compute_mode is ComputeMode.EXCLUSIVE_PROCESS

    async def test_power_is_capped_within_the_range_and_restored(self, rig: Rig) -> None:
        _, t4 = await rig.gpus()
        assert t4.power_range_watts is not None
        least, most = t4.power_range_watts
        await rig.driver.set_power_limit(t4.uuid, least)
        assert (await rig.gpus())[1].power_limit_watts == least
        with pytest.raises(InvalidInput, match=f"{least} and {most} W"):
            await rig.driver.set_power_limit(t4.uuid, most + 1)
        await rig.driver.set_power_limit(t4.uuid, None)
        assert (await rig.gpus())[1].power_limit_watts == t4.power_default_watts

    async def test_memory_is_limited_by_cgroup(self, rig: Rig) -> None:
        a100, t4 = await rig.gpus()
        await rig.driver.set_memory_limit(t4.uuid, "/kubepods/pod1", 4096)
        assert (await rig.driver.memory_limit(t4.uuid, "/kubepods/pod1")).hard_mib == 4096
        assert (await rig.driver.memory_limit(t4.uuid, "/kubepods/pod2")).hard_mib is None
        await rig.driver.set_memory_limit(t4.uuid, "/kubepods/pod1", None)
        assert (await rig.driver.memory_limit(t4.uuid, "/kubepods/pod1")).hard_mib is None
        await rig.cut()
        with pytest.raises(Unsupported, match="MIG"):
            await rig.driver.set_memory_limit(a100.uuid, "/kubepods/pod1", 4096)

    async def test_an_xid_is_told_with_the_instance_it_names(self, rig: Rig) -> None:
        gpu = await rig.cut(FIRST)
        (instance,) = (await rig.gpus())[0].instances
        told = asyncio.ensure_future(anext(rig.driver.events()))
        await asyncio.sleep(0.1)
        event = GpuEvent(gpu=gpu, xid=94, gpu_instance=instance.gpu_instance, compute_instance=0)
        rig.report(event)
        assert await asyncio.wait_for(told, 20) == event
