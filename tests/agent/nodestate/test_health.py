"""The driver's events and readings become what the agent may offer."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tessera.agent.nodestate.health import HealthWatch
from tessera.clients.gpu import MemoryDriver
from tessera.core.deviceplugin.offers.advertise import OfferOptions, offer
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import GpuEvent
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import Mode
from tessera.core.node.health import HealthChange, HealthPhase, HealthPolicy
from tessera.core.node.nodesharing import NodeSharing, SharingEntry, effective
from tessera.errors import Unavailable

SMALL, LARGE = Placement(0, 1, "1g.5gb"), Placement(4, 4, "3g.20gb")
SILENT = Unavailable("GPU driver", found="none", expected="an answer")
BAD = 63


class Rig:
    """A watch over an A100 with two instances and a T4, with a clock of its own."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.driver = MemoryDriver.of("A100-40GB", "T4")
        self.changes: list[HealthChange] = []
        self.changed = asyncio.Event()
        self.a100 = self.t4 = ""
        policy = HealthPolicy(rest_s=10, probation_s=5)
        self.watch = HealthWatch(self.driver, policy, on_change=self._note, clock=lambda: self.now_s)

    def _note(self, changes: tuple[HealthChange, ...]) -> None:
        self.changes += changes
        self.changed.set()

    async def reconcile(self) -> None:
        self.watch.observe(await self.driver.inventory())

    async def until_changed(self) -> None:
        async with asyncio.timeout(20):
            await self.changed.wait()
        self.changed.clear()


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    rig.a100, rig.t4 = (each.uuid for each in (await rig.driver.inventory()).gpus)
    await rig.driver.set_mig(rig.a100, enabled=True)
    for each in (SMALL, LARGE):
        await rig.driver.create_instance(rig.a100, each)
    await rig.reconcile()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(rig.watch.run())
        yield rig
        await rig.driver.close()


async def instances(rig: Rig) -> tuple[int, ...]:
    """Return the ids of the A100's GPU instances, in order of placement."""
    return tuple(each.gpu_instance for each in (await rig.driver.inventory()).gpus[0].instances)


@pytest.mark.anyio
async def test_an_error_of_an_instance_marks_it_alone_until_it_is_well_again(rig: Rig) -> None:
    _, large = await instances(rig)
    rig.driver.report(GpuEvent(gpu=rig.a100, xid=BAD, gpu_instance=large, compute_instance=0))
    await rig.until_changed()
    assert rig.watch.unhealthy == {(rig.a100, LARGE)}
    waits = []
    for rig.now_s in (0.0, 4.0, 10.0, 11.0, 20.0):
        waits.append(rig.watch.wait_s)
        await rig.reconcile()
    assert waits == [10.0, 6.0, 0.0, 4.0, 0.0]
    assert rig.watch.unhealthy == frozenset()
    assert rig.watch.wait_s is None
    assert [change.after for change in rig.changes] == [
        HealthPhase.UNHEALTHY,
        HealthPhase.PROBATION,
        HealthPhase.HEALTHY,
    ]


@pytest.mark.anyio
async def test_an_application_error_and_a_new_configuration_mark_nothing(rig: Rig) -> None:
    rig.driver.report(GpuEvent(gpu=rig.a100, xid=31))
    rig.driver.report(GpuEvent(gpu=rig.a100))
    rig.driver.report(GpuEvent(gpu=rig.t4, xid=48))
    await rig.until_changed()
    assert rig.watch.unhealthy == {DeviceId(rig.t4)}


@pytest.mark.anyio
async def test_a_storm_of_application_errors_reads_nothing(rig: Rig) -> None:
    rig.driver.fail("inventory", SILENT)
    for _ in range(100):
        rig.driver.report(GpuEvent(gpu=rig.a100, xid=31))
    for _ in range(200):
        await asyncio.sleep(0)
    with pytest.raises(Unavailable):
        await rig.driver.inventory()


@pytest.mark.anyio
async def test_a_lost_gpu_is_marked_and_comes_back(rig: Rig) -> None:
    rig.driver.lose(rig.t4)
    await rig.until_changed()
    assert rig.watch.unhealthy == {DeviceId(rig.t4)}
    rig.driver.find(rig.t4)
    for rig.now_s in (10.0, 15.0):
        await rig.reconcile()
    assert rig.watch.unhealthy == frozenset()


@pytest.mark.anyio
async def test_a_gpu_lost_without_a_word_is_noticed_by_looking(rig: Rig) -> None:
    inventory = await rig.driver.inventory()
    rig.driver.lose(rig.t4)
    await rig.reconcile()
    assert rig.watch.unhealthy == {DeviceId(rig.t4)}
    assert inventory.gpus[1].uuid == rig.t4


@pytest.mark.anyio
async def test_without_an_inventory_the_last_one_tells_the_instance(rig: Rig) -> None:
    small, _ = await instances(rig)
    rig.driver.fail("inventory", SILENT)
    rig.driver.report(GpuEvent(gpu=rig.a100, xid=BAD, gpu_instance=small))
    await rig.until_changed()
    assert rig.watch.unhealthy == {(rig.a100, SMALL)}


@pytest.mark.anyio
async def test_without_an_inventory_a_strange_instance_stands_for_its_gpu(rig: Rig) -> None:
    rig.driver.fail("inventory", SILENT)
    rig.driver.report(GpuEvent(gpu=rig.a100, xid=BAD, gpu_instance=77))
    await rig.until_changed()
    assert rig.watch.unhealthy == {DeviceId(rig.a100)}


@pytest.mark.anyio
async def test_an_event_before_anything_was_read_is_no_failure() -> None:
    rig = Rig()
    rig.driver.fail("inventory", SILENT)
    rig.driver.report(GpuEvent(gpu="GPU-0", xid=BAD))
    await rig.driver.close()
    async with asyncio.timeout(20):
        await rig.watch.run()
    assert rig.watch.unhealthy == frozenset()


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("case", "on_instance", "want"),
    [
        ("of an instance: its replicas alone", True, {"MIG small": 0, "MIG large": 4}),
        ("of the GPU: all its instances' replicas", False, {"MIG small": 4, "MIG large": 4}),
    ],
)
async def test_an_error_withdraws_every_share_of_what_it_is_about_and_nothing_else(
    rig: Rig, case: str, *, on_instance: bool, want: dict[str, int]
) -> None:
    inventory = await rig.driver.inventory()
    small, large = inventory.gpus[0].instances
    on = large.gpu_instance if on_instance else None
    rig.driver.report(GpuEvent(gpu=rig.a100, xid=BAD, gpu_instance=on))
    await rig.until_changed()
    shared = tuple(
        SharingEntry(resource=name, mode=Mode.TIME_SLICING, replicas=4)
        for name in ("nvidia.com/mig-1g.5gb", "nvidia.com/mig-3g.20gb", "nvidia.com/gpu")
    )
    gpus = effective(inventory, NodeSharing(entries=shared))
    offered = offer(gpus, inventory, OfferOptions(unhealthy=rig.watch.unhealthy))
    unhealthy = [
        each.id.partition("::")[0] for resource in offered.resources for each in resource.devices if not each.healthy
    ]
    assert {"MIG small": unhealthy.count(small.uuid), "MIG large": unhealthy.count(large.uuid)} == want, case
    assert rig.t4 not in unhealthy, case
