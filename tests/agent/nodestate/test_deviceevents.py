"""Each change of a device is an event once, also where it could not be written at first."""

import datetime as dt

import pytest

from builders.gpufacts import gpu_facts
from tessera.agent.nodestate.deviceevents import DeviceEvents
from tessera.agent.nodestate.noderecord import NodeRecord
from tessera.clients.kube import EVENTS, NODES, MemoryKube
from tessera.core.cluster.gpunodestate import UnhealthyDevice
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import Inventory
from tessera.core.node.health import HealthChange, HealthPhase
from tessera.log import logger

pytestmark = pytest.mark.anyio

NOON = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)
OBSERVED = Inventory(gpus=(gpu_facts("T4"),))
UNHEALTHY = HealthChange(
    device=DeviceId("GPU-0"), before=HealthPhase.HEALTHY, after=HealthPhase.UNHEALTHY, reason="error 79"
)
LEFT = UnhealthyDevice(device=DeviceId("GPU-0"), reason="processes of a pod that is gone use it")


@pytest.fixture
async def kube() -> MemoryKube:
    kube = MemoryKube()
    await kube.create(NODES, {"metadata": {"name": "n1"}})
    return kube


@pytest.fixture
def events(kube: MemoryKube) -> DeviceEvents:
    return DeviceEvents(NodeRecord(kube, "n1", logger(), now=lambda: NOON))


async def written(kube: MemoryKube) -> list[tuple[str, int]]:
    return [(each["reason"], each["count"]) for each in (await kube.list(EVENTS)).objects]


async def test_a_change_of_health_is_said_once(kube: MemoryKube, events: DeviceEvents) -> None:
    events.judged([UNHEALTHY])
    await events.write(OBSERVED, ())
    await events.write(OBSERVED, ())
    assert await written(kube) == [("DeviceUnhealthy", 1)]


async def test_what_could_not_be_written_is_written_later(kube: MemoryKube, events: DeviceEvents) -> None:
    events.judged([UNHEALTHY])
    kube.stop()
    await events.write(OBSERVED, (LEFT,))
    kube.start()
    assert await written(kube) == []
    await events.write(OBSERVED, (LEFT,))
    assert sorted(await written(kube)) == [("DeviceOrphaned", 1), ("DeviceUnhealthy", 1)]


async def test_a_device_that_is_left_with_processes_again_is_said_again(kube: MemoryKube, events: DeviceEvents) -> None:
    for left in ((LEFT,), (LEFT,), (), (LEFT,)):
        await events.write(OBSERVED, left)
    assert await written(kube) == [("DeviceOrphaned", 2)]
