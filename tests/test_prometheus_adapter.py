"""The generated rules in a real Prometheus and a real prometheus-adapter: its answers are those of `tessera metrics`.

The Kubernetes API that the adapter asks which pods there are is a table here: discovery, and one list of pods.
"""

import json
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from harness.prometheusserver import history, serving_history
from harness.serving import free_port, served, until_listening
from tessera.api.prometheus.engines import read_counters
from tessera.core.serving.observed import Observation, ServerMemory, observe
from testbed.programs import ADAPTER, programs
from testbed.requirements import missing

pytestmark = pytest.mark.long

RULES = Path(__file__).parents[1] / "deploy/monitoring"
STEP_S = 15
GAUGES = ("nv_inference_pending_request_count", "vllm:num_requests_waiting", "vllm:num_requests_running")
PODS: dict[str, tuple[str, dict[str, float]]] = {
    "triton-1": (
        "ranker",
        {
            "nv_inference_queue_duration_us": 6e6,
            "nv_inference_request_success": 3,
            "nv_inference_compute_input_duration_us": 1e5,
            "nv_inference_compute_infer_duration_us": 3e6,
            "nv_inference_compute_output_duration_us": 1e5,
            "nv_inference_pending_request_count": 4,
        },
    ),
    "vllm-1": (
        "chat",
        {
            "vllm:request_queue_time_seconds_sum": 9,
            "vllm:request_queue_time_seconds_count": 3,
            "vllm:request_inference_time_seconds_sum": 30,
            "vllm:request_success_total": 3,
            "vllm:num_requests_waiting": 2,
            "vllm:num_requests_running": 5,
        },
    ),
    "vllm-2": (
        "chat",
        {
            "vllm:request_queue_time_seconds_sum": 0,
            "vllm:request_queue_time_seconds_count": 0,
            "vllm:request_inference_time_seconds_sum": 0,
            "vllm:request_success_total": 0,
            "vllm:num_requests_waiting": 0,
            "vllm:num_requests_running": 1,
        },
    ),
}
"""The server of each pod, and by how much its counters grow in a step; gauges stay."""
TYPES = "".join(f"# TYPE {name} gauge\n" for name in GAUGES)


class Api(BaseHTTPRequestHandler):
    """What the adapter asks Kubernetes."""

    answers: ClassVar[dict[str, Any]] = {
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
        "/api/v1": {
            "kind": "APIResourceList",
            "groupVersion": "v1",
            "resources": [
                {"name": "pods", "singularName": "pod", "namespaced": True, "kind": "Pod", "verbs": ["list"]},
                {"name": "namespaces", "singularName": "namespace", "kind": "Namespace", "verbs": ["list"]},
            ],
        },
        "/api/v1/namespaces/default/pods": {
            "kind": "PodList",
            "apiVersion": "v1",
            "items": [
                {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name, "namespace": "default"}} for name in PODS
            ],
        },
    }

    def do_GET(self) -> None:
        self._answer(self.answers.get(self.path.partition("?")[0]))

    def do_POST(self) -> None:
        """Answer whether somebody may read metrics: they may."""
        self.rfile.read(int(self.headers["Content-Length"]))
        version = "authorization.k8s.io/v1"
        self._answer({"kind": "SubjectAccessReview", "apiVersion": version, "status": {"allowed": True}})

    def _answer(self, found: dict[str, Any] | None) -> None:
        body = json.dumps(found or {"kind": "Status", "status": "Failure", "code": 404}).encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def adapter(tmp_path: Path) -> Iterator[str]:
    """Give the address of an adapter that asks a Prometheus which scraped the pods for ten minutes until now."""
    if lack := missing():
        pytest.skip(f"prometheus-adapter is built as the testbed's programs are, and here lacks: {lack}")
    program = programs(lambda *_: None, modules=ADAPTER) / "adapter"
    text = TYPES + "".join(
        f'{name}{{namespace="default",pod="{pod}",serving_tessera_dev_server="{server}"}} {value}\n'
        for each in sorted({name for _, values in PODS.values() for name in values})
        for pod, (server, values) in PODS.items()
        for name, value in values.items()
        if name == each
    )
    now_s = time.time()
    times = [now_s - 2 - STEP_S * step for step in reversed(range(40))]
    rules = {
        "global": {"evaluation_interval": "1s"},
        "rule_files": [str(RULES / "model-servers.yaml")],
    }
    port = free_port()
    with (
        serving_history(tmp_path, history(text.encode(), times), settings=rules) as prometheus,
        served(ThreadingHTTPServer(("127.0.0.1", 0), Api)) as api,
    ):
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "a", "cluster": {"server": f"http://127.0.0.1:{api.server_port}"}}],
            "users": [{"name": "a", "user": {}}],
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
            "current-context": "a",
        }
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(json.dumps(config))
        command = [
            *(str(program), f"--config={RULES / 'prometheus-adapter.yaml'}", f"--prometheus-url={prometheus}"),
            *(f"--secure-port={port}", f"--cert-dir={tmp_path / 'certificate'}", "--bind-address=127.0.0.1"),
            *(f"--{each}-kubeconfig={kubeconfig}" for each in ("lister", "authentication", "authorization")),
            *("--authentication-skip-lookup"),
            *("--enable-priority-and-fairness=false", "--metrics-relist-interval=1s", "--metrics-max-age=1m"),
        ]
        with (tmp_path / "adapter.log").open("wb") as log, subprocess.Popen(command, stderr=log) as running:
            try:
                until_listening(port, "prometheus-adapter", 30)
                yield f"https://127.0.0.1:{port}"
            finally:
                running.terminate()


