"""ModelServers on a real API server and kubelet: their objects come, serve, are repaired and go."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builders.modelservers import model_server, model_servers_binding, server
from kube.fakenodes import connected
from kube.test_controller import account
from tessera.clients.kube import (
    AUTOSCALERS,
    DEPLOYMENTS,
    MODEL_SERVERS,
    PODS,
    SERVICES,
    HttpKube,
    Kind,
    Kube,
    Selection,
)
from tessera.controller.modelservers import ModelServers, Pace
from tessera.core.serving.render import job, render
from tessera.errors import Unavailable
from tessera.measures import Measures
from testbed.cluster import Cluster
from testbed.deploy import rendered as chart
from testbed.images import BUSYBOX

pytestmark = pytest.mark.anyio

NS, UNBOUND = "serving", "unbound"
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
ANSWER = r"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"
SERVE = f"while true; do printf '{ANSWER}' | nc -l -p 8000; done"
TINY = {
    "image": BUSYBOX,
    "command": ["sh", "-c", SERVE],
    "model": {"cache": "tiny"},
    "replicas": {"min": 1, "max": 3},
    "resources": {"cpu": "10m", "memory": "64Mi", "sharedMemory": "16Mi"},
    "terminationGracePeriodSeconds": 30,
}
RESOURCES = ("nvidia.com/mig-1g.10gb", "models.tessera.dev/tiny")


def offer(cluster: Cluster, *, gone: bool = False) -> None:
    """Have the node offer what the pods ask for, as Kubernetes documents it for resources without a device plugin."""
    paths = [f"/status/capacity/{each.replace('/', '~1')}" for each in RESOURCES]
    patch = [{"op": "remove" if gone else "add", "path": each, **({} if gone else {"value": "4"})} for each in paths]
    cluster.kubectl("patch", "node", "node1", "--subresource=status", "--type=json", "-p", json.dumps(patch))


async def until(kube: Kube, kind: Kind, holds: Callable[[Any], bool], namespace: str = NS) -> Any:
    """Return an object of the server's name when it is as desired."""
    async with asyncio.timeout(90):
        found = await kube.get(kind, "ranker", namespace)
        while not holds(found):
            await asyncio.sleep(0.2)
            found = await kube.get(kind, "ranker", namespace)
    return found


def conditions(found: Any) -> dict[str, str]:
    conditions = ((found or {}).get("status") or {}).get("conditions") or ()
    return {each["type"]: each["status"] for each in conditions}


async def test_a_server_runs_is_repaired_and_goes(node_cluster: Cluster, tmp_path: Path) -> None:
    """In a namespace of the Pod Security Standard `restricted`, with the rights that an administrator binds there."""
    node_cluster.install()
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NS, "labels": RESTRICTED}}
    node_cluster.apply(namespace, model_servers_binding(NS))
    offer(node_cluster)
    try:
        async with connected(node_cluster) as kube, HttpKube.connect(account(node_cluster, tmp_path)) as own:
            running = asyncio.create_task(ModelServers(own, [UNBOUND, NS], pace=Pace(least_s=0.1)).run(Measures()))
            try:
                node_cluster.apply(model_server(TINY, namespace=NS))
                await until(kube, MODEL_SERVERS, lambda each: conditions(each).get("Ready") == "True")
                found = await until(kube, MODEL_SERVERS, lambda each: conditions(each).get("Applied") == "True")
                assert {each["type"]: each["message"] for each in found["status"]["conditions"]}["Applied"] == (
                    "no PodMonitor: the cluster has no monitoring.coreos.com/v1"
                )
                (pod,) = (await kube.list(PODS, Selection(namespace=NS))).objects
                assert pod["spec"]["nodeName"] == "node1"
                await _unbound(node_cluster, kube)
                await _drift(kube)
                await _headless_and_back(kube)
                await _scaled(kube)
                await kube.delete(MODEL_SERVERS, "ranker", namespace=NS)
                for kind in (DEPLOYMENTS, SERVICES, AUTOSCALERS):
                    await until(kube, kind, lambda each: each is None)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
    finally:
        offer(node_cluster, gone=True)
        node_cluster.kubectl("delete", "namespace", NS, UNBOUND, "--wait=false", "--ignore-not-found")
        node_cluster.kubectl("delete", "pods", "--all", "-n", NS, "--ignore-not-found", "--force", "--grace-period=0")


