"""The metrics APIs behind the real kube-aggregator, read by kubectl and the real HorizontalPodAutoscaler controller.

Pods are objects: nobody runs them, and their address leads to a program that counts as a Triton does. Replicas are real
numbers of a real Deployment, which the real controller changes.
"""

import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from builders.modelservers import model_server, model_servers_binding
from harness.metricsserver import make_certificates
from kube.test_controller import account
from tessera.cli import main
from tessera.clients.kube import HttpKube
from tessera.controller.modelservers import ModelServers
from tessera.errors import Unavailable
from tessera.measures import Measures
from testbed.addresses import CONTROL_PLANE
from testbed.cluster import Cluster
from testbed.deploy import objects
from testbed.namespaces import Namespaces, environment
from testbed.processes import until

API_PORT, LOAD_PORT, METRICS_PORT = 8444, 8445, 8446
SCRAPE = """
import ssl, sys, urllib.request
context = ssl.create_default_context(cafile=sys.argv[2])
print(urllib.request.urlopen(f"https://127.0.0.1:{sys.argv[1]}/metrics", context=context).read().decode())
"""
SERVER = "serving.tessera.dev/server"
CUSTOM = "/apis/custom.metrics.k8s.io/v1beta2/namespaces/default/pods/*"
EXTERNAL = "/apis/external.metrics.k8s.io/v1beta1/namespaces/default"
APIS = ("v1beta1.custom.metrics.k8s.io", "v1beta2.custom.metrics.k8s.io", "v1beta1.external.metrics.k8s.io")
BUSY, IDLE = "10 2.0", "0 0"


