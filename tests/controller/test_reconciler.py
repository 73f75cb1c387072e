"""A new leader, for whom the list of nodes comes late, takes nothing off them; a defect in one part stops no other."""

import asyncio
import datetime as dt
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from builders.modelservers import model_server
from harness.awaiting import until_object
from harness.serving import running
from tessera.cli.processes.controller import _lead
from tessera.clients.kube import (
    DEPLOYMENTS,
    IMAGE_WARMUPS,
    MODEL_CACHES,
    MODEL_SERVERS,
    NODE_IMAGES,
    NODE_MODELS,
    NODES,
    Kind,
    Listing,
    MemoryKube,
    Object,
    Selection,
    Store,
)
from tessera.clients.kube.protocol import EVERYTHING
from tessera.controller.modelservers import ModelServers, Pace
from tessera.controller.reconciler import Reconciler
from tessera.controller.settings import ControllerSettings
from tessera.measures import Measures

pytestmark = pytest.mark.anyio
POOL = {"nodeSelector": {"matchLabels": {"pool": "gpu"}}}


class LateNodes(MemoryKube):
    """An API that lists nodes on request."""

    def __init__(self) -> None:
        super().__init__()
        self.lists_nodes = asyncio.Event()
        self.lists_nodes.set()

    async def list(self, kind: Kind, selection: Selection = EVERYTHING) -> Listing:
        if kind == NODES:
            await self.lists_nodes.wait()
        return await super().list(kind, selection)

    async def apply(self, kind: Kind, body: Object, **more: Any) -> Object:
        if kind == DEPLOYMENTS and body["metadata"]["name"] == "broken":
            raise ZeroDivisionError
        return await super().apply(kind, body, **more)


@asynccontextmanager
async def leading(kube: MemoryKube, *namespaces: str) -> AsyncIterator[Measures]:
    measures = Measures()
    servers = ModelServers(kube, namespaces, pace=Pace(least_s=0.01))
    async with running(_lead(ControllerSettings(identity="x"), kube, servers, measures)) as (task,):
        yield measures
        assert not task.done()


async def until_status(kube: MemoryKube, kind: Kind, name: str, namespace: str = "") -> Object:
    return await until_object(kube, kind, name, lambda each: bool(each.get("status")), namespace)


async def test_a_new_leader_takes_nothing_off_nodes_that_it_does_not_know_yet() -> None:
    kube = LateNodes()
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    await kube.create(NODES, {"metadata": {"name": "n", "labels": {"pool": "gpu"}}, "status": status})
    requested = {
        (NODE_MODELS, MODEL_CACHES): {"source": "s3://models/llama", **POOL},
        (NODE_IMAGES, IMAGE_WARMUPS): {"images": ["r.example/a:1"], **POOL},
    }
    for (node_kind, kind), spec in requested.items():
        await kube.create(node_kind, {"metadata": {"name": "n"}})
        await kube.create(kind, {"metadata": {"name": "it", "generation": 1}, "spec": spec})
    async with leading(kube):
        for _, kind in requested:
            await until_status(kube, kind, "it")
    kube.lists_nodes.clear()
    before = [await kube.get(each, "n") for each, _ in requested]
    assert all(each is not None and each["spec"] for each in before)
    async with leading(kube):
        for _ in range(500):  # more turns of the loop than all lists and a look take
            await asyncio.sleep(0)
        assert [await kube.get(each, "n") for each, _ in requested] == before
        kube.lists_nodes.set()
        await kube.patch(MODEL_CACHES, "it", {"status": None}, subresource="status")
        found = await until_status(kube, MODEL_CACHES, "it")
        assert found["status"]["nodes"] == 1
    assert [await kube.get(each, "n") for each, _ in requested] == before


async def test_each_loop_of_the_leader_has_an_age_until_it_leads_no_more() -> None:
    want = {"image_warmups", "model_caches", "model_servers", "reconcile"}
    async with leading(MemoryKube(), "ns") as measures, asyncio.timeout(20):
        while not want <= {*re.findall(r'loop="([a-z_]+)"', measures.render().decode())}:  # noqa: ASYNC110 (no event)
            await asyncio.sleep(0)
    assert b"tessera_loop_age_seconds" not in measures.render()


async def test_a_change_of_a_node_is_looked_at_before_the_next_look_without_one() -> None:
    kube, reconciled = MemoryKube(), asyncio.Event()
    await kube.create(NODES, {"metadata": {"name": "n"}})
    nodes = Store(kube, NODES)

    class Reconciles(Reconciler):
        async def reconcile(self) -> None:
            reconciled.set()

    kinds = {MODEL_CACHES: Selection()}
    reconciler = Reconciles(kube, nodes, kinds, "test", now=lambda: dt.datetime.now(dt.UTC), least_s=0.0)
    tasks = [asyncio.create_task(each) for each in (nodes.run(), reconciler.run(Measures()))]
    for _ in range(500):  # until nothing is left to look at
        await asyncio.sleep(0)
    reconciled.clear()
    await kube.patch(NODES, "n", {"metadata": {"labels": {"pool": "gpu"}}})
    async with asyncio.timeout(8):  # less than the 10 s of a look without a change
        await reconciled.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_defect_about_one_model_server_stops_nothing_else() -> None:
    kube = LateNodes()
    for name in ("broken", "sound"):
        await kube.create(MODEL_SERVERS, model_server(namespace="ns", name=name))
    async with leading(kube, "ns"):
        await until_status(kube, MODEL_SERVERS, "sound", "ns")
        assert await kube.get(DEPLOYMENTS, "sound", "ns") is not None
        assert await kube.get(DEPLOYMENTS, "broken", "ns") is None
