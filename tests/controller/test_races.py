"""Objects that another program changes between what the controller reads and what it writes."""

from typing import Any

import pytest

from builders.modelservers import server
from harness.modelservercluster import NOW, NS, Cluster, failed
from tessera.clients.kube import DEPLOYMENTS, DESIRED_REPLICAS, SERVICES, Kind, MemoryKube, Object
from tessera.controller.scaletozero import ZeroScaler

pytestmark = pytest.mark.anyio

FOREIGN = {"metadata": {"name": "ranker", "namespace": NS}, "spec": {"type": "NodePort", "selector": {"app": "mine"}}}


class Taken(MemoryKube):
    """Another program takes the name of the Service just before the controller writes it."""

    async def apply(self, kind: Kind, body: Object, **how: Any) -> Object:
        if kind is SERVICES and await self.get(SERVICES, "ranker", NS) is None:
            await self.create(SERVICES, FOREIGN)
        return await super().apply(kind, body, **how)


class Replaced(MemoryKube):
    """Another program deletes the Service and makes one of its own just before the controller repairs it."""

    replaced = False

    async def apply(self, kind: Kind, body: Object, **how: Any) -> Object:
        if kind is SERVICES and not self.replaced and await self.get(SERVICES, "ranker", NS) is not None:
            self.replaced = True
            await self.delete(SERVICES, "ranker", namespace=NS)
            await self.create(SERVICES, FOREIGN)
        return await super().apply(kind, body, **how)


async def test_a_name_that_is_taken_while_an_object_is_created_stays_anothers() -> None:
    cluster = Cluster()
    cluster.kube = Taken()
    await cluster.make()
    async with cluster.running():
        await cluster.condition("Applied", failed)
    found = await cluster.kube.get(SERVICES, "ranker", NS)
    assert found is not None
    assert (found["spec"], "ownerReferences" in found["metadata"]) == (FOREIGN["spec"], False)


async def test_an_object_that_is_replaced_while_it_is_repaired_stays_anothers() -> None:
    cluster = Cluster()
    cluster.kube = kube = Replaced()
    await cluster.make()
    async with cluster.running():
        await cluster.condition("Applied", lambda each: each["status"] == "True")
        await kube.patch(SERVICES, "ranker", {"spec": {"selector": {"x": "y"}}}, namespace=NS)
        await cluster.condition("Applied", failed)
    found = await kube.get(SERVICES, "ranker", NS)
    assert found is not None
    assert (found["spec"], "ownerReferences" in found["metadata"]) == (FOREIGN["spec"], False)


async def test_a_deployment_that_was_scaled_since_it_was_observed_is_not_scaled_to_zero() -> None:
    kube = MemoryKube()
    sleeps = server({"replicas": {"min": 0, "max": 3}, "autoscaling": {"slots": 8}}, namespace=NS, uid="u1")
    scaler = ZeroScaler(kube, lambda: NOW, pause_s=0.0)
    observed = await kube.create(
        DEPLOYMENTS, {"metadata": {"name": "ranker", "namespace": NS}, "spec": {"replicas": 1}}
    )
    labels = {"serving.tessera.dev/server": "ranker"}
    for number, at in enumerate(("2026-11-23T11:00:00Z", "2026-11-23T11:00:30Z")):
        metric = {"value": "0", "timestamp": at}
        if not number:
            await kube.create(
                DESIRED_REPLICAS, {"metadata": {"name": "ranker", "namespace": NS, "labels": labels}, **metric}
            )
        else:
            await kube.patch(DESIRED_REPLICAS, "ranker", metric, namespace=NS)
            await kube.patch(DEPLOYMENTS, "ranker", {"spec": {"replicas": 3}}, namespace=NS)
        await scaler.read((sleeps,))
        assert await scaler.step(sleeps, observed) == ()
    found = await kube.get(DEPLOYMENTS, "ranker", NS)
    assert found is not None
    assert found["spec"]["replicas"] == 3