async def _unbound(cluster: Cluster, kube: Kube) -> None:
    """A namespace without the RoleBinding says what creates it, and is served when it is there."""
    cluster.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": UNBOUND}},
        model_server({**TINY, "replicas": {"min": 0}}, namespace=UNBOUND),
    )
    refused = await until(kube, MODEL_SERVERS, lambda each: conditions(each).get("Accepted") == "False", UNBOUND)
    condition = next(each for each in refused["status"]["conditions"] if each["type"] == "Accepted")
    account = "--serviceaccount=tessera-system:tessera-controller"
    assert condition["reason"] == "RoleBindingMissing"
    assert f"-n {UNBOUND} --clusterrole=tessera-model-servers {account}`" in condition["message"]
    cluster.apply(model_servers_binding(UNBOUND))
    await until(kube, DEPLOYMENTS, lambda each: each is not None, UNBOUND)


async def _drift(kube: Kube) -> None:
    """Objects that somebody deletes or changes are as before."""
    before = await kube.get(SERVICES, "ranker", NS)
    assert before is not None
    await kube.delete(SERVICES, "ranker", namespace=NS)
    uid = before["metadata"]["uid"]
    await until(kube, SERVICES, lambda each: each is not None and each["metadata"]["uid"] != uid)
    await kube.patch(AUTOSCALERS, "ranker", {"spec": {"maxReplicas": 9}}, namespace=NS)
    await until(kube, AUTOSCALERS, lambda each: each["spec"]["maxReplicas"] == 3)
    # Whoever does so again and again is named, with the field.
    for number in range(6):
        deployment = {
            "metadata": {"name": "ranker", "namespace": NS},
            "spec": {"progressDeadlineSeconds": 5000 + number},
        }
        await kube.apply(DEPLOYMENTS, deployment, manager="rival", force=True)
        await until(kube, DEPLOYMENTS, lambda each: each["spec"]["progressDeadlineSeconds"] < 5000)
    contest = 'conflict with "rival": .spec.progressDeadlineSeconds'
    await until(kube, MODEL_SERVERS, lambda each: contest in str(each["status"]["conditions"]))


async def _headless_and_back(kube: Kube) -> None:
    """A Service that Kubernetes does not change is to be deleted, and created again; a bad wake annotation stops none.

    Kubernetes refuses to take a Service's address away, and silently leaves one without where it needs one.
    """
    bad = {"metadata": {"annotations": {"serving.tessera.dev/wake": "yesterday"}}}
    await kube.patch(MODEL_SERVERS, "ranker", bad, namespace=NS)
    for address, has_none in (("Headless", True), ("ClusterIP", False)):
        await kube.patch(MODEL_SERVERS, "ranker", {"spec": {"expose": {"type": address}}}, namespace=NS)
        found = await until(kube, MODEL_SERVERS, lambda each: conditions(each).get("Applied") == "False")
        condition = {each["type"]: each["message"] for each in found["status"]["conditions"]}["Applied"]
        assert (
            "to or from Headless: `kubectl delete service ranker -n serving`: Tessera then creates it again"
            in condition
        )
        await kube.delete(SERVICES, "ranker", namespace=NS)
        made = await until(kube, SERVICES, lambda each: each is not None)
        assert (made["spec"]["clusterIP"] == "None") == has_none
        found = await until(kube, MODEL_SERVERS, lambda each: conditions(each).get("Applied") == "True")
        condition = {each["type"]: each["message"] for each in found["status"]["conditions"]}["Applied"]
        assert "ignored: annotation serving.tessera.dev/wake: 'yesterday' is not a time" in condition


async def _scaled(kube: Kube) -> None:
    """The number of replicas is the autoscaler's, here a client's, and stays when a fixed one becomes scaled."""
    await kube.patch(DEPLOYMENTS, "ranker", {"spec": {"replicas": 2}}, namespace=NS)
    await kube.patch(MODEL_SERVERS, "ranker", {"spec": {"args": ["--log-verbose=1"]}}, namespace=NS)
    flag = "--log-verbose=1"
    found = await until(
        kube, DEPLOYMENTS, lambda each: flag in each["spec"]["template"]["spec"]["containers"][0]["args"]
    )
    assert found["spec"]["replicas"] == 2
    await kube.patch(MODEL_SERVERS, "ranker", {"spec": {"replicas": {"min": 1, "max": None}}}, namespace=NS)
    await until(kube, AUTOSCALERS, lambda each: each is None)
    await until(kube, DEPLOYMENTS, lambda each: each["spec"]["replicas"] == 1)


RENDERED: dict[str, dict[str, Any]] = {
    "vLLM by need": {"engine": "vllm", "gpu": {"memoryGiB": 20, "compute": 30, "models": ["A100-40GB"]}},
    "by queue time": {"replicas": {"max": 3}, "autoscaling": {"metric": "queue-time"}},
    "no replica while idle": {"replicas": {"min": 0, "max": 3}},
    "NFS, root, headless": {
        "model": {"nfs": {"server": "nfs", "path": "/a"}},
        "runAsUser": 0,
        "expose": {"type": "Headless"},
    },
    "secrets and tolerations": {
        "env": [{"name": "T", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}],
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "imagePullSecrets": ["registry"],
    },
}


