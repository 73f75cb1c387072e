"""What an agent writes on pods is never written on another that has the name since."""

from pathlib import Path

import pytest

from builders.nodepods import ListedPods
from tessera.agent.pods.ownpods import OwnPods
from tessera.agent.pods.podsview import PodsView
from tessera.clients.kube import PODS, Listing, MemoryKube, Object, annotations_of
from tessera.clients.kubelet import DeviceCheckpoint, PodResources
from tessera.errors import TesseraError

pytestmark = pytest.mark.anyio


async def pod(kube: MemoryKube) -> Object:
    return await kube.create(PODS, {"metadata": {"name": "web-0", "namespace": "ns"}, "spec": {"nodeName": "n"}})


async def test_the_next_pod_of_a_name_is_neither_annotated_nor_evicted(tmp_path: Path) -> None:
    kube, watched = MemoryKube(), list[Object]()

    async def relist() -> Listing:
        return await kube.list(PODS)

    resources = PodResources(tmp_path / "pod-resources.sock")
    view = PodsView(ListedPods(lambda: watched, relist), DeviceCheckpoint(tmp_path), resources, proc=tmp_path)
    own = OwnPods(kube, view)
    first = await pod(kube)
    watched.append(first)
    assert annotations_of(await own.annotate(first, {"a": "1"})) == {"a": "1"}
    await kube.delete(PODS, "web-0", namespace="ns")
    second = await pod(kube)
    for late in (own.annotate(first, {"a": "2"}), own.evict("web-0", "ns")):
        with pytest.raises(TesseraError):
            await late
    assert await kube.get(PODS, "web-0", "ns") == second
    watched[:] = [second]
    await own.evict("web-0", "ns")
    await own.evict("web-0", "ns")
    assert await kube.get(PODS, "web-0", "ns") is None