class Scene:
    """A cluster with the metrics APIs, and the load of its model servers.

    Args:
        cluster: the control plane.
        load: the file with the load.
        start: starts `tessera metrics`; left out where the test starts it itself.

    """

    def __init__(self, cluster: Cluster, load: Path, start: Callable[[], object] | None = None) -> None:
        self.cluster = cluster
        self._load = load
        self._start = start

    def start(self) -> None:
        """Start `tessera metrics`, and return when the API server passes its APIs on."""
        assert self._start is not None
        self._start()
        for name in APIS:
            self.until(f"{name} is available", partial(available, self.cluster, name))

    def kill(self) -> None:
        """End `tessera metrics` as a crash does."""
        self.cluster.processes.stop("metrics", number=signal.SIGKILL)

    def load(self, text: str) -> None:
        """Set the load of all pods."""
        self._load.write_text(text)

    def scraped(self) -> str:
        """Return what Prometheus gets, over TLS."""
        holder = self.cluster.processes.get("namespaces")
        assert holder is not None
        authority = str(self.cluster.folder / "serving.crt")
        return Namespaces(holder).run(sys.executable, "-c", SCRAPE, str(METRICS_PORT), authority)

    def raw(self, path: str, *who: str) -> Any:
        """Return what kube-apiserver answers at a path."""
        return json.loads(self.cluster.kubectl("get", "--raw", path, *who))

    def serve(self, name: str, metric: dict[str, Any]) -> None:
        """Make a Deployment and a HorizontalPodAutoscaler by a metric, quick both ways."""
        labels = {SERVER: name}
        container = {"name": "engine", "image": "engine", "ports": [{"name": "metrics", "containerPort": LOAD_PORT}]}
        # No scheduler and no kubelet has these pods; the test says that they run.
        spec = {"schedulerName": "nobody", "containers": [container]}
        deployment = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {
                "name": name,
                "namespace": "default",
                "labels": labels,
                "annotations": {f"{SERVER[:19]}/slots": "4"},
            },
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": spec},
            },
        }
        quick = {"stabilizationWindowSeconds": 0, "policies": [{"type": "Pods", "value": 4, "periodSeconds": 1}]}
        scaler = {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
                "minReplicas": 1,
                "maxReplicas": 3,
                "metrics": [metric],
                "behavior": {"scaleUp": quick, "scaleDown": quick},
            },
        }
        self.cluster.apply(deployment, scaler)

    def remove(self, name: str) -> None:
        self.cluster.kubectl("delete", "hpa,deployment", name, "-n", "default", "--wait=false", "--ignore-not-found")
        self.cluster.kubectl(
            "delete",
            "pods",
            "-l",
            f"{SERVER}={name}",
            "-n",
            "default",
            "--ignore-not-found",
            "--force",
            "--grace-period=0",
        )

    def replicas(self, name: str) -> int:
        """Return the replicas of a Deployment's spec, after its pods run that do not yet."""
        moment = "2026-01-01T00:00:00Z"
        for pod in self.cluster.get("pods", "-n", "default", "-l", f"{SERVER}={name}")["items"]:
            if "deletionTimestamp" in pod["metadata"]:
                self.cluster.kubectl(
                    *(
                        "delete",
                        "pod",
                        pod["metadata"]["name"],
                        "-n",
                        "default",
                        "--ignore-not-found",
                        "--force",
                        "--grace-period=0",
                    )
                )
            elif pod["status"].get("phase") != "Running":
                state = {"running": {"startedAt": moment}}
                named = pod["spec"]["containers"][0]["name"]
                container = {"name": named, "state": state, "ready": True, "restartCount": 0}
                status = {
                    "phase": "Running",
                    "podIP": CONTROL_PLANE,
                    "podIPs": [{"ip": CONTROL_PLANE}],
                    "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": moment}],
                    "containerStatuses": [{**container, "image": "engine", "imageID": ""}],
                }
                patch = json.dumps({"status": status})
                name_of = pod["metadata"]["name"]
                port = f"{SERVER[:19]}/metrics-port={LOAD_PORT}"
                self.cluster.kubectl("annotate", "pod", name_of, "-n", "default", "--overwrite", port)
                self.cluster.kubectl(*("patch", "pod", name_of, "-n", "default", "--subresource=status", "-p", patch))
        found: int = self.cluster.get("deployment", name, "-n", "default")["spec"]["replicas"]
        return found

    def conditions(self, name: str) -> str:
        """Return what a HorizontalPodAutoscaler says of itself."""
        found = self.cluster.get("hpa", name, "-n", "default").get("status", {}).get("conditions", [])
        return "; ".join(f"{each['type']}={each['status']} {each['reason']}: {each['message']}" for each in found)

    def until(self, what: str, holds: Callable[[], bool], *names: str) -> None:
        """Wait, and where it takes too long tell what everybody says."""

        def details() -> str:
            log = self.cluster.processes.last_words("metrics")
            return "\n".join((*map(self.conditions, names), log))

        until(what, holds, timeout_s=120, found=details)


def write_whole(path: Path, text: str) -> None:
    """Write a file that another program follows, so that it never reads half of it."""
    coming = path.with_name(f".{path.name}")
    coming.write_text(text)
    coming.replace(path)


def available(cluster: Cluster, name: str) -> bool:
    conditions = cluster.get("apiservice", name).get("status", {}).get("conditions", [])
    return any(each["type"] == "Available" and each["status"] == "True" for each in conditions)


