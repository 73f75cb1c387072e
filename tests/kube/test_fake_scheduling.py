"""The real kube-scheduler, Tessera's server and nodes that are objects alone: many pods at once."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from judges.allocated import shares_of
from kube import pods
from kube.fakenodes import ALL_MADE, FakeNode, make_nodes, only_nodes
from tessera.clients.kube import NODES as NODE
from tessera.clients.kube import PODS, Kube, Object
from testbed.cluster import Cluster

NODES, EACH = 40, 12
SMALL, SLICE = {"tessera.dev/gpu-memory": 6}, {"tessera.dev/gpu-memory": 10, "tessera.dev/gpu-compute": 25}


@pytest.fixture
async def kube(scheduling_plane: Cluster) -> AsyncIterator[Kube]:
    nodes = [FakeNode(name=f"fake-{number}", gpus=2) for number in range(NODES)]
    async with only_nodes(scheduling_plane, nodes) as client:
        yield client


def asking(name: str, limits: dict[str, int], isolation: str, **spec: Any) -> Object:
    pod = pods.busybox(name, limits=limits, schedulerName="tessera-scheduler", **spec)
    pod["metadata"] |= {"namespace": "default", "annotations": {"tessera.dev/isolation": isolation}}
    return pod


def is_bound(pod: Object) -> bool:
    return bool(pod["spec"].get("nodeName"))


def is_ending(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


async def until(kube: Kube, condition: Callable[[Object], bool], count: int) -> tuple[Object, ...]:
    """Wait until so many pods of the test meet a condition, and return them."""
    async with asyncio.timeout(120):
        while True:
            found = [each for each in (await kube.list(PODS, ALL_MADE)).objects if condition(each)]
            if len(found) >= count:
                return tuple(found)
            await asyncio.sleep(0.2)


@pytest.mark.anyio
async def test_many_pods_are_bound_with_assignments_and_no_gpu_is_granted_beyond_its_memory(kube: Kube) -> None:
    desired = [asking(f"small-{n}", SMALL, "none") for n in range(EACH * 10)]
    desired += [asking(f"slice-{n}", SLICE, "hardware") for n in range(EACH * 5)]
    async with asyncio.TaskGroup() as tasks:
        for each in desired:
            tasks.create_task(kube.create(PODS, each))
    bound = await until(kube, is_bound, len(desired))
    allocated: Counter[tuple[str, int]] = Counter()
    for each in bound:
        for share in shares_of(each):
            allocated[each["spec"]["nodeName"], share["gpu"]] += share["memoryMiB"]
    assert sum(allocated.values()) >= len(desired) * 6 * 1024
    assert max(allocated.values()) <= 40 * 1024


@pytest.mark.anyio
async def test_one_pod_of_many_is_preempted_where_one_is_enough(kube: Kube, scheduling_plane: Cluster) -> None:
    scheduling_plane.apply(
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "urgent"}, "value": 1000}
    )
    only = {"nodeSelector": {"only": "here"}}
    await make_nodes(kube, [FakeNode(name="here", gpus=1, labels={"only": "here"})])
    for number in range(4):
        await kube.create(PODS, asking(f"low-{number}", {"tessera.dev/gpu-memory": 10}, "none", **only))
    await until(kube, is_bound, 4)
    await kube.create(PODS, asking("urgent", {"tessera.dev/gpu-memory": 8}, "none", priorityClassName="urgent", **only))
    ending = await until(kube, is_ending, 1)
    # No kubelet tells that the victim has ended.
    await kube.delete(PODS, ending[0]["metadata"]["name"], namespace="default", grace_s=0)
    left = await until(kube, lambda pod: is_bound(pod) and not is_ending(pod), 4)
    assert sorted(each["metadata"]["name"].partition("-")[0] for each in left) == ["low", "low", "low", "urgent"]
    assert len(ending) == 1


@pytest.mark.anyio
async def test_a_pod_without_gpus_goes_to_the_node_that_holds_its_image(kube: Kube) -> None:
    """The second scheduler keeps upstream's plugin ImageLocality; of nodes that are alike it decides.

    It counts an image less the fewer nodes have it: on one of 40 nodes one of less than 1 GiB counts nothing.
    """
    image = "registry.example/server:1"
    held = {"names": [image], "sizeBytes": 16 << 30}
    await kube.patch(NODE, "fake-17", {"status": {"images": [held]}}, subresource="status")
    await asyncio.sleep(1)  # nothing says when the scheduler has seen it
    pod = pods.busybox("server", schedulerName="tessera-scheduler")
    pod["metadata"] |= {"namespace": "default"}
    pod["spec"]["containers"][0]["image"] = image
    await kube.create(PODS, pod)
    (bound,) = await until(kube, is_bound, 1)
    assert bound["spec"]["nodeName"] == "fake-17"