def items(address: str, path: str) -> list[dict[str, Any]]:
    """Return the values at a path, when there are any."""
    until = time.monotonic() + 40
    trusting = ssl._create_unverified_context()  # its certificate is of its own making
    while True:
        try:
            with urllib.request.urlopen(f"{address}/apis/{path}", context=trusting, timeout=10) as answer:
                found: list[dict[str, Any]] = json.loads(answer.read())["items"]
        except urllib.error.HTTPError as error:
            if error.code != 404:  # not listed yet
                pytest.fail(error.read().decode())
            found = []
        if found:
            return found
        assert time.monotonic() < until, path
        time.sleep(0.5)


def quantity(text: str) -> float:
    """Return a number as Kubernetes writes it."""
    return float(text[:-1]) / 1000 if text.endswith("m") else float(text.replace("k", "e3").replace("M", "e6"))


def tesseras(server: str | None = None, pod: str | None = None) -> Observation:
    """Return what `tessera metrics` makes of the same counters, of a server or of one pod."""
    memory, found = ServerMemory(), None
    chosen = {name: values for name, (of, values) in PODS.items() if server == of or pod == name}
    for step in (30, 38):
        counters = {
            name: read_counters(
                name,
                "".join(f"{k} {v if k in GAUGES else v * step}\n" for k, v in values.items()).encode(),
                at_s=1000.0 + STEP_S * step,
                started_s=0.0,
            )
            for name, values in chosen.items()
        }
        memory, found = observe(memory, counters, at_s=1000.0 + STEP_S * step, replicas=len(chosen), ready=len(chosen))
    assert found is not None
    return found


def test_its_answers_are_those_of_tessera_metrics(adapter: str) -> None:
    metrics: dict[str, Callable[[Observation], Any]] = {
        "tessera_queue_time_seconds": lambda found: found.queue_time_s,
        "tessera_requests_waiting": lambda found: found.waiting,
        "tessera_requests_in_flight": lambda found: found.in_flight,
        "avg_time_queue_us": lambda found: 1e6 * float(found.queue_time_s),  # type: ignore[arg-type]  # never missing
    }
    compared = 0
    for name, value_of in metrics.items():
        for version in ("v1beta1", "v1beta2"):
            found = items(adapter, f"custom.metrics.k8s.io/{version}/namespaces/default/pods/*/{name}")
            values = {each["describedObject"]["name"]: quantity(each["value"]) for each in found}
            want = {pod: value_of(tesseras(pod=pod)) for pod in PODS}
            assert values == pytest.approx(want, rel=0.01, abs=0.01), name
            compared += len(values)
    for name, value_of in list(metrics.items())[:3]:
        for server in ("ranker", "chat"):
            selected = f"labelSelector=serving_tessera_dev_server%3D{server}"
            (one,) = items(adapter, f"external.metrics.k8s.io/v1beta1/namespaces/default/{name}?{selected}")
            assert one["metricLabels"]["serving_tessera_dev_server"] == server
            assert quantity(one["value"]) == pytest.approx(value_of(tesseras(server)), rel=0.01, abs=0.01), name
            compared += 1
        every = items(adapter, f"external.metrics.k8s.io/v1beta1/namespaces/default/{name}")
        assert {each["metricLabels"]["serving_tessera_dev_server"] for each in every} == {"ranker", "chat"}
    assert compared == 30
