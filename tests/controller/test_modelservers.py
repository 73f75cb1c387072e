"""ModelServers in a cluster of this process: objects come, are repaired, go; those of others are left alone."""

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from builders.modelservers import model_server
from harness.awaiting import until_object
from tessera.clients.kube import (
    ASKED_REPLICAS,
    AUTOSCALERS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    EVERYTHING,
    MODEL_SERVERS,
    POD_MONITORS,
    SCALED_OBJECTS,
    SERVICES,
    Kind,
    Listing,
    MemoryKube,
    Object,
    Selection,
    follow,
)
from tessera.controller.modelservers import ModelServers, Pace
from tessera.errors import Unavailable
from tessera.measures import Measures

pytestmark = pytest.mark.anyio

NS = "serving"
NOW = dt.datetime(2026, 11, 23, 12, tzinfo=dt.UTC)
SCALED = {"replicas": {"min": 1, "max": 4}}
KEDA = {**SCALED, "autoscaling": {"metric": "queue-time", "autoscaler": "KEDA"}}


class Cluster:
    """A controller that may write in one namespace, inside `running`."""

    def __init__(self) -> None:
        self.kube = MemoryKube()
        self.namespaces = [NS]
        self.prometheus = ""
        self.pace = Pace(least_s=0.01, most_s=0.05, repair_s=0.05)

    @asynccontextmanager
    async def running(self, measures: Measures | None = None) -> AsyncIterator[None]:
        controller = ModelServers(
            self.kube, self.namespaces, prometheus=self.prometheus, now=lambda: NOW, pace=self.pace
        )
        task = asyncio.create_task(controller.run(measures or Measures()))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def make(self, spec: dict[str, Any] | None = None, **metadata: Any) -> Object:
        return await self.kube.create(MODEL_SERVERS, model_server(spec, **{"namespace": NS, **metadata}))

    async def change(self, spec: dict[str, Any]) -> None:
        await self.kube.patch(MODEL_SERVERS, "ranker", {"spec": spec}, namespace=NS)

    async def until(self, kind: Kind, holds: Callable[[Any], bool], namespace: str = NS) -> Any:
        """Return an object of the server's name when it is as desired; None where it shall be gone and is."""
        selection = Selection(namespace=namespace, fields=(("metadata.name", "ranker"),))
        async with asyncio.timeout(20):
            async for change in follow(self.kube, kind, selection, on_trouble=lambda _: None):
                nothing = change.listing is not None and not change.listing.objects
                if (nothing or change.object is not None) and holds(None if change.gone else change.object):
                    return None if change.gone else change.object
        raise AssertionError

    async def condition(self, name: str, holds: Callable[[Any], bool], namespace: str = NS) -> Any:
        def found(each: Object | None) -> Any:
            conditions = ((each or {}).get("status") or {}).get("conditions") or ()
            return next((one for one in conditions if one["type"] == name), None)

        def settled(each: Object | None) -> bool:
            one = found(each)
            return one is not None and holds(one)

        return found(await self.until(MODEL_SERVERS, settled, namespace))


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def is_there(each: Object | None) -> bool:
    return each is not None


def is_gone(each: Object | None) -> bool:
    return each is None


def failed(each: Any) -> bool:
    return bool(each["status"] == "False")


def done(each: Any) -> bool:
    return bool(each["status"] == "True")


async def test_a_server_gets_its_objects_and_says_how_many_serve(cluster: Cluster) -> None:
    made = await cluster.make({"replicas": {"min": 2}})
    async with cluster.running():
        applied = await cluster.condition("Applied", done)
        for kind in (DEPLOYMENTS, SERVICES, DISRUPTION_BUDGETS, POD_MONITORS):
            found = await cluster.until(kind, is_there)
            assert [each["uid"] for each in found["metadata"]["ownerReferences"]] == [made["metadata"]["uid"]]
        await cluster.until(DEPLOYMENTS, lambda each: each is not None and each["spec"].get("replicas") == 2)
        ready = await cluster.condition("Ready", failed)
        status = {"status": {"replicas": 2, "readyReplicas": 2}}
        await cluster.kube.patch(DEPLOYMENTS, "ranker", status, namespace=NS, subresource="status")
        await cluster.condition("Ready", done)
    found = await cluster.kube.get(MODEL_SERVERS, "ranker", NS)
    assert found is not None
    assert (applied["message"], ready["reason"]) == ("all objects are as desired", "Starting")
    counts = {key: found["status"][key] for key in ("replicas", "readyReplicas", "desiredReplicas")}
    assert counts == {"replicas": 2, "readyReplicas": 2, "desiredReplicas": 2}


