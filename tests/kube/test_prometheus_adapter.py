"""The generated rules in a real Prometheus and a real prometheus-adapter, beside `tessera metrics`.

The adapter serves custom metrics behind the kube-aggregator and `tessera metrics` external ones, as docs/metrics-api.md
has it; both know the same pods, which count as a Triton does (`test_metrics_api`). Deployments are scaled by the rule
in Triton's Helm chart through Prometheus and the adapter, by the same rule through `tessera metrics`, and by Tessera's
decision: all react to the same load, and the test prints after how many seconds.
"""

import json
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import yaml

from kube.test_metrics_api import (
    API_PORT,
    BUSY,
    CUSTOM,
    EXTERNAL,
    IDLE,
    LOAD_PORT,
    SERVER,
    Scene,
    available,
    write_whole,
)
from tessera.core.serving.metrics.load import PASS_S
from testbed.addresses import CONTROL_PLANE
from testbed.cluster import Cluster
from testbed.controlplane import inside_url
from testbed.deploy import objects
from testbed.namespaces import Namespaces, environment
from testbed.processes import until

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
ADAPTER_PORT, PROMETHEUS_PORT = 8447, 9091
BY_POD = {"namespace": {"resource": "namespace"}, "pod": {"resource": "pod"}}
PUBLISHED = {
    "seriesQuery": 'nv_inference_queue_duration_us{namespace!="",pod!=""}',
    "resources": {"overrides": BY_POD},
    "name": {"matches": "^.*$", "as": "published_queue_us"},
    "metricsQuery": "avg(delta(nv_inference_queue_duration_us{<<.LabelMatchers>>}[30s])"
    "/(1+delta(nv_inference_request_success{<<.LabelMatchers>>}[30s]))) by (<<.GroupBy>>)",
}
"""Source: triton-inference-server/server `deploy/k8s-onprem/values.yaml`, under another name than Tessera's."""
EACH = 3
"""Deployments of each pipeline."""
LEARNED_S = 290
"""After so long Tessera's policy goes by what it has measured, not by the replicas that were there when it began."""
ASK = """
import json, ssl, sys, urllib.request
context = ssl._create_unverified_context()
context.load_cert_chain(sys.argv[2], sys.argv[3])
print(urllib.request.urlopen(sys.argv[1], context=context).read().decode())
"""


class Adapted(Scene):
    """A cluster with Prometheus and its adapter, and what they know."""

    def scrape(self) -> None:
        """Let Prometheus find the pods that there are, as by a PodMonitor."""
        groups = [
            {
                "targets": [f"{CONTROL_PLANE}:{LOAD_PORT}"],
                "labels": {
                    "namespace": "default",
                    "pod": each["metadata"]["name"],
                    "serving_tessera_dev_server": each["metadata"]["labels"][SERVER],
                },
            }
            for each in self.cluster.get("pods", "-n", "default", "-l", SERVER)["items"]
        ]
        write_whole(self.cluster.folder / "targets.json", json.dumps(groups))

    def settle(self) -> dict[str, int]:
        """Return the replicas of each Deployment's spec, after its pods run and Prometheus knows of them."""
        pods = self.cluster.get("pods", "-n", "default", "-l", SERVER)["items"]
        coming_or_going = [
            each for each in pods if each["status"].get("phase") != "Running" or "deletionTimestamp" in each["metadata"]
        ]
        for server in {each["metadata"]["labels"][SERVER] for each in coming_or_going}:
            self.replicas(server)
        self.scrape()
        return self.desired()

    def desired(self) -> dict[str, int]:
        """Return the replicas of each Deployment's spec."""
        found = self.cluster.get("deployments", "-n", "default", "-l", SERVER)["items"]
        return {each["metadata"]["name"]: each["spec"]["replicas"] for each in found}

    def measured(self) -> set[str]:
        """Return the Deployments whose autoscalers have a valid metric."""
        scalers = self.cluster.get("hpa", "-n", "default")["items"]
        return {
            each["metadata"]["name"]
            for each in scalers
            if any(one["reason"] == "ValidMetricFound" for one in each.get("status", {}).get("conditions", []))
        }

    def adapter(self, path: str) -> Any:
        """Return what the adapter itself answers; it is queried past kube-apiserver."""
        holder = self.cluster.processes.get("namespaces")
        assert holder is not None
        pki = self.cluster.pki
        pair = str(pki.certificate("admin")), str(pki.key("admin"))
        url = f"https://{CONTROL_PLANE}:{ADAPTER_PORT}{path}"
        return json.loads(Namespaces(holder).run(sys.executable, "-c", ASK, url, *pair))

    def value(self, name: str) -> float:
        """Return the largest value of a custom metric of the pods, as the adapter serves it through kube-apiserver."""
        return max(quantity(each["value"]) for each in self.raw(f"{CUSTOM}/{name}")["items"])


def quantity(text: str) -> float:
    """Return a number as Kubernetes writes it."""
    scales = {"m": 1e-3, "k": 1e3, "M": 1e6}
    return float(text[:-1]) * scales[text[-1]] if text[-1] in scales else float(text)