@pytest.fixture(scope="module")
def scene(control_plane: Cluster) -> Iterator[Scene]:
    """Give a cluster whose kube-apiserver passes the metrics APIs on to `tessera metrics`, with its rights alone."""
    control_plane.install()
    made = [each for each in objects("metrics.yaml") if each["kind"] != "Deployment"]
    for each in made:
        if each["kind"] == "Service":  # no proxy leads a Service's address to its pods here
            each["spec"] = {"type": "ExternalName", "externalName": CONTROL_PLANE}
        if each["kind"] == "APIService":
            each["spec"]["service"]["port"] = API_PORT
    control_plane.apply(*made)
    folder, holder = control_plane.folder, control_plane.processes.get("namespaces")
    assert holder is not None
    inside = Namespaces(holder).enter()
    (folder / "load").write_text(IDLE)
    script = str(Path(__file__).with_name("modelmetrics.py"))
    load = (sys.executable, script, CONTROL_PLANE, str(LOAD_PORT), str(folder / "load"))
    control_plane.processes.start("load", load, inside=inside, environment=environment())
    variables = {**environment(), "KUBECONFIG": str(control_plane.account_kubeconfig("metrics"))}
    address = ("--host", CONTROL_PLANE, "--port", str(API_PORT), "--self-signed", str(folder / "metrics-certificate"))
    make_certificates(folder)
    own = ("--metrics-certificate", str(folder / "server.crt"), "--metrics-key", str(folder / "server.key"))
    command = (
        *(str(Path(sys.executable).with_name("tessera")), "metrics", *address),
        *("--metrics-port", str(METRICS_PORT), *own),
    )
    start = partial(control_plane.processes.start, "metrics", command, inside=inside, environment=variables)
    one = Scene(control_plane, folder / "load", start)
    try:
        one.start()
        yield one
    finally:
        control_plane.processes.stop("metrics")
        control_plane.processes.stop("load")
        for each in reversed(made):
            namespace = each["metadata"].get("namespace", "")
            where = ("-n", namespace) if namespace else ()
            control_plane.kubectl("delete", each["kind"], each["metadata"]["name"], *where, "--ignore-not-found")


def test_kubectl_reads_what_is_served(scene: Scene) -> None:
    found = scene.raw("/apis/custom.metrics.k8s.io/v1beta1")
    assert "pods/avg_time_queue_us" in {each["name"] for each in found["resources"]}
    external = scene.raw("/apis/external.metrics.k8s.io/v1beta1")
    assert "tessera_replicas" in {each["name"] for each in external["resources"]}


def test_prometheus_gets_metrics_over_tls(scene: Scene) -> None:
    exposed = scene.scraped()
    for each in ('tessera_loop_age_seconds{loop="reconcile"}', "tessera_metrics_reconcile_duration_seconds_count"):
        assert each in exposed


def test_a_user_without_rights_gets_403_with_the_reason(scene: Scene) -> None:
    with pytest.raises(Unavailable, match=r'jane" cannot list resource|jane may not list'):
        scene.raw(f"{EXTERNAL}/tessera_replicas", "--as=jane", "--as-group=system:authenticated")


def test_what_has_no_value_says_why_through_the_aggregator(scene: Scene) -> None:
    with pytest.raises(Unavailable) as caught:
        scene.raw(f"{EXTERNAL}/tessera_replicas")
    assert "no such server" in str(caught.value)


def test_the_published_rule_and_tesseras_decision_scale_deployments(scene: Scene) -> None:
    """Both at once, which saves a minute: three replicas by the rule, more by the decision; one again without load."""
    target = {"type": "AverageValue", "averageValue": "50"}
    scene.serve("triton", {"type": "Pods", "pods": {"metric": {"name": "avg_time_queue_us"}, "target": target}})
    metric = {"name": "tessera_replicas", "selector": {"matchLabels": {SERVER: "vllm"}}}
    target = {"type": "AverageValue", "averageValue": "1"}
    scene.serve("vllm", {"type": "External", "external": {"metric": metric, "target": target}})

    def more() -> bool:
        counts = scene.replicas("triton"), scene.replicas("vllm")
        return counts[0] == 3 and counts[1] > 1

    try:
        scene.load(BUSY)
        scene.until("more replicas under load", more, "triton", "vllm")
        values = scene.raw(f"{CUSTOM}/avg_time_queue_us?labelSelector={SERVER}%3Dtriton")["items"]
        assert {each["describedObject"]["kind"] for each in values} == {"Pod"}
        (item,) = scene.raw(f"{EXTERNAL}/tessera_replicas?labelSelector={SERVER}%3Dvllm")["items"]
        assert item["metricLabels"] == {SERVER: "vllm"}
        assert "ValidMetricFound" in scene.conditions("vllm")
        events = scene.cluster.get("events", "-n", "default", "--field-selector=reason=ReplicasProposed")["items"]
        assert any("requests in flight" in each["message"] for each in events)
        scene.load(IDLE)
        scene.until("one replica without load", lambda: scene.replicas("triton") == 1, "triton")
    finally:
        scene.remove("triton")
        scene.remove("vllm")