async def changed_port(kube: MemoryKube) -> None:
    await kube.patch(SERVICES, "ranker", {"spec": {"selector": {"serving.tessera.dev/server": "x"}}}, namespace=NS)


async def without_labels(kube: MemoryKube) -> None:
    await kube.patch(SERVICES, "ranker", {"metadata": {"labels": None}}, namespace=NS)


async def deleted(kube: MemoryKube) -> None:
    await kube.delete(SERVICES, "ranker", namespace=NS)


DRIFT: dict[str, Callable[[MemoryKube], Awaitable[None]]] = {
    "another selector": changed_port,
    "no labels, by which it is watched": without_labels,
    "it is gone": deleted,
}


@pytest.mark.parametrize("case", DRIFT)
async def test_what_somebody_changes_is_repaired(cluster: Cluster, case: str) -> None:
    await cluster.make()
    async with cluster.running():
        await cluster.condition("Applied", done)
        before = await cluster.until(SERVICES, is_there)
        await DRIFT[case](cluster.kube)

        def repaired(each: Object | None) -> bool:
            moved = each is not None and each["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"]
            return bool(moved and each and _without_version(each) == _without_version(before))

        await cluster.until(SERVICES, repaired)


def _without_version(each: Object) -> Object:
    mine = ("labels", "ownerReferences")
    return {"spec": each["spec"], "metadata": {key: each["metadata"].get(key) for key in mine}}


async def test_an_object_of_somebody_else_is_left_alone_and_the_others_come(cluster: Cluster) -> None:
    foreign = {"metadata": {"name": "ranker", "namespace": NS}, "spec": {"selector": {"app": "mine"}}}
    await cluster.kube.create(SERVICES, foreign)
    await cluster.make()
    async with cluster.running():
        problem = await cluster.condition("Applied", failed)
        await cluster.until(DISRUPTION_BUDGETS, is_there)
        want = "Service serving/ranker: there is one that is not this ModelServer's: rename one of the two"
        assert want in problem["message"]
        left = await cluster.kube.get(SERVICES, "ranker", NS)
        assert left is not None
        assert (left["spec"], "ownerReferences" in left["metadata"]) == (foreign["spec"], False)
        await cluster.kube.delete(SERVICES, "ranker", namespace=NS)
        await cluster.change({"startupSeconds": 900})
        await cluster.condition("Applied", done)


async def test_an_object_of_a_former_server_of_the_name_is_not_taken(cluster: Cluster) -> None:
    """Kubernetes deletes it with the former server; until then it is that one's."""
    await cluster.make()
    async with cluster.running():
        await cluster.condition("Applied", done)
    await cluster.kube.delete(MODEL_SERVERS, "ranker", namespace=NS)
    await cluster.make()
    async with cluster.running():
        assert "Deployment serving/ranker" in (await cluster.condition("Applied", failed))["message"]


async def test_an_autoscaler_comes_and_goes_and_leaves_the_replicas_as_they_are(cluster: Cluster) -> None:
    await cluster.make({"replicas": {"min": 3}})
    async with cluster.running():
        await cluster.until(DEPLOYMENTS, lambda each: each is not None and each["spec"].get("replicas") == 3)
        await cluster.change(SCALED)
        await cluster.until(AUTOSCALERS, is_there)
        found = await cluster.kube.get(DEPLOYMENTS, "ranker", NS)
        assert found is not None
        assert found["spec"]["replicas"] == 3
        await cluster.change({"replicas": {"min": 2, "max": None}})
        await cluster.until(DEPLOYMENTS, lambda each: each is not None and each["spec"].get("replicas") == 2)
        await cluster.until(AUTOSCALERS, is_gone)


