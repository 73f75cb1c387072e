"""Two pods on one device, and pods that nobody will ever assign a device: reported where people look, and ended."""

from typing import Any

import pytest

from nodeviews import SaidPods
from tessera.agent.conflicts import Conflicts
from tessera.agent.deviceplugin import Gate
from tessera.clients.kube import EVENTS, PODS, MemoryKube, Object
from tessera.core.allocations import Use
from tessera.core.matching import Held
from tessera.log import logger

pytestmark = pytest.mark.anyio

GPU = "nvidia.com/gpu"


class Node:
    """A node with pods that have what the kubelet recorded."""

    def __init__(self) -> None:
        self.kube = MemoryKube()
        self.view = Pods()
        self.gate = Gate(self.view, dict, logger())
        self.conflicts = Conflicts(self.kube, "n1", self.gate, logger())

    async def pod(self, name: str, *ids: str) -> Object:
        body = {"metadata": {"name": name, "namespace": "ml"}, "spec": {"nodeName": "n1", "containers": []}}
        made = await self.kube.create(PODS, body)
        self.view.objects[name] = made
        if ids:
            self.view.has.append(Held(namespace="ml", pod=name, container="main", resource=GPU, device_ids=ids))
            await self.gate.tidy(lambda held: tuple(Use(gpu=each) for each in held.device_ids))
        return made

    async def names(self) -> list[str]:
        return sorted(each["metadata"]["name"] for each in (await self.kube.list(PODS)).objects)

    async def events(self) -> list[tuple[str, str, str]]:
        found = (await self.kube.list(EVENTS)).objects
        return sorted((each["involvedObject"]["name"], each["reason"], each["message"]) for each in found)


class Pods(SaidPods):
    """Pods, and what they hold."""

    def __init__(self) -> None:
        super().__init__()
        self.has: list[Held] = []

    async def held(self) -> tuple[Held, ...]:
        return tuple(self.has)


async def test_the_later_of_two_pods_is_evicted_and_its_event_says_why() -> None:
    node = Node()
    await node.pod("first", "GPU-1")
    await node.pod("second", "GPU-1")
    (text,) = await node.conflicts.end({}, evict=True)
    assert await node.conflicts.end({}, evict=True) == (text,), "said once, and as long as it is so"
    ((name, reason, message),) = await node.events()
    assert (name, reason, message) == ("second", "DeviceConflict", text)
    assert text.startswith("pod ml/second and pod ml/first both use device GPU-1 of nvidia.com/gpu: ")
    assert text.endswith("evicting ml/second, which came later")
    assert await node.names() == ["first"]


async def test_where_nobody_is_evicted_it_is_said_all_the_same() -> None:
    node = Node()
    await node.pod("first", "GPU-1")
    await node.pod("second", "GPU-1")
    (text,) = await node.conflicts.end({}, evict=False)
    assert text.endswith("delete one of them")
    assert [each[:2] for each in await node.events()] == [("second", "DeviceConflict")]
    assert await node.names() == ["first", "second"]


async def test_a_pod_without_assignment_is_evicted_with_advice() -> None:
    node = Node()
    stray = await node.pod("stray")
    assert await node.conflicts.end({stray["metadata"]["uid"]: "ml/stray"}, evict=True) == ()
    ((name, reason, message),) = await node.events()
    assert (name, reason) == ("stray", "NotAssigned")
    assert "schedulerName: tessera-scheduler" in message
    assert await node.names() == []


@pytest.mark.parametrize("change", [{"status": {"phase": "Failed"}}, {"metadata": {"deletionTimestamp": "2026"}}])
async def test_who_is_on_the_way_out_is_left_alone(change: dict[str, Any]) -> None:
    node = Node()
    stray = await node.pod("stray")
    node.view.objects["stray"] = {**stray, **change, "metadata": {**stray["metadata"], **change.get("metadata", {})}}
    await node.conflicts.end({stray["metadata"]["uid"]: "ml/stray", "gone": "ml/gone"}, evict=True)
    assert await node.events() == []
    assert await node.names() == ["stray"]


async def test_an_event_that_cannot_be_written_keeps_nobody_from_being_evicted() -> None:
    node = Node()
    stray = await node.pod("stray")
    node.kube.stop()
    await node.conflicts.end({stray["metadata"]["uid"]: "ml/stray"}, evict=True)
    node.kube.start()
    assert await node.names() == ["stray"], "the API server did not answer"
