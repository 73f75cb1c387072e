"""ModelServers in a cluster of this process: objects come, are repaired, go; those of others are left alone."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from harness.awaiting import until_object
from harness.modelservercluster import COMMAND, NS, Cluster, Passes, failed, is_there
from tessera.clients.kube import (
    AUTOSCALERS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    MODEL_SERVERS,
    POD_MONITORS,
    SCALED_OBJECTS,
    SERVICES,
    Kind,
    MemoryKube,
    Object,
)
from tessera.controller.modelservers import Pace

pytestmark = pytest.mark.anyio

SCALED = {"replicas": {"min": 1, "max": 4}}
KEDA = {**SCALED, "autoscaling": {"metric": "queue-time", "autoscaler": "KEDA"}}


def is_gone(each: Object | None) -> bool:
    return each is None


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
        status = {"status": {"replicas": 2, "readyReplicas": 2, "updatedReplicas": 2}}
        await cluster.kube.patch(DEPLOYMENTS, "ranker", status, namespace=NS, subresource="status")
        await cluster.condition("Ready", done)
    found = await cluster.kube.get(MODEL_SERVERS, "ranker", NS)
    assert found is not None
    assert (applied["message"], ready["reason"]) == ("all objects are as desired", "Starting")
    counts = {key: found["status"][key] for key in ("replicas", "readyReplicas", "desiredReplicas")}
    assert counts == {"replicas": 2, "readyReplicas": 2, "desiredReplicas": 2}


async def test_the_first_replicas_start_one_by_one_where_each_measures_the_free_memory_of_a_gpu(
    cluster: Cluster,
) -> None:
    vllm = {"engine": "vllm", "image": "example.com/vllm:1", "gpu": {"resource": "nvidia.com/gpu.shared"}}
    await cluster.make(vllm | {"replicas": {"min": 3}})
    async with cluster.running():
        for number in (1, 2, 3):
            found = await cluster.until(DEPLOYMENTS, partial(has_replicas, number))
            await cluster.condition("Ready", failed)
            status = dict.fromkeys(("replicas", "readyReplicas", "updatedReplicas"), number)
            seen = {"status": {**status, "observedGeneration": found["metadata"]["generation"]}}
            await cluster.kube.patch(DEPLOYMENTS, "ranker", seen, namespace=NS, subresource="status")
        await cluster.condition("Ready", done)


def has_replicas(number: int, each: Object | None) -> bool:
    return each is not None and each["spec"].get("replicas") == number


async def test_a_changed_spec_is_ready_once_its_own_pods_serve(cluster: Cluster) -> None:
    await cluster.make()
    async with cluster.running():
        found = await cluster.until(DEPLOYMENTS, lambda each: each is not None and "replicas" in each["spec"])
        serving = {"replicas": 1, "readyReplicas": 1, "updatedReplicas": 1}
        for image in ("", "nvcr.io/nvidia/tritonserver:25.01-py3"):
            if image:
                await cluster.change({"image": image})
                # The first status of the new generation is before any of its pods.
                ready = await cluster.condition("Ready", lambda each: each["observedGeneration"] == 2)
                assert (ready["status"], ready["reason"]) == ("False", "RollingOut")
                found = await cluster.kube.get(DEPLOYMENTS, "ranker", NS) or {}
            seen = {"status": {**serving, "observedGeneration": found["metadata"]["generation"]}}
            await cluster.kube.patch(DEPLOYMENTS, "ranker", seen, namespace=NS, subresource="status")
            await cluster.condition("Ready", done)


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


async def test_it_says_that_somebody_keeps_changing_a_fixed_number_of_replicas(cluster: Cluster) -> None:
    """As a HorizontalPodAutoscaler of a user does."""
    await cluster.make({"replicas": {"min": 2}})

    def has(replicas: int) -> Callable[[Object | None], bool]:
        return lambda each: each is not None and each["spec"].get("replicas") == replicas

    async with cluster.running():
        for _ in range(5):
            await cluster.until(DEPLOYMENTS, has(2))
            applied = await cluster.condition("Applied", done)
            assert applied["message"] == "all objects are as desired"
            await cluster.kube.patch(DEPLOYMENTS, "ranker", {"spec": {"replicas": 5}}, namespace=NS)
        applied = await cluster.condition("Applied", lambda each: "another controller" in each["message"])
    assert applied == {**applied, "status": "True", "reason": "Done"}
    assert applied["message"].endswith("and Tessera sets them back: remove it, or set spec.replicas.max")


async def test_it_says_which_fields_somebody_keeps_changing(cluster: Cluster) -> None:
    """As a tool does that applies an own version of the Deployment again and again."""
    await cluster.make(SCALED)

    def repaired(each: Object | None) -> bool:
        return each is not None and each["spec"]["progressDeadlineSeconds"] != 77

    async with cluster.running():
        for _ in range(5):
            await cluster.until(DEPLOYMENTS, repaired)
            applied = await cluster.condition("Applied", done)
            assert applied["message"] == "all objects are as desired"
            await cluster.kube.patch(DEPLOYMENTS, "ranker", {"spec": {"progressDeadlineSeconds": 77}}, namespace=NS)
        applied = await cluster.condition("Applied", lambda each: "keeps changing" in each["message"])
    assert applied == {**applied, "status": "True", "reason": "Done"}
    want = "another client keeps changing the Deployment, and Tessera sets it back: .spec.progressDeadlineSeconds of"
    assert want in applied["message"]


async def test_an_object_of_somebody_else_is_left_alone_and_the_others_come(cluster: Cluster) -> None:
    foreign = {"metadata": {"name": "ranker", "namespace": NS}, "spec": {"selector": {"app": "mine"}}}
    await cluster.kube.create(SERVICES, foreign)
    await cluster.make()
    async with cluster.running():
        problem = await cluster.condition("Applied", failed)
        await cluster.until(DISRUPTION_BUDGETS, is_there)
        want = "Service serving/ranker: it exists and belongs to something else: rename one of the two"
        assert want in problem["message"]
        ready = await cluster.condition("Ready", failed)
        assert ready["reason"] == "Starting", "its Deployment is applied"
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
        ready = await cluster.condition("Ready", failed)
    assert ready["reason"] == "DeploymentNotApplied"
    assert "it exists and belongs to something else: rename one of the two" in ready["message"]


@pytest.mark.parametrize("to_zero", [False, True])
async def test_a_deployment_that_is_taken_from_its_server_serves_nothing(cluster: Cluster, to_zero: bool) -> None:
    await cluster.make({"replicas": {"min": 0 if to_zero else 1}})
    async with cluster.running():
        await cluster.condition("Applied", done)
        await cluster.kube.patch(DEPLOYMENTS, "ranker", {"spec": {"replicas": 0}}, namespace=NS)
        await cluster.kube.patch(DEPLOYMENTS, "ranker", {"metadata": {"ownerReferences": None}}, namespace=NS)
        assert "belongs to something else" in (await cluster.condition("Applied", failed))["message"]
        ready = await cluster.condition("Ready", lambda each: each["reason"] == "DeploymentNotApplied")
        assert ready["status"] == "False"
        await cluster.kube.delete(DEPLOYMENTS, "ranker", namespace=NS)
        await cluster.condition("Applied", done)
        await cluster.condition("Ready", lambda each: each["reason"] != "DeploymentNotApplied")


@pytest.mark.parametrize(
    "types", [("Headless", "ClusterIP"), ("LoadBalancer", "Headless"), ("Headless", "LoadBalancer")]
)
async def test_a_service_that_cannot_become_the_desired_one_says_how_it_can(
    cluster: Cluster, types: tuple[str, str]
) -> None:
    first, then = types
    await cluster.make({"expose": {"type": first}})
    async with cluster.running():
        await cluster.condition("Applied", done)
        before = await cluster.until(SERVICES, is_there)
        await cluster.change({"expose": {"type": then}})
        applied = await cluster.condition("Applied", failed)
        assert applied["message"] == (
            "Service serving/ranker: Kubernetes does not change a Service to or from Headless: "
            "`kubectl delete service ranker -n serving`: Tessera then creates it again"
        )
        left = await cluster.until(SERVICES, is_there)
        assert left["metadata"]["uid"] == before["metadata"]["uid"]
        await cluster.kube.delete(SERVICES, "ranker", namespace=NS)
        await cluster.condition("Applied", done)
        made = await cluster.until(SERVICES, is_there)
    assert (made["spec"].get("clusterIP") == "None") == (then == "Headless")


async def test_a_wake_annotation_that_is_no_time_is_ignored_and_what_runs_is_repaired(cluster: Cluster) -> None:
    await cluster.make({"replicas": {"min": 0, "max": 2}})
    async with cluster.running():
        await cluster.condition("Applied", done)
        bad = {"metadata": {"annotations": {"serving.tessera.dev/wake": "yesterday"}}}
        await cluster.kube.patch(MODEL_SERVERS, "ranker", bad, namespace=NS)
        applied = await cluster.condition("Applied", lambda each: "yesterday" in each["message"])
        assert applied["status"] == "True"
        want = "ignored: annotation serving.tessera.dev/wake: 'yesterday' is not a time, as 2026-11-26T08:00:00Z"
        assert want in applied["message"]
        await cluster.kube.delete(SERVICES, "ranker", namespace=NS)
        await cluster.until(SERVICES, is_there)
        assert (await cluster.condition("Accepted", bool))["status"] == "True"


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
        applied = await cluster.condition("Applied", done)
        assert applied["message"] == "no PodMonitor: the cluster has no monitoring.coreos.com/v1"
        found = await cluster.until(SCALED_OBJECTS, is_there)
        assert found["spec"]["triggers"][0]["metadata"]["serverAddress"] == cluster.prometheus
        cluster.kube.uninstall(SCALED_OBJECTS)
        await cluster.change({"startupSeconds": 900})
        applied = await cluster.condition("Applied", failed)
        assert "scaledobjects of keda.sh/v1alpha1" in applied["message"]
        await cluster.change(SCALED | {"autoscaling": {"metric": "tessera", "autoscaler": None, "slots": 8}})
        await cluster.condition("Applied", done)


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "a misspelled option": ({"args": ["--grpc-prt=1"]}, {}, "Invalid", "did you mean --grpc-port"),
    "KEDA without a Prometheus": (KEDA, {}, "Invalid", "--prometheus"),
    "a field that the API server lost": ({"model": {}}, {}, "Invalid", "exactly one way"),
    "a namespace that is not served": ({}, {"namespace": "other"}, "NamespaceNotServed", "no --model-servers=other"),
}


@pytest.mark.parametrize("case", WRONG)
async def test_an_invalid_spec_says_why_and_stops_no_other(cluster: Cluster, case: str) -> None:
    spec, metadata, reason, want = WRONG[case]
    await cluster.make(spec, **metadata)
    await cluster.make(name="other")
    async with cluster.running():
        accepted = await cluster.condition("Accepted", failed, metadata.get("namespace", NS))
        await until_object(cluster.kube, DEPLOYMENTS, "other", bool, NS)
    assert (accepted["reason"], want in accepted["message"]) == (reason, True)
    assert await cluster.kube.get(DEPLOYMENTS, "ranker", metadata.get("namespace", NS)) is None


BOUND = (DEPLOYMENTS, SERVICES, DISRUPTION_BUDGETS, AUTOSCALERS, POD_MONITORS, SCALED_OBJECTS)


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


async def test_rights_that_are_revoked_later_are_named_and_running_objects_stay(cluster: Cluster) -> None:
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
        applied = await cluster.condition("Applied", failed)
    assert applied["message"] == "Deployment: violates PodSecurity baseline"


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


class Counting(MemoryKube):
    """Records what is read by name."""

    def __init__(self) -> None:
        super().__init__()
        self.got: list[str] = []

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Object | None:
        self.got.append(kind.name)
        return await super().get(kind, name, namespace)


@pytest.mark.parametrize("spec", [{}, SCALED, KEDA, {"monitor": {"enabled": False}}])
@pytest.mark.parametrize("without", [(), (POD_MONITORS, SCALED_OBJECTS)])
async def test_an_unchanged_server_causes_no_api_calls(
    cluster: Cluster, spec: dict[str, Any], without: tuple[Kind, ...]
) -> None:
    cluster.kube = kube = Counting()
    cluster.prometheus, cluster.pace = "http://prometheus:9090", Pace(least_s=0.01, most_s=0.02)
    for kind in without:
        kube.uninstall(kind)
    await cluster.make(spec)
    await cluster.make(name="other")
    measures = Passes()
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
