"""The server under the real kube-scheduler and API server; a look at the API alone finds nothing overcommitted."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from functools import partial

import pytest

from harness.servers import check
from judges.allocated import shares_of
from kube.fakenodes import ALL_MADE, FakeNode, idle_pod, only_nodes
from tessera.clients.kube import GPU_NODES, PODS, HttpKube, Kube, Object, annotations_of
from tessera.core.workload.resources import SCHEDULER_NAME
from testbed.cluster import Cluster

pytestmark = pytest.mark.anyio

NODES = [
    *(FakeNode(name=f"a100-{i}", gpus=4) for i in range(10)),
    *(FakeNode(name=f"h100-{i}", gpus=2, model="H100-80GB") for i in range(6)),
    *(FakeNode(name=f"t4-{i}", gpus=4, model="T4") for i in range(4)),
]
REQUESTS: tuple[tuple[dict[str, int], dict[str, str]], ...] = (
    ({"tessera.dev/gpu-memory": 4}, {}),
    ({"tessera.dev/gpu-memory": 9, "tessera.dev/gpu-compute": 20}, {}),
    ({"tessera.dev/gpu-memory": 8}, {"tessera.dev/isolation": "hardware"}),
    ({"tessera.dev/gpu-memory": 5}, {"tessera.dev/isolation": "none"}),
    ({"aliyun.com/gpu-mem": 3}, {}),
)


@pytest.fixture
async def kube(scheduling_plane: Cluster) -> AsyncIterator[HttpKube]:
    """Give the API of a cluster with twenty nodes of three models and no pods of tests."""
    async with only_nodes(scheduling_plane, NODES) as client:
        yield client


pending = partial(idle_pod, schedulerName=SCHEDULER_NAME)


async def bound(kube: Kube, number: int, within_s: float = 90.0) -> list[Object]:
    """Return the pods of the test when so many are bound."""
    deadline_s = time.monotonic() + within_s
    while True:
        pods = list((await kube.list(PODS, ALL_MADE)).objects)
        done = [each for each in pods if each["spec"].get("nodeName")]
        if len(done) >= number:
            return done
        assert time.monotonic() < deadline_s, [_waits(each) for each in pods if not each["spec"].get("nodeName")][:3]
        await asyncio.sleep(0.5)


def _waits(each: Object) -> str:
    conditions = each["status"].get("conditions") or [{}]
    return f"{each['metadata']['name']}: {conditions[-1].get('message')}"


async def made(kube: Kube, number: int) -> None:
    gate = asyncio.Semaphore(20)

    async def one(index: int) -> None:
        async with gate:
            limits, annotations = REQUESTS[index % len(REQUESTS)]
            await kube.create(PODS, pending(f"p{index}", limits, annotations))

    await asyncio.gather(*(one(index) for index in range(number)))


async def test_two_hundred_pods_are_bound_with_what_they_asked_and_nothing_is_over_granted(kube: HttpKube) -> None:
    await made(kube, 200)
    pods = await bound(kube, 200)
    await check(kube)
    for each in pods:
        limits = each["spec"]["containers"][0]["resources"]["limits"]
        (share,) = shares_of(each)
        asked = int(limits.get("tessera.dev/gpu-memory") or limits["aliyun.com/gpu-mem"]) * 1024
        assert share["memoryMiB"] >= asked
        wish = annotations_of(each).get("tessera.dev/isolation", "none")
        assert wish != "hardware" or share["isolation"] == "hardware"
        if "aliyun.com/gpu-mem" in limits:
            assert annotations_of(each)["ALIYUN_COM_GPU_MEM_IDX"] == str(share["gpu"])
            assert annotations_of(each)["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "false"


async def test_what_no_gpu_has_waits_with_a_reason(kube: HttpKube) -> None:
    await kube.create(PODS, pending("too-large", {"tessera.dev/gpu-memory": 100}))
    await kube.create(PODS, pending("odd", {"tessera.dev/gpu-memory": 1}, {"tessera.dev/isolation": "very"}))
    deadline_s = time.monotonic() + 30
    while True:
        told = {each["metadata"]["name"]: _waits(each) for each in (await kube.list(PODS, ALL_MADE)).objects}
        if all("nodes are available" in text for text in told.values()):
            break
        assert time.monotonic() < deadline_s, told
        await asyncio.sleep(0.2)
    assert "tessera.dev/isolation" in told["odd"]
    assert "no GPU of the node can provide 100 GiB" in told["too-large"]


async def test_a_server_killed_during_binds_allocates_nothing_twice(kube: HttpKube, scheduling_plane: Cluster) -> None:
    making = asyncio.create_task(made(kube, 120))
    for _ in range(3):
        await asyncio.sleep(0.7)
        await asyncio.to_thread(_restart, scheduling_plane, "server")
    await making
    await bound(kube, 120, 180.0)
    await check(kube)
    assert (await kube.list(GPU_NODES)).objects


async def test_a_scheduler_killed_during_binds_loses_no_pod(kube: HttpKube, scheduling_plane: Cluster) -> None:
    making = asyncio.create_task(made(kube, 60))
    await asyncio.sleep(0.7)
    await asyncio.to_thread(_restart, scheduling_plane, SCHEDULER_NAME)
    await making
    await bound(kube, 60, 180.0)
    await check(kube)
    _kill(scheduling_plane, SCHEDULER_NAME)
    try:
        await kube.create(PODS, pending("meanwhile", {"tessera.dev/gpu-memory": 4}))
        await asyncio.sleep(3)
        assert await _node_of(kube, "meanwhile") == ""
    finally:
        await asyncio.to_thread(scheduling_plane.start_part, SCHEDULER_NAME)
    await bound(kube, 61)
    await check(kube)


async def _node_of(kube: Kube, name: str) -> str:
    (one,) = (each for each in (await kube.list(PODS, ALL_MADE)).objects if each["metadata"]["name"] == name)
    return str(one["spec"].get("nodeName", ""))


def _kill(cluster: Cluster, part: str) -> None:
    cluster.processes.stop(part, number=signal.SIGKILL)


def _restart(cluster: Cluster, part: str) -> None:
    _kill(cluster, part)
    cluster.start_part(part)
