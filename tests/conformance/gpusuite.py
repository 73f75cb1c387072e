"""What every implementation of the GPU driver's Protocol does; each is run through it by a subclass."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Protocol

import msgspec
import pytest

from tessera.clients.gpu import GpuDriver
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.inventory import ComputeMode, GpuEvent, GpuFacts
from tessera.core.gpu.mig import Placement, maximal_layouts
from tessera.core.usage.activity import UNUSED_MIB
from tessera.errors import Conflict, InvalidInput, Unavailable, Unsupported

A100 = model("A100-40GB")
SMALL, MIDDLE, LARGE = Placement(0, 1, "1g.5gb"), Placement(2, 2, "2g.10gb"), Placement(4, 4, "3g.20gb")
NOWHERE = Placement(1, 2, "2g.10gb")
"""The A100 starts 2g.10gb at even units only."""
STRANGE = Placement(0, 1, "1g.24gb")
CGROUP = "/kubepods.slice/pod-1"


class World(Protocol):
    """A node with an A100-40GB and a T4, MIG off, idle; and what may happen to it from outside."""

    @property
    def driver(self) -> GpuDriver:
        """The driver under test."""
        ...

    def start_process(self, gpu: GpuFacts, pid: int, placement: Placement | None = None, memory_mib: int = 0) -> None:
        """Open a context on a GPU, or on one instance of it."""
        ...

    def end_process(self, pid: int) -> None:
        """Close all contexts of a process."""
        ...

    def fail_half_way(self) -> None:
        """Let the next creation end without a compute instance, and what was made not be taken back."""
        ...

    def xid(self, gpu: GpuFacts, number: int, placement: Placement | None = None) -> None:
        """Report an error of a GPU, or of one instance."""
        ...

    def lose(self, gpu: GpuFacts) -> None:
        """Let the GPU fall off the bus."""
        ...

    def require_reset(self, gpu: GpuFacts) -> None:
        """Let changes of the MIG mode wait for a reset."""
        ...

    def reset(self, gpu: GpuFacts) -> None:
        """Reset the GPU."""
        ...


async def read(world: World) -> tuple[GpuFacts, GpuFacts]:
    """Return the A100 and the T4 as they are now."""
    a100, t4 = (await world.driver.inventory()).gpus
    return a100, t4


async def partition(world: World, *placements: Placement) -> GpuFacts:
    """Return the A100 with MIG on and these instances."""
    a100, _ = await read(world)
    await world.driver.set_mig(a100.uuid, enabled=True)
    for each in placements:
        await world.driver.create_instance(a100.uuid, each)
    return (await read(world))[0]


async def soon(events: AsyncIterator[GpuEvent], desired: Callable[[GpuEvent], bool]) -> GpuEvent:
    """Return the next event that is desired."""
    async with asyncio.timeout(20):
        async for event in events:
            if desired(event):
                return event
    pytest.fail("the stream ended")


@pytest.mark.anyio
class GpuSuite:
    """Subclasses give the fixture `world`."""

    # Reading

    async def test_gpus_are_distinguished_and_known(self, world: World) -> None:
        inventory = await world.driver.inventory()
        a100, t4 = inventory.gpus
        assert [each.index for each in inventory.gpus] == [0, 1]
        assert [each.model.name for each in inventory.gpus] == ["A100-40GB", "T4"]
        assert a100.uuid != t4.uuid
        assert a100.uuid.startswith("GPU-")
        assert "A100" in a100.product
        assert a100.pci_device_id in A100.pci
        assert (a100.compute_capability, t4.compute_capability) == ((8, 0), (7, 5))
        assert inventory.driver
        assert inventory.notes == ()

    async def test_memory_that_can_be_granted_is_the_total_less_what_is_reserved(self, world: World) -> None:
        for each in await read(world):
            assert each.memory_total_mib == each.model.memory_mib
            assert 0 < each.memory_mib <= each.memory_total_mib

    async def test_a_gpu_without_mig_has_no_mode_and_one_without_instances_has_no_layout(self, world: World) -> None:
        a100, t4 = await read(world)
        assert t4.mig is None
        assert a100.layout is None
        assert (a100.model.profiles, a100.model.memory_slices) == (A100.profiles, A100.memory_slices)

    async def test_asking_twice_gives_the_same(self, world: World) -> None:
        one, two = await world.driver.inventory(), await world.driver.inventory()
        assert msgspec.structs.replace(one, asked_ns=two.asked_ns) == two
        assert 0 < one.asked_ns <= two.asked_ns, "of two the later is known"

    # MIG mode

    async def test_mig_is_turned_on_and_off(self, world: World) -> None:
        a100, _ = await read(world)
        assert (await world.driver.set_mig(a100.uuid, enabled=True)).current
        assert (await read(world))[0].layout == ()
        mode = await world.driver.set_mig(a100.uuid, enabled=False)
        assert (mode.current, mode.pending) == (False, False)
        assert (await read(world))[0].layout is None

    async def test_turning_mig_on_twice_is_harmless(self, world: World) -> None:
        a100 = await partition(world, SMALL)
        await world.driver.set_mig(a100.uuid, enabled=True)
        assert (await read(world))[0] == a100

    async def test_a_mode_may_wait_for_a_reset(self, world: World) -> None:
        a100, _ = await read(world)
        world.require_reset(a100)
        mode = await world.driver.set_mig(a100.uuid, enabled=True)
        assert (mode.current, mode.pending, mode.needs_reset) == (False, True, True)
        assert (await read(world))[0].mig == mode
        world.reset(a100)
        assert (await read(world))[0].layout == ()

    async def test_a_pending_mode_is_taken_back(self, world: World) -> None:
        a100, _ = await read(world)
        world.require_reset(a100)
        await world.driver.set_mig(a100.uuid, enabled=True)
        assert not (await world.driver.set_mig(a100.uuid, enabled=False)).needs_reset

    async def test_the_mode_of_a_busy_gpu_stays(self, world: World) -> None:
        a100, _ = await read(world)
        world.start_process(a100, 7)
        with pytest.raises(Conflict, match=r"GPU 0 .*1 processes"):
            await world.driver.set_mig(a100.uuid, enabled=True)
        assert (await read(world))[0].mig == a100.mig

    async def test_mig_stays_on_while_there_are_instances(self, world: World) -> None:
        a100 = await partition(world, SMALL)
        with pytest.raises(Conflict, match="1 MIG instances"):
            await world.driver.set_mig(a100.uuid, enabled=False)
        assert (await read(world))[0] == a100

    async def test_a_gpu_without_mig_is_refused(self, world: World) -> None:
        _, t4 = await read(world)
        with pytest.raises(Unsupported, match="T4, which has no MIG"):
            await world.driver.set_mig(t4.uuid, enabled=True)
        with pytest.raises(Unsupported, match="no MIG"):
            await world.driver.create_instance(t4.uuid, SMALL)

    # Instances

    async def test_an_instance_is_made_exactly_where_it_is_desired(self, world: World) -> None:
        a100 = await partition(world)
        made = await world.driver.create_instance(a100.uuid, LARGE)
        after, _ = await read(world)
        assert after.instances == (made,)
        assert after.incomplete == ()
        assert made.placement == LARGE
        assert made.uuid.startswith("MIG-")
        assert made.memory_mib == next(each.memory_mib for each in A100.profiles if each.name == LARGE.profile)
        assert made.multiprocessors == 42

    async def test_instances_are_sorted_by_placement(self, world: World) -> None:
        a100 = await partition(world, LARGE, SMALL, MIDDLE)
        assert a100.layout == (SMALL, MIDDLE, LARGE)
        assert [each.placement for each in a100.instances] == [SMALL, MIDDLE, LARGE]
        assert len({each.gpu_instance for each in a100.instances}) == 3

    async def test_every_maximal_layout_can_be_made_and_unmade(self, world: World) -> None:
        a100 = await partition(world)
        for layout in maximal_layouts(A100):
            for each in layout:
                await world.driver.create_instance(a100.uuid, each)
            assert (await read(world))[0].layout == layout
            for each in layout:
                await world.driver.destroy_instance(a100.uuid, each)
        assert (await read(world))[0] == a100

    async def test_no_room_is_a_conflict_and_changes_nothing(self, world: World) -> None:
        a100 = await partition(world, LARGE)
        for each in (LARGE, Placement(4, 1, "1g.5gb"), Placement(0, 8, "7g.40gb")):
            with pytest.raises(Conflict, match="share memory"):
                await world.driver.create_instance(a100.uuid, each)
        assert (await read(world))[0] == a100

    async def test_a_media_engine_that_a_gpu_has_once_is_given_once(self, world: World) -> None:
        a100 = await partition(world, Placement(0, 1, "1g.5gb+me"))
        with pytest.raises(Conflict, match="media engines"):
            await world.driver.create_instance(a100.uuid, Placement(1, 1, "1g.5gb+me"))

    @pytest.mark.parametrize("placement", [NOWHERE, STRANGE], ids=["no such start", "no such profile"])
    async def test_what_no_gpu_of_the_model_could_hold_is_invalid(self, world: World, placement: Placement) -> None:
        a100 = await partition(world)
        with pytest.raises(InvalidInput, match=placement.profile):
            await world.driver.create_instance(a100.uuid, placement)

    async def test_nothing_is_cut_with_mig_off(self, world: World) -> None:
        a100, _ = await read(world)
        with pytest.raises(Conflict, match="MIG is off"):
            await world.driver.create_instance(a100.uuid, SMALL)

    async def test_an_instance_made_again_has_another_uuid(self, world: World) -> None:
        a100 = await partition(world, SMALL)
        await world.driver.destroy_instance(a100.uuid, SMALL)
        again = await world.driver.create_instance(a100.uuid, SMALL)
        assert again.uuid != a100.instances[0].uuid

    async def test_what_is_not_there_is_not_destroyed(self, world: World) -> None:
        a100 = await partition(world, SMALL, LARGE)
        await world.driver.destroy_instance(a100.uuid, SMALL)
        with pytest.raises(Conflict, match=r"1g\.5gb at 0 on GPU 0 .*no such instance"):
            await world.driver.destroy_instance(a100.uuid, SMALL)
        assert (await read(world))[0].layout == (LARGE,)

    async def test_a_used_instance_is_not_destroyed(self, world: World) -> None:
        a100 = await partition(world, SMALL, LARGE)
        world.start_process(a100, 7, SMALL)
        with pytest.raises(Conflict, match=r"1g\.5gb at 0 on GPU 0 .*7"):
            await world.driver.destroy_instance(a100.uuid, SMALL)
        assert (await read(world))[0] == a100
        await world.driver.destroy_instance(a100.uuid, LARGE)
        world.end_process(7)
        await world.driver.destroy_instance(a100.uuid, SMALL)
        assert (await read(world))[0].layout == ()

    async def test_a_half_made_instance_is_shown_and_can_be_destroyed(self, world: World) -> None:
        a100 = await partition(world, LARGE)
        world.fail_half_way()
        with pytest.raises(Unavailable):
            await world.driver.create_instance(a100.uuid, SMALL)
        after, _ = await read(world)
        assert (after.instances, after.incomplete) == (a100.instances, (SMALL,))
        await world.driver.destroy_instance(a100.uuid, SMALL)
        assert (await read(world))[0] == a100

    async def test_the_other_gpu_is_not_touched(self, world: World) -> None:
        _, before = await read(world)
        await partition(world, SMALL, LARGE)
        assert (await read(world))[1] == before

    # Processes and use

    async def test_processes_are_reported_with_their_instance(self, world: World) -> None:
        a100 = await partition(world, SMALL, LARGE)
        _, t4 = await read(world)
        world.start_process(a100, 9, LARGE, 100)
        world.start_process(a100, 7, SMALL, 200)
        world.start_process(t4, 8, memory_mib=300)
        small, large = (each.gpu_instance for each in a100.instances)
        found = [(each.pid, each.memory_mib, each.gpu_instance) for each in await world.driver.processes(a100.uuid)]
        assert found == [(7, 200, small), (9, 100, large)]
        (other,) = await world.driver.processes(t4.uuid)
        assert (other.pid, other.memory_mib, other.gpu_instance) == (8, 300, None)

    async def test_memory_in_use_is_reported_by_gpu_and_instance(self, world: World) -> None:
        a100 = await partition(world, SMALL, LARGE)
        empty = (await world.driver.use(a100.uuid, SMALL)).memory_used_mib
        world.start_process(a100, 9, LARGE, 100)
        world.start_process(a100, 7, SMALL, 200)
        assert 0 < empty <= UNUSED_MIB
        assert (await world.driver.use(a100.uuid, SMALL)).memory_used_mib == empty + 200
        assert (await world.driver.use(a100.uuid)).memory_used_mib == 2 * empty + 300
        with pytest.raises(Conflict, match="no such instance"):
            await world.driver.use(a100.uuid, MIDDLE)

    async def test_with_mig_on_utilization_is_not_reported(self, world: World) -> None:
        a100, t4 = await read(world)
        assert (await world.driver.use(a100.uuid)).gpu_percent is not None
        await partition(world, SMALL)
        assert (await world.driver.use(a100.uuid)).gpu_percent is None
        assert (await world.driver.use(a100.uuid, SMALL)).gpu_percent is None
        assert (await world.driver.use(t4.uuid)).gpu_percent is not None

    # Limits

    async def test_the_compute_mode_is_set(self, world: World) -> None:
        _, t4 = await read(world)
        for mode in (ComputeMode.EXCLUSIVE_PROCESS, ComputeMode.PROHIBITED, ComputeMode.DEFAULT):
            await world.driver.set_compute_mode(t4.uuid, mode)
            assert (await read(world))[1].compute_mode is mode

    async def test_with_mig_on_the_compute_mode_is_the_default(self, world: World) -> None:
        a100, _ = await read(world)
        await world.driver.set_compute_mode(a100.uuid, ComputeMode.EXCLUSIVE_PROCESS)
        a100 = await partition(world)
        assert a100.compute_mode is ComputeMode.DEFAULT
        with pytest.raises(Unsupported, match="MIG is on"):
            await world.driver.set_compute_mode(a100.uuid, ComputeMode.EXCLUSIVE_PROCESS)

    async def test_power_is_capped_and_given_back(self, world: World) -> None:
        a100, _ = await read(world)
        assert a100.power_range_watts is not None
        low, high = a100.power_range_watts
        await world.driver.set_power_limit(a100.uuid, low)
        assert (await read(world))[0].power_limit_watts == low
        for watts in (low - 1, high + 1):
            with pytest.raises(InvalidInput, match=f"between {low} and {high} W"):
                await world.driver.set_power_limit(a100.uuid, watts)
        await world.driver.set_power_limit(a100.uuid, None)
        assert (await read(world))[0].power_limit_watts == a100.power_default_watts

    async def test_clocks_are_locked_and_let_go(self, world: World) -> None:
        a100, _ = await read(world)
        await world.driver.lock_clocks(a100.uuid, (600, 1200))
        with pytest.raises(InvalidInput, match="the lowest clock"):
            await world.driver.lock_clocks(a100.uuid, (1200, 600))
        await world.driver.lock_clocks(a100.uuid, None)

    async def test_memory_of_a_cgroup_is_limited(self, world: World) -> None:
        _, t4 = await read(world)
        assert (await world.driver.inventory()).memory_limits
        assert (await world.driver.memory_limit(t4.uuid, CGROUP)).hard_mib is None
        await world.driver.set_memory_limit(t4.uuid, CGROUP, 2048)
        assert (await world.driver.memory_limit(t4.uuid, CGROUP)).hard_mib == 2048
        assert (await world.driver.memory_limit(t4.uuid, f"{CGROUP}/other")).hard_mib is None
        with pytest.raises(InvalidInput, match="-1 MiB"):
            await world.driver.set_memory_limit(t4.uuid, CGROUP, -1)
        await world.driver.set_memory_limit(t4.uuid, CGROUP, None)
        await world.driver.set_memory_limit(t4.uuid, CGROUP, None)
        assert (await world.driver.memory_limit(t4.uuid, CGROUP)).hard_mib is None

    async def test_with_mig_on_memory_is_not_limited(self, world: World) -> None:
        a100 = await partition(world)
        with pytest.raises(Unsupported, match="MIG"):
            await world.driver.set_memory_limit(a100.uuid, CGROUP, 2048)
        with pytest.raises(Unsupported, match="MIG"):
            await world.driver.memory_limit(a100.uuid, CGROUP)

    # Faults and events

    async def test_a_strange_uuid_is_named_and_those_that_there_are(self, world: World) -> None:
        a100, _ = await read(world)
        for call in (world.driver.processes, world.driver.use):
            with pytest.raises(InvalidInput, match=f"GPU-none: this node has no such GPU: there are {a100.uuid}, GPU-"):
                await call("GPU-none")
        with pytest.raises(InvalidInput, match="GPU-none"):
            await world.driver.create_instance("GPU-none", SMALL)

    async def test_a_lost_gpu_stays_in_sight_and_is_reported(self, world: World) -> None:
        before, t4 = await read(world)
        events = world.driver.events()
        world.lose(before)
        event = await soon(events, lambda event: event.lost)
        assert event.gpu == before.uuid
        after, other = await read(world)
        assert (after.uuid, after.index, after.model, after.lost) == (before.uuid, 0, before.model, True)
        assert other == t4
        with pytest.raises(Unavailable, match=r"GPU 0 .*lost"):
            await world.driver.set_mig(before.uuid, enabled=True)

    async def test_errors_come_with_the_instance_they_are_about(self, world: World) -> None:
        a100 = await partition(world, SMALL, LARGE)
        _, t4 = await read(world)
        events, others = world.driver.events(), world.driver.events()
        world.xid(t4, 48)
        world.xid(a100, 31, LARGE)
        for stream in (events, others):
            first = await soon(stream, lambda event: event.xid is not None)
            assert (first.gpu, first.xid, first.gpu_instance) == (t4.uuid, 48, None)
            second = await soon(stream, lambda event: event.xid is not None)
            assert (second.gpu, second.xid) == (a100.uuid, 31)
            assert second.gpu_instance == a100.instances[1].gpu_instance

    async def test_a_new_mig_configuration_is_reported(self, world: World) -> None:
        events = world.driver.events()
        a100 = await partition(world)
        event = await soon(events, lambda event: event.xid is None)
        assert (event.gpu, event.lost) == (a100.uuid, False)

    async def test_closing_ends_streams_and_calls(self, world: World) -> None:
        a100, _ = await read(world)
        events = world.driver.events()
        await world.driver.close()
        async with asyncio.timeout(20):
            assert [event async for event in events] == []
            assert [event async for event in world.driver.events()] == []
        with pytest.raises(Unavailable, match="closed"):
            await world.driver.inventory()
        with pytest.raises(Unavailable, match="closed"):
            await world.driver.create_instance(a100.uuid, SMALL)
        await world.driver.close()

    # Measuring

    async def test_a_reading_has_the_memory_of_each_process_and_of_the_gpu(self, world: World) -> None:
        _, t4 = await read(world)
        world.start_process(t4, 7, memory_mib=100)
        world.start_process(t4, 8, memory_mib=50)
        found = await world.driver.measure(t4.uuid)
        assert found.memory_used_mib == 150
        assert [(each.pid, each.memory_mib, each.gpu_instance) for each in found.processes or ()] == [
            (7, 100, None),
            (8, 50, None),
        ]
        assert found.gpu_percent is not None
        assert found.instances == ()

    async def test_a_reading_under_mig_is_of_each_instance_and_has_no_utilization(self, world: World) -> None:
        gpu = await partition(world, SMALL, LARGE)
        world.start_process(gpu, 7, LARGE, memory_mib=200)
        found = await world.driver.measure(gpu.uuid)
        assert found.gpu_percent is None
        assert [(each.placement, each.memory_used_mib) for each in found.instances] == [(SMALL, 14), (LARGE, 214)]
        on = next(each.gpu_instance for each in gpu.instances if each.placement == LARGE)
        assert [(each.pid, each.gpu_instance, each.sm_percent) for each in found.processes or ()] == [(7, on, None)]

    async def test_a_lost_gpu_and_one_that_is_not_there_cannot_be_measured(self, world: World) -> None:
        _, t4 = await read(world)
        world.lose(t4)
        with pytest.raises(Unavailable, match="lost"):
            await world.driver.measure(t4.uuid)
        with pytest.raises(InvalidInput, match="no such GPU"):
            await world.driver.measure("GPU-none")
