"""ModelCaches in a cluster of this process: the controller tells nodes what they shall have, and sums up."""

import datetime as dt
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import product
from typing import Any

import pytest

from harness.awaiting import until_object
from harness.serving import running
from tessera.api.tessera.v1alpha1.modelcaches import node_status, read_node_models
from tessera.clients.kube import (
    MODEL_CACHES,
    NODE_MODELS,
    NODES,
    PODS,
    Kind,
    MemoryKube,
    Object,
    Store,
)
from tessera.controller.models import ModelCaches
from tessera.core.storage.models.nodemodels import ObservedModel
from tessera.measures import Measures

pytestmark = pytest.mark.anyio

ONE = "1" * 64
NOW = dt.datetime(2026, 11, 23, 12, tzinfo=dt.UTC)


def cache(name: str = "llama", **spec: Any) -> Object:
    return {"metadata": {"name": name, "generation": 1}, "spec": {"source": f"s3://models/{name}", **spec}}


class Cluster:
    """Nodes, of which all have an agent, and a controller inside `running`."""

    def __init__(self) -> None:
        self.kube = MemoryKube()

    async def add(self, name: str, *, ready: str = "True", pool: str = "gpu") -> None:
        conditions = [{"type": "Ready", "status": ready}]
        each = {"metadata": {"name": name, "labels": {"pool": pool}}, "status": {"conditions": conditions}}
        await self.kube.create(NODES, each)
        await self.kube.create(NODE_MODELS, {"metadata": {"name": name}})

    async def say(self, node: str, *observed: ObservedModel) -> None:
        status = node_status(observed, folder="/m", free_bytes=0, reason="")
        await self.kube.patch(NODE_MODELS, node, {"status": status}, subresource="status")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        nodes = Store(self.kube, NODES)
        caches = ModelCaches(self.kube, nodes, now=lambda: NOW, least_s=0.01)
        async with running(nodes.run(), caches.run(Measures())):
            yield

    async def until(self, kind: Kind, name: str, ready: Callable[[Object], bool]) -> Object:
        """Return an object when it is as desired."""
        return await until_object(self.kube, kind, name, ready)

    async def told(self, node: str, *names: str) -> None:
        """Return when a node was assigned these models, in this order."""

        def ready(found: Object) -> bool:
            desired = read_node_models(found).desired
            return desired is not None and tuple(each.name for each in desired) == names

        await self.until(NODE_MODELS, node, ready)


@pytest.fixture
async def cluster() -> Cluster:
    one = Cluster()
    await one.add("n1")
    return one


async def test_selected_nodes_get_those_of_pending_pods_first(cluster: Cluster) -> None:
    await cluster.add("n2", pool="other")
    limits = {"resources": {"limits": {"models.tessera.dev/mistral": "1", "cpu": "1"}}}
    pod = {"metadata": {"name": "p", "namespace": "x"}, "spec": {"containers": [{"name": "a", **limits}]}}
    await cluster.kube.create(PODS, pod)
    await cluster.kube.create(MODEL_CACHES, cache("llama"))
    await cluster.kube.create(MODEL_CACHES, cache("mistral", nodeSelector={"matchLabels": {"pool": "gpu"}}))
    async with cluster.running():
        await cluster.told("n1", "mistral", "llama")
        await cluster.told("n2", "llama")
        found = await cluster.until(MODEL_CACHES, "mistral", lambda each: bool(each.get("status")))
        assert (found["status"]["nodes"], found["status"]["pendingPods"]) == (1, 1)
        await cluster.kube.delete(MODEL_CACHES, "llama")
        await cluster.told("n2")


async def test_what_nodes_report_is_summed_up(cluster: Cluster) -> None:
    await cluster.add("n2", ready="Unknown")
    await cluster.kube.create(MODEL_CACHES, cache())
    async with cluster.running():
        await cluster.say("n1", ObservedModel(name="llama", state="Ready", revision=ONE, bytes=7))
        found = await cluster.until(MODEL_CACHES, "llama", lambda each: each.get("status", {}).get("ready") == 1)
    status = found["status"]
    assert (status["nodes"], status["revision"], status["bytes"]) == (2, ONE, 7)
    assert list(status["problems"]) == [{"node": "n2", "reason": "the node is not ready"}]


async def test_an_invalid_edit_removes_no_model_from_a_disk(cluster: Cluster) -> None:
    await cluster.kube.create(MODEL_CACHES, cache())
    async with cluster.running():
        await cluster.told("n1", "llama")
        await cluster.kube.patch(MODEL_CACHES, "llama", {"spec": {"source": "https://me:pw@h/"}})
        await cluster.kube.create(MODEL_CACHES, cache("another"))
        found = await cluster.until(
            MODEL_CACHES, "llama", lambda each: each["status"]["conditions"][0]["status"] == "False"
        )
        await cluster.told("n1", "llama", "another")
    assert "credentials in an address" in found["status"]["conditions"][0]["message"]


async def test_a_report_that_is_none_stops_no_other_node(cluster: Cluster) -> None:
    await cluster.kube.create(NODE_MODELS, {"metadata": {"name": "odd"}})
    odd = {"status": {"models": [{"name": "llama", "state": "Odd"}]}}
    await cluster.kube.patch(NODE_MODELS, "odd", odd, subresource="status")
    await cluster.kube.create(MODEL_CACHES, {**cache(), "status": {"nodes": "many"}})
    async with cluster.running():
        await cluster.told("n1", "llama")


async def test_after_a_pass_a_node_has_the_planned_models_whatever_another_version_wrote() -> None:
    """Each of two models is absent, known or of another version; its ModelCache too, or it does not select the node."""
    forms, cases = (None, "Never", "Zstd"), 0
    for rows, caches in product(product(forms, repeat=2), product((*forms, "Elsewhere"), repeat=2)):
        cases += 1
        cluster = Cluster()
        await cluster.add("n1")
        models = [{"name": name, "source": "s3://b/x", "pack": pack} for name, pack in zip("ab", rows, strict=True)]
        former = [each for each in models if each["pack"]]
        await cluster.kube.patch(NODE_MODELS, "n1", {"spec": {"models": former}})
        for name, pack in zip("abz", (*caches, "Elsewhere"), strict=True):
            away = {"nodeSelector": {"matchLabels": {"pool": "other"}}}
            if pack:
                await cluster.kube.create(
                    MODEL_CACHES, cache(name, **(away if pack == "Elsewhere" else {"pack": pack}))
                )
        async with cluster.running():
            await cluster.until(MODEL_CACHES, "z", lambda each: bool(each.get("status")))
        found = await cluster.kube.get(NODE_MODELS, "n1")
        pairs = set(zip("ab", rows, caches, strict=True))
        planned = {name for name, row, pack in pairs if pack == "Never" or (row and pack == "Zstd")}
        if any((row, pack) == ("Zstd", "Zstd") for _, row, pack in pairs):  # it cannot be written back
            planned = {name for name, row, _ in pairs if row}
        assert found is not None
        assert {each["name"] for each in found["spec"]["models"]} == planned, (rows, caches)
    assert cases == 9 * 16