@pytest.mark.parametrize("case", RENDERED)
async def test_the_api_server_takes_what_is_rendered_and_knows_every_field(node_cluster: Cluster, case: str) -> None:
    one = server(RENDERED[case], namespace="default")
    objects = [*render(one, "server"), job(one, ("true",), parallelism=2, completions=4)]
    taken = [json.dumps(each) for each in objects if each["kind"] != "PodMonitor"]
    text = "\n---\n".join(taken)
    create = ("create", "--dry-run=server", "--validate=strict", "-o", "name", "-f", "-")
    assert len(node_cluster.kubectl(*create, input_text=text).split()) == len(taken)


async def test_the_api_server_takes_jobs_of_very_many_parts(node_cluster: Cluster) -> None:
    for parallelism, completions in ((100_000, 100_000), (10_000, 100_001), (7, 1_000_000)):
        one = job(server(namespace="default"), ("true",), parallelism=parallelism, completions=completions)
        create = ("create", "--dry-run=server", "--validate=strict", "-o", "name", "-f", "-")
        assert node_cluster.kubectl(*create, input_text=json.dumps(one)) == "job.batch/ranker\n"


def test_keda_and_the_prometheus_operator_know_every_field(node_cluster: Cluster, monitoring_kinds: Path) -> None:
    """By the definitions of ScaledObject, PodMonitor and PrometheusRule, as their projects have them."""
    files = [*monitoring_kinds.glob("*.yaml")]
    spec = {"replicas": {"max": 3}, "autoscaling": {"metric": "queue-time", "autoscaler": "KEDA"}}
    one = server({**spec, "monitor": {"labels": {"release": "prometheus"}}}, namespace="default")
    rendered = render(one, "server", prometheus="http://prometheus:9090")
    others = [each for each in rendered if each["kind"] in {"PodMonitor", "ScaledObject"}]
    values = {"image": {"repository": "tessera"}, "metrics": {"podMonitor": True, "alertRules": True}}
    installed = [each for each in chart(values) if each["apiVersion"] == "monitoring.coreos.com/v1"]
    others += [{**each, "metadata": {"name": each["metadata"]["name"]}} for each in installed]
    assert (len(files), len(others)) == (3, 5)
    try:
        for definition in files:
            node_cluster.kubectl("apply", "--server-side", "-f", str(definition))
        groups = ("podmonitors.monitoring.coreos.com", "prometheusrules.monitoring.coreos.com", "scaledobjects.keda.sh")
        node_cluster.await_kinds(*groups)
        create = ("create", "--dry-run=server", "--validate=strict", "-o", "name", "-f", "-")
        taken = node_cluster.kubectl(*create, input_text="\n---\n".join(map(json.dumps, others)))
        assert len(taken.split()) == len(others)
        misspelled = json.dumps(others[1]).replace('"ignoreNullValues": "false"', '"ignoreNullValues": false')
        with pytest.raises(Unavailable, match="ignoreNullValues"):
            node_cluster.kubectl(*create, input_text=misspelled)
    finally:
        for definition in files:
            node_cluster.kubectl("delete", "--ignore-not-found", "-f", str(definition))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "two models": ({"model": {"cache": "a", "claim": "b"}}, "exactly one way: cache, claim, nfs or hostPath"),
    "two slices": ({"gpu": {"resource": "nvidia.com/mig-1g.5gb", "count": 2}}, "a process sees one MIG instance"),
    "KEDA for Tessera's metric": ({"autoscaling": {"autoscaler": "KEDA"}}, "with it metric must be queue-time"),
    "a value and a source": (
        {"env": [{"name": "A", "value": "b", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}]},
        "value or valueFrom",
    ),
    "a source of no kind": ({"env": [{"name": "A", "valueFrom": {"x": 1}}]}, 'unknown field "spec.env[0].valueFrom.x"'),
    "more than the most": ({"replicas": {"min": 3, "max": 2}}, "min must be at most max"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_the_api_server_refuses_what_cannot_be(node_cluster: Cluster, case: str) -> None:
    spec, want = REFUSED[case]
    node_cluster.install()
    text = json.dumps(model_server(spec))
    with pytest.raises(Unavailable) as caught:
        node_cluster.kubectl("create", "--dry-run=server", "-f", "-", input_text=text)
    assert want in caught.value.found