async def test_a_monitor_and_keda_are_made_where_the_cluster_has_them(cluster: Cluster) -> None:
    cluster.prometheus = "http://prometheus:9090"
    cluster.kube.uninstall(POD_MONITORS)
    await cluster.make(KEDA)
    async with cluster.running():
        said = await cluster.condition("Applied", done)
        assert said["message"] == "no PodMonitor: the cluster has no monitoring.coreos.com/v1"
        found = await cluster.until(SCALED_OBJECTS, is_there)
        assert found["spec"]["triggers"][0]["metadata"]["serverAddress"] == cluster.prometheus
        cluster.kube.uninstall(SCALED_OBJECTS)
        await cluster.change({"startupSeconds": 900})
        said = await cluster.condition("Applied", failed)
        assert "scaledobjects of keda.sh/v1alpha1" in said["message"]
        await cluster.change(SCALED | {"autoscaling": {"metric": "tessera", "autoscaler": None, "slots": 8}})
        await cluster.condition("Applied", done)


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "a misspelled option": ({"args": ["--grpc-prt=1"]}, {}, "Invalid", "did you mean --grpc-port"),
    "KEDA without a Prometheus": (KEDA, {}, "Invalid", "--prometheus"),
    "a field that the API server lost": ({"model": {}}, {}, "Invalid", "exactly one way"),
    "a namespace that is not served": ({}, {"namespace": "other"}, "NamespaceNotServed", "no --model-servers=other"),
}


@pytest.mark.parametrize("case", WRONG)
async def test_what_cannot_be_carried_out_says_why_and_stops_no_other(cluster: Cluster, case: str) -> None:
    spec, metadata, reason, want = WRONG[case]
    await cluster.make(spec, **metadata)
    await cluster.make(name="other")
    async with cluster.running():
        accepted = await cluster.condition("Accepted", failed, metadata.get("namespace", NS))
        await until_object(cluster.kube, DEPLOYMENTS, "other", bool, NS)
    assert (accepted["reason"], want in accepted["message"]) == (reason, True)
    assert await cluster.kube.get(DEPLOYMENTS, "ranker", metadata.get("namespace", NS)) is None


BOUND = (DEPLOYMENTS, SERVICES, DISRUPTION_BUDGETS, AUTOSCALERS, POD_MONITORS, SCALED_OBJECTS)
COMMAND = (
    "kubectl create rolebinding tessera-model-servers -n {} --clusterrole=tessera-model-servers "
    "--serviceaccount=tessera-system:tessera-controller"
)


@pytest.mark.parametrize("kinds", [BOUND, (AUTOSCALERS,)], ids=["no RoleBinding", "a role of a former version"])
async def test_a_namespace_without_the_rolebinding_says_how_to_create_it_and_stalls_no_other(
    cluster: Cluster, kinds: tuple[Kind, ...]
) -> None:
    cluster.namespaces = ["bare", NS]
    cluster.kube.withhold("bare", *kinds)
    await cluster.make(namespace="bare")
    await cluster.make()
    async with cluster.running():
        await cluster.condition("Applied", done)
        refused = await cluster.condition("Accepted", failed, "bare")
        assert await cluster.kube.get(MODEL_SERVERS, "ranker", "bare") is not None
        assert (refused["reason"], COMMAND.format("bare") in refused["message"]) == ("RoleBindingMissing", True)
        cluster.kube.withhold("bare")
        await cluster.condition("Accepted", done, "bare")
        await cluster.until(DEPLOYMENTS, is_there, "bare")