@pytest.fixture(scope="module")
def scene(control_plane: Cluster, prometheus_adapter: Path) -> Iterator[Adapted]:
    """Give a cluster whose custom metrics are the adapter's and whose external ones `tessera metrics`'."""
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        pytest.skip("Prometheus is not on PATH")
    control_plane.install()
    folder, holder = control_plane.folder, control_plane.processes.get("namespaces")
    assert holder is not None
    made = made_of_both()
    control_plane.apply(*made)
    inside = Namespaces(holder).enter()
    one = Adapted(control_plane, folder / "load")
    one.load(IDLE)
    one.scrape()
    kubeconfig = str(control_plane.pki.kubeconfig("inside", "admin", inside_url()))
    load = (sys.executable, str(Path(__file__).with_name("modelmetrics.py")), CONTROL_PLANE, str(LOAD_PORT))
    processes = {
        "load": (*load, str(folder / "load")),
        "metrics": (
            *(str(Path(sys.executable).with_name("tessera")), "metrics", "--host", CONTROL_PLANE),
            *("--port", str(API_PORT), "--self-signed", str(folder / "metrics-certificate")),
        ),
        "prometheus": (
            *(prometheus, f"--config.file={prometheus_settings(folder)}", f"--storage.tsdb.path={folder / 'tsdb'}"),
            f"--web.listen-address={CONTROL_PLANE}:{PROMETHEUS_PORT}",
        ),
        "adapter": (
            *(str(prometheus_adapter), f"--config={adapter_settings(folder)}", f"--secure-port={ADAPTER_PORT}"),
            f"--prometheus-url=http://{CONTROL_PLANE}:{PROMETHEUS_PORT}",
            f"--cert-dir={folder / 'adapter-certificate'}",
            f"--client-ca-file={control_plane.pki.certificate('ca')}",
            *(f"--{each}-kubeconfig={kubeconfig}" for each in ("lister", "authentication", "authorization")),
            "--metrics-relist-interval=15s",
        ),
    }
    own = {"metrics": {"KUBECONFIG": str(control_plane.account_kubeconfig("metrics"))}}
    for name, command in processes.items():
        variables = {**environment(), **own.get(name, {})}
        control_plane.processes.start(name, command, inside=inside, environment=variables)

    def details() -> str:
        return "\n".join(control_plane.processes.last_words(name) for name in processes)

    try:
        for each in made:
            if each["kind"] == "APIService":
                name = each["metadata"]["name"]
                until(name, lambda name=name: available(control_plane, name), timeout_s=120, found=details)  # type: ignore[misc]
        yield one
    finally:
        for name in processes:
            control_plane.processes.stop(name)
        for each in reversed(made):
            namespace = each["metadata"].get("namespace", "")
            where = ("-n", namespace) if namespace else ()
            control_plane.kubectl("delete", each["kind"], each["metadata"]["name"], *where, "--ignore-not-found")