def test_replicas_stay_while_tessera_metrics_is_away_and_are_computed_again_after(scene: Scene) -> None:
    metric = {"name": "tessera_replicas", "selector": {"matchLabels": {SERVER: "vllm"}}}
    target = {"type": "AverageValue", "averageValue": "1"}
    scene.serve("vllm", {"type": "External", "external": {"metric": metric, "target": target}})
    try:
        scene.load(BUSY)
        scene.until("the most replicas under load", lambda: scene.replicas("vllm") == 3, "vllm")
        scene.kill()
        try:
            away = "ScalingActive=False FailedGetExternalMetric"
            scene.until("no value", lambda: away in scene.conditions("vllm"), "vllm")
            time.sleep(20)  # the autoscaler asks every 15 s
            assert scene.replicas("vllm") == 3
        finally:
            scene.start()
        scene.until("a value again", lambda: "ValidMetricFound" in scene.conditions("vllm"), "vllm")
        assert scene.replicas("vllm") == 3
    finally:
        scene.load(IDLE)
        scene.remove("vllm")


@pytest.mark.long
@pytest.mark.anyio
async def test_an_idle_model_server_is_scaled_to_zero_and_woken(scene: Scene, tmp_path: Path) -> None:
    """With the gate HPAScaleToZero off, as it is by default before Kubernetes 1.37."""
    spec = {"replicas": {"min": 0, "max": 3}, "autoscaling": {"slots": 8, "idleSeconds": 60}}
    asleep = model_server(spec, name="sleepy", namespace="default")
    scene.load(IDLE)
    scene.cluster.apply(model_servers_binding("default"), asleep)

    def has(replicas: int, condition: str) -> bool:
        return scene.replicas("sleepy") == replicas and condition in scene.conditions("sleepy")

    async def until_it_has(replicas: int, condition: str) -> None:
        what = f"{replicas} replicas and {condition}"
        await asyncio.to_thread(scene.until, what, partial(has, replicas, condition), "sleepy")

    async with HttpKube.connect(account(scene.cluster, tmp_path)) as own:
        running = asyncio.create_task(ModelServers(own, ["default"]).run(Measures()))
        try:
            await asyncio.to_thread(
                until, "its autoscaler", lambda: scene.cluster.get("hpa", "-n", "default")["items"], timeout_s=30
            )
            await until_it_has(1, "ValidMetricFound")
            await until_it_has(0, "ScalingDisabled")
            said_of_it = 'tessera_model_server_proposed_replicas{namespace="default",server="sleepy"} 0'
            assert said_of_it in await asyncio.to_thread(scene.scraped)
            call = ("wake", "sleepy", "-n", "default", "--kubeconfig", str(scene.cluster.kubeconfig))
            result = await asyncio.to_thread(CliRunner().invoke, main, call)
            assert (result.exit_code, result.output[:20]) == (0, "woke default/sleepy;"), result.output
            await until_it_has(1, "ValidMetricFound")
            events = scene.cluster.get("events", "-n", "default", "--field-selector=reason=ReplicasProposed")["items"]
            texts = {each["message"] for each in events if each["involvedObject"]["name"] == "sleepy"}
            assert "0 replicas: no request for 60 s, so no replica" in texts
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            scene.cluster.kubectl("delete", "modelserver", "sleepy", "-n", "default")
            scene.remove("sleepy")
