"""The real kube-scheduler, Tessera's server and nodes that are objects alone: many pods at once."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kube import pods
from kube.fakenodes import FakeNode, connected, delete_nodes, delete_pods, make_nodes
from tessera.api.podspecs import ASSIGNMENT
from tessera.clients.kube import PODS, Kube, Object
from testbed.cluster import Cluster

NODES, EACH = 40, 12
SMALL, SLICE = {"tessera.dev/gpu-memory": 6}, {"tessera.dev/gpu-memory": 10, "tessera.dev/gpu-compute": 25}


@pytest.fixture
async def kube(scheduling_plane: Cluster) -> AsyncIterator[Kube]:
    async with connected(scheduling_plane) as client:
        await make_nodes(client, [FakeNode(name=f"fake-{number}", gpus=2) for number in range(NODES)])
        yield client
        await delete_pods(client)
        await delete_nodes(client)


def asking(name: str, limits: dict[str, int], isolation: str) -> Object:
    pod = pods.pod(name, limits=limits, schedulerName="tessera-scheduler")
    pod["metadata"] |= {"namespace": "default", "annotations": {"tessera.dev/isolation": isolation}}
    return pod


async def until_bound(kube: Kube, count: int) -> tuple[Object, ...]:
    """Wait until so many pods have a node."""
    async with asyncio.timeout(120):
        while True:
            found = [each for each in (await kube.list(PODS)).objects if each["spec"].get("nodeName")]
            if len(found) >= count:
                return tuple(found)
            await asyncio.sleep(0.2)


@pytest.mark.anyio
async def test_many_pods_are_bound_with_assignments_and_no_gpu_is_granted_beyond_its_memory(kube: Kube) -> None:
    wanted = [asking(f"small-{n}", SMALL, "none") for n in range(EACH * 10)]
    wanted += [asking(f"slice-{n}", SLICE, "hardware") for n in range(EACH * 5)]
    async with asyncio.TaskGroup() as tasks:
        for each in wanted:
            tasks.create_task(kube.create(PODS, each))
    bound = await until_bound(kube, len(wanted))
    granted: Counter[tuple[str, int]] = Counter()
    for each in bound:
        for share in shares(each):
            granted[each["spec"]["nodeName"], share["gpu"]] += share["memory_mib"]
    assert sum(granted.values()) >= len(wanted) * 6 * 1024
    assert max(granted.values()) <= 40 * 1024


def shares(pod: Object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(pod["metadata"]["annotations"][ASSIGNMENT])
    return found