async def test_rights_that_are_taken_later_are_asked_for_and_what_runs_stays(cluster: Cluster) -> None:
    await cluster.make()
    async with cluster.running():
        await cluster.condition("Applied", done)
        cluster.kube.withhold(NS, *BOUND)
        await cluster.change({"startupSeconds": 900})
        assert COMMAND.format(NS) in (await cluster.condition("Applied", failed))["message"]
        cluster.kube.withhold(NS)
        assert await cluster.kube.get(DEPLOYMENTS, "ranker", NS) is not None
        await cluster.condition("Applied", done)


async def test_pods_that_the_namespace_refuses_are_a_problem_with_its_words(cluster: Cluster) -> None:
    await cluster.make({"model": {"hostPath": "/mnt"}})
    refusal = {"type": "ReplicaFailure", "status": "True", "message": "violates PodSecurity baseline"}
    async with cluster.running():
        await cluster.condition("Applied", done)
        body = {"status": {"conditions": [refusal, {"type": "Available", "status": "False"}]}}
        await cluster.kube.patch(DEPLOYMENTS, "ranker", body, namespace=NS, subresource="status")
        said = await cluster.condition("Applied", failed)
    assert said["message"] == "Deployment: violates PodSecurity baseline"


async def test_a_server_that_is_being_deleted_gets_nothing_any_more(cluster: Cluster) -> None:
    await cluster.make(deletionTimestamp="2026-11-23T12:00:00Z")
    await cluster.make(name="other")
    async with cluster.running():
        await until_object(cluster.kube, DEPLOYMENTS, "other", bool, NS)
    assert await cluster.kube.get(DEPLOYMENTS, "ranker", NS) is None


async def test_an_api_server_that_comes_back_is_caught_up_with(cluster: Cluster) -> None:
    await cluster.make()
    cluster.kube.lose_answers(2)
    async with cluster.running():
        await cluster.condition("Applied", done)
        cluster.kube.stop()
        await asyncio.sleep(0)
        cluster.kube.start()
        await cluster.change({"startupSeconds": 900})
        await cluster.until(
            DEPLOYMENTS, lambda each: each is not None and each["spec"]["progressDeadlineSeconds"] == 1500
        )


async def test_an_unreadable_status_is_written_anew(cluster: Cluster) -> None:
    await cluster.make()
    await cluster.kube.patch(
        MODEL_SERVERS, "ranker", {"status": {"conditions": "x"}}, namespace=NS, subresource="status"
    )
    async with cluster.running():
        await cluster.until(
            MODEL_SERVERS, lambda each: each is not None and not isinstance(each["status"].get("conditions"), str)
        )


class Looked(Measures):
    """Says when the controller has looked."""

    def __init__(self) -> None:
        super().__init__()
        self._looked = asyncio.Event()

    def turned(self, loop: str) -> None:
        super().turned(loop)
        self._looked.set()

    async def again(self) -> None:
        """Wait until it has looked once more."""
        self._looked.clear()
        async with asyncio.timeout(20):
            await self._looked.wait()


class Counting(MemoryKube):
    """What is asked for by its name is written down."""

    def __init__(self) -> None:
        super().__init__()
        self.got: list[str] = []

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Object | None:
        self.got.append(kind.name)
        return await super().get(kind, name, namespace)


@pytest.mark.parametrize("spec", [{}, SCALED, KEDA, {"monitor": {"enabled": False}}])
@pytest.mark.parametrize("without", [(), (POD_MONITORS, SCALED_OBJECTS)])
async def test_a_look_at_what_is_as_it_shall_be_asks_for_nothing(
    cluster: Cluster, spec: dict[str, Any], without: tuple[Kind, ...]
) -> None:
    cluster.kube = kube = Counting()
    cluster.prometheus, cluster.pace = "http://prometheus:9090", Pace(least_s=0.01, most_s=0.02)
    for kind in without:
        kube.uninstall(kind)
    await cluster.make(spec)
    await cluster.make(name="other")
    measures = Looked()
    async with cluster.running(measures):
        await cluster.condition("Accepted", done)
        for turn in range(1, 31):
            if turn == 10:
                kube.got.clear()
            await measures.again()
    assert kube.got == []


