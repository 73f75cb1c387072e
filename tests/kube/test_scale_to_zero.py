"""A real Triton on a real kubelet at zero, woken by a request that a gateway could not pass on, serves it.

Prometheus scrapes the gateway and the pods, `tessera metrics` asks it for both, the controller takes the steps between
none and one, and kube-proxy leads the Service's address to the pods.
"""

import asyncio
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from builders.modelservers import model_server, model_servers_binding
from kube.conftest import brought_up
from kube.test_controller import account
from kube.test_metrics_api import API_PORT, available, write_whole
from kube.test_model_servers import offer
from tessera.clients.kube import HttpKube
from tessera.controller.modelservers import ModelServers
from tessera.measures import Measures
from testbed.addresses import CONTROL_PLANE
from testbed.cluster import Cluster, Desired
from testbed.deploy import objects
from testbed.namespaces import Namespaces, environment
from testbed.node import Node
from testbed.processes import until
from testbed.programs import PROMETHEUS, PROXY, programs
from testbed.services import start_proxy
from testbed.tesseraimage import TRITON, triton_image

pytestmark = [pytest.mark.anyio, pytest.mark.long]

NS, NAME = "default", "sleepy"
REPOSITORY = "/var/lib/repository"
GATEWAY_PORT, PROMETHEUS_PORT = 8080, 9091
BODY = '{"inputs": [{"name": "X", "shape": [1, 1], "datatype": "FP32", "data": [7]}]}'
QUERY = 'sum by (namespace, service) (increase(gateway_requests_total{code="503"}[1m]))'
SPEC = {
    "image": TRITON,
    "model": {"hostPath": REPOSITORY},
    "gpu": {"resource": "nvidia.com/mig-1g.10gb"},
    "replicas": {"min": 0, "max": 2},
    "autoscaling": {"slots": 4, "idleSeconds": 60},
    "resources": {"cpu": "10m", "memory": "512Mi", "sharedMemory": "64Mi"},
    "terminationGracePeriodSeconds": 30,
}
INFER = """
import sys, urllib.error, urllib.request
try:
    with urllib.request.urlopen(sys.argv[1], data=sys.argv[2].encode(), timeout=30) as answer:
        print(answer.status, answer.read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
"""


class Sleeper:
    """The server, what stands before it, and who observes both."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.node: Node = cluster.nodes[0]

    def asked(self) -> tuple[int, str]:
        """Return what a client gets of the gateway: a status, and the answer."""
        url = f"http://{self.node.address}:{GATEWAY_PORT}/v2/models/sleeper/infer"
        code, _, body = self.node.run(sys.executable, "-c", INFER, url, BODY).partition(" ")
        return int(code), body

    def observed(self) -> tuple[int, int]:
        """Return replicas that the Deployment is asked for and that serve; Prometheus learns of the pods meanwhile."""
        pods = self.cluster.get("pods", "-n", NS, "-l", f"serving.tessera.dev/server={NAME}")["items"]
        groups = [
            {
                "targets": [f"{each['status']['podIP']}:8002"],
                "labels": {"namespace": NS, "pod": each["metadata"]["name"]},
            }
            for each in pods
            if each["status"].get("podIP")
        ]
        write_whole(self.cluster.folder / "pods.json", json.dumps(groups))
        found = self.cluster.get("deployment", NAME, "-n", NS)
        return found["spec"]["replicas"], found.get("status", {}).get("readyReplicas", 0)

    async def until(self, what: str, holds: Callable[[], bool], within_s: float = 240) -> None:
        """Wait without keeping the controller from its work."""
        await asyncio.to_thread(until, what, holds, timeout_s=within_s, found=self.words)

    def words(self) -> str:
        """Return what everybody says."""
        there = self.cluster.kubectl("get", "modelservers,hpa,pods,events", "-n", NS, "-o", "wide")
        server = json.dumps(self.cluster.get("modelserver", NAME, "-n", NS).get("status"))
        said = (self.cluster.processes.last_words(each) for each in ("metrics", "node1-prometheus", "node1-gateway"))
        return "\n".join((there, server, *said))


@pytest.fixture
def sleeper(program_folder: Path) -> Iterator[Sleeper]:
    """Give a cluster whose node has kube-proxy, Triton's image and a model, with `tessera metrics` and Prometheus."""
    prometheus = str(programs(lambda *_: None, modules=PROMETHEUS) / "prometheus")
    with brought_up("sleeper", program_folder, Desired(nodes=1)) as cluster:
        cluster.install()
        one = Sleeper(cluster)
        node = one.node
        proxy = programs(lambda *_: None, modules=PROXY) / "kube-proxy"
        start_proxy(node, cluster.pki.folder / "inside.kubeconfig", proxy)
        node.import_image(triton_image(lambda _: None))
        offer(cluster)
        shutil.copytree(Path(__file__).parents[2] / "examples/9-model-servers/sleeper", node.path(REPOSITORY))
        settings = cluster.folder / "prometheus.yaml"
        gateway = {"targets": [f"{node.address}:{GATEWAY_PORT}"]}
        jobs: list[dict[str, Any]] = [
            {
                "job_name": "pods",
                "file_sd_configs": [{"files": [str(cluster.folder / "pods.json")], "refresh_interval": "5s"}],
            },
            # The gateway speaks for Services.
            {"job_name": "gateway", "static_configs": [gateway], "honor_labels": True},
        ]
        settings.write_text(yaml.safe_dump({"global": {"scrape_interval": "5s"}, "scrape_configs": jobs}))
        flags = (f"--config.file={settings}", f"--storage.tsdb.path={cluster.folder / 'tsdb'}")
        node.start_process("prometheus", (prometheus, *flags, f"--web.listen-address=0.0.0.0:{PROMETHEUS_PORT}"))
        start_metrics(cluster, f"http://{node.address}:{PROMETHEUS_PORT}")
        yield one


