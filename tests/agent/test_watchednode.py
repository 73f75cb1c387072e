"""This node as the API server has it: by a watch, and by a list where the watch may be behind."""

import asyncio
from typing import Any

import pytest

from harness.serving import running
from tessera.agent.watchednode import WatchedNode
from tessera.clients.kube import NODES, PODS, Kind, Listing, MemoryKube, Selection, name_of
from tessera.measures import Measures
from tessera.wakeup import WakeUp

pytestmark = pytest.mark.anyio


def pod(name: str, node: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "x"}, "spec": {"nodeName": node}}


def on_error(error: Exception) -> None:
    raise error


async def test_it_has_its_own_node_and_the_pods_that_are_bound_to_it() -> None:
    kube, wakeup = MemoryKube(), WakeUp()
    for name in ("n1", "n2"):
        metadata = {"name": name, "annotations": {"tessera.dev/renamed-resources": "example.com/gold"}}
        amounts = {f"nvidia.com/mig-{name}": "1", "example.com/gold": "0", "rdma/hca": "1"}
        node = {"metadata": metadata, "status": {"allocatable": amounts}}
        await kube.create(NODES, node)
        await kube.create(PODS, pod(f"on-{name}", name))
    watched = WatchedNode(kube, "n1", wake=wakeup.set, on_error=on_error)
    assert (watched.node(), watched.gpu_resources, watched.pods()) == ({}, frozenset(), ())
    async with running(watched.run(Measures())):
        await watched.synced()
        assert watched.node()["metadata"]["name"] == "n1"
        assert watched.gpu_resources == {"nvidia.com/mig-n1", "example.com/gold"}
        assert [name_of(each) for each in watched.pods()] == [("x", "on-n1")]
        await kube.create(PODS, pod("another", "n1"))
        assert {name_of(each)[1] for each in (await watched.relist()).objects} == {"on-n1", "another"}
        for phase in ("Failed", "Succeeded"):
            await kube.create(PODS, pod(phase.lower(), "n1") | {"status": {"phase": phase}})
        assert {name_of(each)[1] for each in (await watched.relist()).objects} == {"on-n1", "another"}
        async with asyncio.timeout(5):
            while len(watched.pods()) != 4:
                await wakeup.wait(1)


class SilentKube(MemoryKube):
    """An API server that takes lists and answers none."""

    async def list(self, kind: Kind, selection: Selection = Selection()) -> Listing:  # noqa: B008
        await asyncio.Event().wait()
        return await super().list(kind, selection)


async def test_a_list_that_is_not_answered_ends() -> None:
    watched = WatchedNode(SilentKube(), "n1", wake=lambda: None, on_error=on_error, relist_s=0.01)
    with pytest.raises(TimeoutError):
        await watched.relist()