async def test_a_monitor_that_somebody_changes_is_repaired(cluster: Cluster) -> None:
    await cluster.make()
    async with cluster.running():
        await cluster.until(POD_MONITORS, is_there)
        await cluster.kube.patch(POD_MONITORS, "ranker", {"spec": {"selector": {"matchLabels": None}}}, namespace=NS)
        await cluster.until(POD_MONITORS, lambda each: each is not None and "matchLabels" in each["spec"]["selector"])
        await cluster.kube.delete(POD_MONITORS, "ranker", namespace=NS)
        await cluster.until(POD_MONITORS, is_there)


SLEEPS = {"replicas": {"min": 0, "max": 3}, "autoscaling": {"slots": 8, "idleSeconds": 600}}
SERVER = {"serving.tessera.dev/server": "ranker"}


def wake(moment: dt.datetime) -> dict[str, Any]:
    return {"metadata": {"annotations": {"serving.tessera.dev/wake": moment.isoformat()}}}


async def say(kube: MemoryKube, replicas: int, at_s: int) -> None:
    """Let the metric say how many replicas are needed."""
    said = {"value": f"{replicas}", "timestamp": dt.datetime.fromtimestamp(at_s, dt.UTC).isoformat()}
    if await kube.get(ASKED_REPLICAS, "ranker", NS) is None:
        await kube.create(ASKED_REPLICAS, {"metadata": {"name": "ranker", "namespace": NS, "labels": SERVER}, **said})
    else:
        await kube.patch(ASKED_REPLICAS, "ranker", said, namespace=NS)


def has(replicas: int) -> Callable[[Any], bool]:
    return lambda each: each is not None and each["spec"].get("replicas", 1) == replicas


async def test_a_server_that_sleeps_is_scaled_to_zero_and_woken(cluster: Cluster) -> None:
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


async def test_where_a_replica_is_asked_for_a_server_that_sleeps_gets_one(cluster: Cluster) -> None:
    await say(cluster.kube, 0, 1000)
    await cluster.make(SLEEPS)
    async with cluster.running():
        await cluster.until(DEPLOYMENTS, is_there)
        await say(cluster.kube, 0, 1030)
        await cluster.until(DEPLOYMENTS, has(0))
        await say(cluster.kube, 2, 1045)
        await cluster.until(DEPLOYMENTS, has(1))


async def test_while_nobody_says_how_many_are_needed_the_replicas_stay_and_that_is_said(cluster: Cluster) -> None:
    cluster.kube.withhold(NS, ASKED_REPLICAS)
    await cluster.make(SLEEPS)
    async with cluster.running():
        said = await cluster.condition("Applied", lambda each: "scaled to zero" in each["message"])
        assert COMMAND.format(NS) in said["message"]
        assert said["status"] == "True"
        cluster.kube.withhold(NS)
        await cluster.condition("Applied", lambda each: "tessera_replicas of serving/ranker: none" in each["message"])
        found = await cluster.kube.get(DEPLOYMENTS, "ranker", NS)
        assert has(1)(found)


class Silent(MemoryKube):
    """The metric cannot be read, for a reason that has a number of seconds in it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def list(self, kind: Kind, selection: Selection = EVERYTHING) -> Listing:
        if kind is ASKED_REPLICAS:
            self.asked += 1
            raise Unavailable("tessera_replicas", found=f"last measured {60 + self.asked} s ago", expected="a look")
        return await super().list(kind, selection)


async def test_a_reason_that_differs_in_a_number_alone_writes_no_status(cluster: Cluster) -> None:
    cluster.kube = kube = Silent()
    await cluster.make(SLEEPS)
    measures = Looked()
    async with cluster.running(measures):
        await cluster.condition("Applied", lambda each: "last measured" in each["message"])
        before, asked = await kube.get(MODEL_SERVERS, "ranker", NS), kube.asked
        while kube.asked < asked + 3:
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
        await cluster.condition("Ready", lambda each: each["message"] == "0 of 0 replicas serve")
        found = await cluster.kube.get(DEPLOYMENTS, "ranker", NS)
        assert has(0)(found), "who scales it to zero by hand then is left alone"