def made_of_both() -> list[dict[str, Any]]:
    """Return the objects of `tessera metrics` for external metrics alone, and those of the adapter."""
    values = {"metricsApi": {"enabled": True, "custom": False}}
    made = [each for each in objects("metrics.yaml", values=values) if each["kind"] != "Deployment"]
    service = next(each for each in made if each["kind"] == "Service")
    namespace = service["metadata"]["namespace"]
    away = {"type": "ExternalName", "externalName": CONTROL_PLANE}
    service["spec"] = away  # no proxy leads a Service's address to its pods here
    for each in made:
        if each["kind"] == "APIService":
            each["spec"]["service"]["port"] = API_PORT
    metadata = {"name": "prometheus-adapter", "namespace": namespace}
    made.append({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": away})
    for version in ("v1beta1", "v1beta2"):
        spec = {
            "group": "custom.metrics.k8s.io",
            "version": version,
            "insecureSkipTLSVerify": True,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "service": {**metadata, "port": ADAPTER_PORT},
        }
        name = f"{version}.custom.metrics.k8s.io"
        made.append(
            {
                "apiVersion": "apiregistration.k8s.io/v1",
                "kind": "APIService",
                "metadata": {"name": name},
                "spec": spec,
            }
        )
    return made


def prometheus_settings(folder: Path) -> Path:
    """Write settings with the generated rules, the pods in a file, and the interval of a ModelServer's PodMonitor."""
    path = folder / "prometheus.yaml"
    settings = {
        "global": {"scrape_interval": "15s", "evaluation_interval": "15s"},
        "rule_files": [str(ROOT / "deploy/chart/files/monitoring/model-servers.yaml")],
        "scrape_configs": [
            {
                "job_name": "model-servers",
                "file_sd_configs": [{"files": [str(folder / "targets.json")], "refresh_interval": "5s"}],
            }
        ],
    }
    path.write_text(yaml.safe_dump(settings))
    return path


def adapter_settings(folder: Path) -> Path:
    """Write the generated rules as they are, and the published one."""
    path = folder / "adapter.yaml"
    settings = yaml.safe_load((ROOT / "deploy/chart/files/monitoring/prometheus-adapter.yaml").read_text())
    path.write_text(yaml.safe_dump({**settings, "rules": [*settings["rules"], PUBLISHED]}))
    return path


def pipelines() -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Return for each pipeline its Deployments, whose autoscalers look at moments of their own, and their metrics."""
    # No value of a HorizontalPodAutoscaler is smaller than 1m; requests wait 2 s.
    recipe = {
        "type": "Pods",
        "pods": {"metric": {"name": "published_queue_us"}, "target": {"type": "AverageValue", "averageValue": "50"}},
    }

    def external(name: str, server: str, target: str) -> dict[str, Any]:
        metric = {"name": name, "selector": {"matchLabels": {SERVER: server}}}
        of_each = {"type": "AverageValue", "averageValue": target}
        return {"type": "External", "external": {"metric": metric, "target": of_each}}

    servers = {which: [f"{which}{number}" for number in range(1, EACH + 1)] for which in ("recipe", "rule", "decided")}
    return {
        "recipe": [(name, recipe) for name in servers["recipe"]],
        "rule": [(name, external("tessera_queue_time_seconds", name, "1m")) for name in servers["rule"]],
        "decided": [(name, external("tessera_replicas", name, "1")) for name in servers["decided"]],
    }


def test_the_adapter_serves_what_tessera_serves_and_both_scale(scene: Adapted) -> None:
    """Ten requests end in a second and each waited two seconds: all metrics say so."""
    made = pipelines()
    names = [name for same in zip(*made.values(), strict=True) for name, _ in same]
    metrics = {name: metric for each in made.values() for name, metric in each}

    def found() -> str:
        return "\n".join(f"{name}: {scene.conditions(name)}" for name in names)

    def steady() -> bool:
        return scene.settle() == dict.fromkeys(names, 1) and scene.measured() == set(names)

    try:
        for name in names:
            scene.serve(name, metrics[name])
        until("metrics of all", steady, timeout_s=240, found=found)
        time.sleep(LEARNED_S)
        until("one replica each still", steady, timeout_s=60, found=found)
        after_s = reactions(scene, names)
        reacted = {which: sorted(after_s[name] for name, _ in each) for which, each in made.items()}
        sys.stdout.write(f"seconds from overload to more replicas: {reacted}\n")
        # The same rule, by either pipeline: each measures every 15 s, and then the HorizontalPodAutoscaler reads it.
        assert median(reacted["rule"]) < median(reacted["recipe"]) + 30
        # An overload that is twice the slots is one pass of `tessera metrics`, and one of the HorizontalPodAutoscaler;
        # another pass is left for what a busy machine takes.
        assert max(reacted["decided"]) < 3 * PASS_S + 5
        kept = [each[0][0] for each in made.values()]
        for name in names:
            if name not in kept:
                scene.remove(name)
        agreement(scene)
    finally:
        scene.load(IDLE)
        for name in names:
            scene.remove(name)


def reactions(scene: Adapted, names: list[str]) -> dict[str, float]:
    """Return how long after the load came each Deployment has more replicas in its spec."""
    scene.load(BUSY)
    begun_s, found = time.monotonic(), dict[str, float]()

    def all_more() -> bool:
        for name, replicas in scene.desired().items():
            if replicas > 1:
                found.setdefault(name, round(time.monotonic() - begun_s, 1))
        return found.keys() >= set(names)

    until("more replicas", all_more, timeout_s=200, found=lambda: "\n".join(map(scene.conditions, names)))
    return found


def agreement(scene: Adapted) -> None:
    """All that the adapter serves of the generated rules is what `tessera metrics` says of the same pods."""
    wait_s = float(BUSY.split()[1])
    served = {each["name"] for each in scene.raw("/apis/external.metrics.k8s.io/v1beta1")["resources"]}
    own = {each["name"] for each in scene.adapter("/apis/external.metrics.k8s.io/v1beta1")["resources"]}
    assert own == served - {"tessera_replicas"}

    def values() -> dict[str, tuple[float, float]]:
        scene.settle()
        found = {
            "per pod": (scene.value("tessera_queue_time_seconds"), wait_s),
            "per pod in us": (scene.value("avg_time_queue_us"), wait_s * 1e6),
        }
        for name in sorted(own):
            theirs = scene.adapter(f"{EXTERNAL}/{name}?labelSelector=serving_tessera_dev_server%3Ddecided1")["items"]
            (ours,) = scene.raw(f"{EXTERNAL}/{name}?labelSelector={SERVER}%3Ddecided1")["items"]
            found[name] = sum(quantity(each["value"]) for each in theirs), quantity(ours["value"])
        return found

    def agree() -> bool:
        found = values()
        assert len(found) == 5
        return all(theirs == pytest.approx(ours, rel=0.1) for theirs, ours in found.values())

    until("the adapter and tessera metrics say the same", agree, timeout_s=240, found=lambda: f"{values()}")
    sys.stdout.write(f"the adapter's values and tessera metrics': {values()}\n")