def start_metrics(cluster: Cluster, prometheus: str) -> None:
    """Start `tessera metrics` beside the control plane, and wait until kube-apiserver passes questions on to it."""
    made = [each for each in objects("metrics.yaml") if each["kind"] != "Deployment"]
    for each in made:
        if each["kind"] == "Service":
            each["spec"] = {"type": "ExternalName", "externalName": CONTROL_PLANE}
        if each["kind"] == "APIService":
            each["spec"]["service"]["port"] = API_PORT
    cluster.apply(*made)
    holder = cluster.processes.get("namespaces")
    assert holder is not None
    command = (
        *(str(Path(sys.executable).with_name("tessera")), "metrics", "--host", CONTROL_PLANE),
        *("--port", str(API_PORT), "--self-signed", str(cluster.folder / "metrics-certificate")),
        *("--prometheus", prometheus, "--wake-query", QUERY),
    )
    variables = {**environment(), "KUBECONFIG": str(cluster.account_kubeconfig("metrics"))}
    cluster.processes.start("metrics", command, inside=Namespaces(holder).enter(), environment=variables)
    external = "v1beta1.external.metrics.k8s.io"
    said = lambda: cluster.processes.last_words("metrics")  # noqa: E731  # once, and short
    until(external, lambda: available(cluster, external), timeout_s=120, found=said)


async def test_a_refused_request_wakes_a_real_triton_which_serves_and_is_scaled_to_zero_again(
    sleeper: Sleeper, tmp_path: Path
) -> None:
    cluster = sleeper.cluster
    cluster.apply(model_servers_binding(NS), model_server(SPEC, name=NAME, namespace=NS))
    async with HttpKube.connect(account(cluster, tmp_path)) as own:
        running = asyncio.create_task(ModelServers(own, [NS]).run(Measures()))
        try:
            await sleeper.until("its Service", lambda: bool(service_address(cluster)))
            place = (sleeper.node.address, str(GATEWAY_PORT), f"http://{service_address(cluster)}:8000", NS, NAME)
            script = str(Path(__file__).with_name("gateway.py"))
            sleeper.node.start_process("gateway", (sys.executable, script, *place))
            await sleeper.until("a new server begins with one replica", lambda: sleeper.observed() == (1, 1))
            await sleeper.until("no replica while it is idle", lambda: sleeper.observed() == (0, 0))
            # Until its last pod has ended, kube-proxy leads to that one.
            await sleeper.until("a refusal", lambda: sleeper.asked()[0] == 503)
            refused_s = time.monotonic()
            await sleeper.until("a replica for who was refused", lambda: sleeper.observed()[0] == 1)
            woken_s = time.monotonic()
            await sleeper.until("an answer", lambda: answered(sleeper))
            served_s = time.monotonic()
            sys.stdout.write(
                f"a replica {woken_s - refused_s:.0f} s after the refusal, served {served_s - woken_s:.0f} s later\n"
            )
            await sleeper.until("no replica again", lambda: sleeper.observed() == (0, 0))
            events = cluster.get("events", "-n", NS, "--field-selector=reason=ReplicasProposed")["items"]
            reasons = {each["message"] for each in events}
            assert any(", and there is no replica" in each for each in reasons), reasons
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def service_address(cluster: Cluster) -> str:
    """Return the address of the server's Service; empty where there is none yet."""
    found: list[dict[str, Any]] = cluster.get("services", "-n", NS, "-l", f"serving.tessera.dev/server={NAME}")["items"]
    return str(found[0]["spec"]["clusterIP"]) if found else ""


def answered(sleeper: Sleeper) -> bool:
    """Return whether a client is served, and by the model."""
    sleeper.observed()
    code, body = sleeper.asked()
    if code != 200:
        return False
    assert json.loads(body)["outputs"][0]["data"] == [7]
    return True
