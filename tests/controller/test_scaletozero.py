"""ModelServers that may have no replica: put to sleep, and woken."""

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest

from builders.modelservers import server
from harness.modelservercluster import COMMAND, NOW, NS, Cluster, Passes, failed, is_there
from tessera.clients.kube import (
    AUTOSCALERS,
    DEPLOYMENTS,
    DESIRED_REPLICAS,
    EVERYTHING,
    MODEL_SERVERS,
    Kind,
    Listing,
    MemoryKube,
    Selection,
)
from tessera.controller.scaletozero import ZeroScaler
from tessera.errors import Unavailable

pytestmark = pytest.mark.anyio


SLEEPS = {"replicas": {"min": 0, "max": 3}, "autoscaling": {"slots": 8, "idleSeconds": 600}}


SERVER = {"serving.tessera.dev/server": "ranker"}


def wake(moment: dt.datetime) -> dict[str, Any]:
    return {"metadata": {"annotations": {"serving.tessera.dev/wake": moment.isoformat()}}}


async def say(kube: MemoryKube, replicas: int, at_s: int) -> None:
    """Let the metric say how many replicas are needed."""
    metric = {"value": f"{replicas}", "timestamp": dt.datetime.fromtimestamp(at_s, dt.UTC).isoformat()}
    if await kube.get(DESIRED_REPLICAS, "ranker", NS) is None:
        await kube.create(
            DESIRED_REPLICAS, {"metadata": {"name": "ranker", "namespace": NS, "labels": SERVER}, **metric}
        )
    else:
        await kube.patch(DESIRED_REPLICAS, "ranker", metric, namespace=NS)


def has(replicas: int) -> Callable[[Any], bool]:
    return lambda each: each is not None and each["spec"].get("replicas", 1) == replicas


async def test_a_server_is_scaled_to_zero_and_woken(cluster: Cluster) -> None:
    await say(cluster.kube, 0, 1000)
    await cluster.make(SLEEPS)
    async with cluster.running():
        found = await cluster.until(DEPLOYMENTS, is_there)
        assert found["spec"].get("replicas", 1) == 1, "it begins with a replica"
        bounds = await cluster.until(AUTOSCALERS, is_there)
        assert bounds["spec"]["minReplicas"] == 1
        await say(cluster.kube, 0, 1030)
        await cluster.until(DEPLOYMENTS, has(0))
        asleep = await cluster.condition("Ready", lambda each: each["reason"] == "ScaledToZero")
        assert (asleep["status"], "`tessera wake` starts one" in asleep["message"]) == ("True", True)
        await cluster.kube.patch(MODEL_SERVERS, "ranker", wake(NOW), namespace=NS)
        woken = await cluster.until(DEPLOYMENTS, has(1))
        assert woken["metadata"]["annotations"]["serving.tessera.dev/wake"] == "2026-11-23T12:00:00Z"
        await say(cluster.kube, 0, 1060)
        await cluster.condition("Ready", failed)


async def test_where_a_replica_is_needed_a_server_at_zero_gets_one(cluster: Cluster) -> None:
    await say(cluster.kube, 0, 1000)
    await cluster.make(SLEEPS)
    async with cluster.running():
        await cluster.until(DEPLOYMENTS, is_there)
        await say(cluster.kube, 0, 1030)
        await cluster.until(DEPLOYMENTS, has(0))
        await say(cluster.kube, 2, 1045)
        await cluster.until(DEPLOYMENTS, has(1))


async def test_without_a_metric_the_replicas_stay_and_the_status_says_so(cluster: Cluster) -> None:
    cluster.kube.withhold(NS, DESIRED_REPLICAS)
    await cluster.make(SLEEPS)
    async with cluster.running():
        applied = await cluster.condition("Applied", lambda each: "scaled to zero" in each["message"])
        assert COMMAND.format(NS) in applied["message"]
        assert applied["status"] == "True"
        cluster.kube.withhold(NS)
        await cluster.condition("Applied", lambda each: "tessera_replicas of serving/ranker: none" in each["message"])
        found = await cluster.kube.get(DEPLOYMENTS, "ranker", NS)
        assert has(1)(found)


async def test_a_server_that_is_created_again_inherits_nothing(cluster: Cluster) -> None:
    former, anew = (server(SLEEPS, namespace=NS, uid=uid) for uid in ("u1", "u2"))
    scaler = ZeroScaler(cluster.kube, lambda: NOW, pause_s=0.0)
    deployment = await cluster.kube.create(
        DEPLOYMENTS, {"metadata": {"name": "ranker", "namespace": NS}, "spec": {"replicas": 1}}
    )
    for at_s, each, want in ((1000, former, 1), (1030, anew, 1), (1060, anew, 0)):
        await say(cluster.kube, 0, at_s)
        await scaler.read((each,))
        await scaler.step(each, deployment)
        assert has(want)(await cluster.kube.get(DEPLOYMENTS, "ranker", NS))


class Silent(MemoryKube):
    """The metric cannot be read, for a reason that has a number of seconds in it."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    async def list(self, kind: Kind, selection: Selection = EVERYTHING) -> Listing:
        if kind is DESIRED_REPLICAS:
            self.reads += 1
            raise Unavailable("tessera_replicas", found=f"last measured {60 + self.reads} s ago", expected="a look")
        return await super().list(kind, selection)


async def test_a_reason_that_differs_in_a_number_alone_writes_no_status(cluster: Cluster) -> None:
    cluster.kube = kube = Silent()
    await cluster.make(SLEEPS)
    measures = Passes()
    async with cluster.running(measures):
        await cluster.condition("Applied", lambda each: "last measured" in each["message"])
        before, reads = await kube.get(MODEL_SERVERS, "ranker", NS), kube.reads
        while kube.reads < reads + 3:
            await measures.again()
        after = await kube.get(MODEL_SERVERS, "ranker", NS)
    assert before is not None
    assert after is not None
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


async def test_who_may_sleep_no_longer_is_woken(cluster: Cluster) -> None:
    await say(cluster.kube, 0, 1000)
    await cluster.make(SLEEPS)
    async with cluster.running():
        await cluster.until(DEPLOYMENTS, is_there)
        await say(cluster.kube, 0, 1030)
        await cluster.until(DEPLOYMENTS, has(0))
        await cluster.change({"replicas": {"min": 1, "max": 3}})
        await cluster.until(DEPLOYMENTS, has(1))
        await cluster.kube.patch(DEPLOYMENTS, "ranker", {"spec": {"replicas": 0}}, namespace=NS)
        await cluster.condition(
            "Ready", lambda each: (each["status"], each["reason"]) == ("False", "ScaledToZeroByHand")
        )
        found = await cluster.kube.get(DEPLOYMENTS, "ranker", NS)
        assert has(0)(found), "who scales it to zero by hand then is left alone"
