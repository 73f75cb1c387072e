"""What the controller deletes and scales is the ModelServer's own, also where somebody takes its name just before."""

from typing import Any

import pytest

from harness.modelservercluster import NS, Cluster, Passes, is_there
from tessera.clients.kube import AUTOSCALERS, DEPLOYMENTS, Kind, MemoryKube, Object

pytestmark = pytest.mark.anyio

SCALED = {"replicas": {"min": 1, "max": 3}}
FIXED = {"replicas": {"min": 2, "max": None}}


class Overtaken(MemoryKube):
    """A cluster in which somebody replaces an object by an own one just before the controller's next write to it."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self._kind = kind
        self.foreign: list[Object] = []
        """Its spec, until it is made."""

    async def _overtake(self, kind: Kind, name: str, namespace: str) -> None:
        if kind == self._kind and self.foreign:
            body = {"metadata": {"name": name, "namespace": namespace}, "spec": self.foreign.pop()}
            await super().delete(kind, name, namespace=namespace)
            await self.create(kind, body)

    async def delete(self, kind: Kind, name: str, *, namespace: str = "", **preconditions: Any) -> None:
        await self._overtake(kind, name, namespace)
        await super().delete(kind, name, namespace=namespace, **preconditions)

    async def patch(self, kind: Kind, name: str, body: Object, *, namespace: str = "", **part: Any) -> Object:
        if "replicas" in (body.get("spec") or {}):
            await self._overtake(kind, name, namespace)
        return await super().patch(kind, name, body, namespace=namespace, **part)


async def test_an_autoscaler_that_somebody_made_in_place_of_the_servers_is_not_deleted() -> None:
    cluster, passes = Cluster(), Passes()
    cluster.kube = kube = Overtaken(AUTOSCALERS)
    await cluster.make(SCALED)
    async with cluster.running(passes):
        await cluster.until(AUTOSCALERS, is_there)
        kube.foreign.append({"maxReplicas": 99})
        await cluster.change(FIXED)
        await cluster.until(DEPLOYMENTS, lambda each: each is not None and each["spec"].get("replicas") == 2)
        applied = await cluster.condition("Applied", lambda each: each["status"] == "True")
        for _ in range(3):
            await passes.again()
    left = await kube.get(AUTOSCALERS, "ranker", NS)
    assert not kube.foreign
    assert left is not None
    assert left["spec"] == {"maxReplicas": 99}
    assert applied["message"] == "all objects are as desired"


@pytest.mark.parametrize(
    ("former", "zero", "later"), [(SCALED, 1, FIXED), ({"replicas": {"min": 0, "max": 3}}, 0, SCALED)]
)
async def test_a_deployment_that_somebody_made_in_place_of_the_servers_is_not_scaled(
    former: dict[str, Any], zero: int, later: dict[str, Any]
) -> None:
    """Where the number is fixed, and where a server may be at zero no longer."""
    cluster, passes = Cluster(), Passes()
    cluster.kube = kube = Overtaken(DEPLOYMENTS)
    await cluster.make(former)
    async with cluster.running(passes):
        await cluster.condition("Applied", lambda each: each["status"] == "True")
        await kube.patch(DEPLOYMENTS, "ranker", {"spec": {"replicas": zero}}, namespace=NS)
        for _ in range(3):
            await passes.again()
        kube.foreign.append({"replicas": 0})
        await cluster.change(later)
        await cluster.condition("Applied", lambda each: "belongs to something else" in each["message"])
    left = await kube.get(DEPLOYMENTS, "ranker", NS)
    assert not kube.foreign
    assert left is not None
    assert left["spec"] == {"replicas": 0}
