"""The same rules and the same Prometheus, given to a real prometheus-adapter and to `tessera metrics`.

Both answer alike, and with the generated rules what `tessera metrics` measures by itself. The Kubernetes API that the
adapter asks which objects there are is a table here: discovery, and lists.
"""

import asyncio
import json
import ssl
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from builders.adapterrules import corrected
from harness.prometheusserver import history, serving_history
from harness.serving import free_port, served, until_listening
from tessera.api.kubernetes.labelselectors import read_selector
from tessera.api.kubernetes.metrics.answers import quantity_text
from tessera.api.kubernetes.metrics.paths import Custom, External
from tessera.api.prometheus.engines import read_counters
from tessera.clients.kube import PODS as POD_KIND
from tessera.clients.kube import SERVICES, MemoryKube
from tessera.clients.prometheus import HttpMetrics
from tessera.core.serving.metrics.observed import ServerObservation, ServerState, observe
from tessera.errors import InvalidInput
from tessera.log import logger
from tessera.measures import Measures
from tessera.server.metrics.adaptermetrics import AdapterMetrics, RulesFile, RulesSource
from tessera.server.metrics.sources import JoinedSources
from testbed.programs import ADAPTER, programs
from testbed.requirements import missing

pytestmark = pytest.mark.long

RULES = Path(__file__).parents[1] / "deploy/chart/files/monitoring"
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
                {
                    "name": "services",
                    "singularName": "service",
                    "namespaced": True,
                    "kind": "Service",
                    "verbs": ["list"],
                },
            ],
        },
        "/api/v1/namespaces/default/pods": {
            "kind": "PodList",
            "apiVersion": "v1",
            "items": [
                {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name, "namespace": "default"}} for name in PODS
            ],
        },
        "/api/v1/namespaces/default/services": {
            "kind": "ServiceList",
            "apiVersion": "v1",
            "items": [
                {"kind": "Service", "apiVersion": "v1", "metadata": {"name": "web", "namespace": "default"}},
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


@contextmanager
def adapting(folder: Path, rules: Path, text: str) -> Iterator[tuple[str, str]]:
    """Give the addresses of an adapter with these rules, and of the Prometheus that it asks.

    Args:
        folder: for their files.
        rules: the adapter's configuration.
        text: what Prometheus scraped for ten minutes until now, counters growing.

    """
    if lack := missing():
        pytest.skip(f"prometheus-adapter is built as the testbed's programs are, and here lacks: {lack}")
    program = programs(lambda *_: None, modules=ADAPTER) / "adapter"
    now_s = time.time()
    times = [now_s - 2 - STEP_S * step for step in reversed(range(40))]
    settings = {"global": {"evaluation_interval": "1s"}, "rule_files": [str(RULES / "model-servers.yaml")]}
    port = free_port()
    with (
        serving_history(folder, history(text.encode(), times), settings=settings) as prometheus,
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
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(json.dumps(config))
        command = [
            *(str(program), f"--config={rules}", f"--prometheus-url={prometheus}"),
            *(f"--secure-port={port}", f"--cert-dir={folder / 'certificate'}", "--bind-address=127.0.0.1"),
            *(f"--{each}-kubeconfig={kubeconfig}" for each in ("lister", "authentication", "authorization")),
            *("--authentication-skip-lookup"),
            *("--enable-priority-and-fairness=false", "--metrics-relist-interval=1s", "--metrics-max-age=10m"),
        ]
        with (folder / "adapter.log").open("wb") as log, subprocess.Popen(command, stderr=log) as running:
            try:
                until_listening(port, "prometheus-adapter", 30)
                yield f"https://127.0.0.1:{port}", prometheus
            finally:
                running.terminate()


@pytest.fixture
def adapter(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Give the addresses of an adapter with the generated rules, and of its Prometheus."""
    text = TYPES + "".join(
        f'{name}{{namespace="default",pod="{pod}",serving_tessera_dev_server="{server}"}} {value}\n'
        for each in sorted({name for _, values in PODS.values() for name in values})
        for pod, (server, values) in PODS.items()
        for name, value in values.items()
        if name == each
    )
    with adapting(tmp_path, RULES / "prometheus-adapter.yaml", text) as addresses:
        yield addresses


def asked(address: str, path: str) -> Any:
    """Return what the adapter answers at a path."""
    trusting = ssl._create_unverified_context()  # its certificate is of its own making
    with urllib.request.urlopen(f"{address}/apis/{path}", context=trusting, timeout=10) as answer:
        return json.loads(answer.read())


def items(address: str, path: str) -> list[dict[str, Any]]:
    """Return the values at a path, when there are any."""
    until = time.monotonic() + 40
    while True:
        try:
            found: list[dict[str, Any]] = asked(address, path)["items"]
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


def tesseras(server: str | None = None, pod: str | None = None) -> ServerObservation:
    """Return what `tessera metrics` makes of the same counters, of a server or of one pod."""
    memory, found = ServerState(), None
    chosen = {name: values for name, (of, values) in PODS.items() if server == of or pod == name}
    for step in (30, 38):
        at_s = 1000.0 + STEP_S * step
        counters = {
            name: read_counters(
                name,
                "".join(f"{k} {v if k in GAUGES else v * step}\n" for k, v in values.items()).encode(),
                at_s=at_s,
                started_s=0.0,
            )
            for name, values in chosen.items()
        }
        memory, found = observe(memory, counters, at_s=at_s, replicas=len(chosen), ready=chosen.keys())
    assert found is not None
    return found


async def reading(rules: Path, prometheus: str) -> AdapterMetrics:
    """Return what reads the rules in the adapter's place, and has asked Prometheus for its series."""
    kube = MemoryKube()
    for each in Api.answers["/api/v1/namespaces/default/pods"]["items"]:
        await kube.create(POD_KIND, each)
    for each in Api.answers["/api/v1/namespaces/default/services"]["items"]:
        await kube.create(SERVICES, each)
    source = RulesSource(file=RulesFile(rules), connect=HttpMetrics, url=prometheus)
    one = AdapterMetrics(source, kube, logger(), Measures(), served=JoinedSources(()))
    await one.discover()
    return one


def listed(address: str, group: str) -> set[str]:
    """Return the metrics of a group in the adapter's discovery."""
    return {each["name"] for each in asked(address, f"{group}/v1beta1")["resources"]}


def alike(address: str, one: AdapterMetrics, path: str, metric_selector: str = "") -> int:
    """Compare what both answer of objects, and return how many values there are.

    Args:
        address: of the adapter.
        one: what reads the rules here.
        path: in namespace `default`: `pods/*/METRIC`, or `metrics/METRIC` of the namespace.
        metric_selector: which series count.

    """
    query = f"?metricLabelSelector={urllib.parse.quote(metric_selector)}" if metric_selector else ""
    found = items(address, f"custom.metrics.k8s.io/v1beta2/namespaces/default/{path}{query}")
    want = {each["describedObject"]["name"]: quantity(each["value"]) for each in found}
    resource, name, metric = path.split("/") if path.count("/") == 2 else ("namespaces", "default", path[8:])
    requested = Custom(
        version="v1beta2",
        resource=resource,
        metric=metric,
        namespace="" if resource == "namespaces" else "default",
        name=name.removeprefix("*"),
        metric_selector=read_selector(metric_selector, "test"),
    )
    values = {each.name: quantity(quantity_text(each.value, metric)) for each in asyncio.run(value_of(one, requested))}
    assert values == pytest.approx(want, rel=0.01, abs=0.0011), path
    return len(values)


async def value_of(one: AdapterMetrics, requested: Custom) -> Any:
    return await one.values(requested)


def alike_external(address: str, one: AdapterMetrics, metric: str, selector: str = "") -> int:
    """Compare what both answer of an external metric, and return how many series there are."""
    query = f"?labelSelector={urllib.parse.quote(selector)}" if selector else ""
    found = items(address, f"external.metrics.k8s.io/v1beta1/namespaces/default/{metric}{query}")
    want = {json.dumps(each["metricLabels"], sort_keys=True): quantity(each["value"]) for each in found}
    requested = External(metric=metric, namespace="default", selector=read_selector(selector, "test"))
    series = asyncio.run(series_of(one, requested))
    values = {json.dumps(each.labels, sort_keys=True): quantity(quantity_text(each.value, metric)) for each in series}
    assert values == pytest.approx(want, rel=0.01, abs=0.0011), metric
    return len(values)


async def series_of(one: AdapterMetrics, requested: External) -> Any:
    return await one.series(requested)


def test_the_generated_rules_are_read_as_the_adapter_reads_them(adapter: tuple[str, str]) -> None:
    address, prometheus = adapter
    items(address, "custom.metrics.k8s.io/v1beta1/namespaces/default/pods/*/avg_time_queue_us")
    items(address, "external.metrics.k8s.io/v1beta1/namespaces/default/tessera_requests_in_flight")
    one = asyncio.run(reading(RULES / "prometheus-adapter.yaml", prometheus))
    assert {f"{resource}/{metric}" for resource, metric in one.custom()} == listed(address, "custom.metrics.k8s.io")
    assert one.external() == listed(address, "external.metrics.k8s.io")
    compared = 0
    for resource, metric in sorted(one.custom()):
        compared += alike(address, one, f"pods/*/{metric}" if resource == "pods" else f"metrics/{metric}")
    for metric in sorted(one.external()):
        compared += alike_external(address, one, metric)
        compared += alike_external(address, one, metric, "serving_tessera_dev_server in (chat,x)")
    assert compared == 4 * (3 + 1) + 3 * (2 + 1)


OTHERS = """\
- seriesQuery: 'depth{pod!=""}'
  resources: {overrides: {namespace: {resource: namespaces}, pod: {resource: Pod}}}
  name: {matches: '^(.)(.*)$', as: '${2}_of_$1'}
  metricsQuery: max(<<.Series>>{<<.LabelMatchers>>}) by (<<index .GroupBySlice 0>>)
- seriesQuery: 'depth{pod!=""}'
  resources: {template: '<<.Resource>>'}
  name: {as: nothing}
  metricsQuery: >-
    sum(0 * depth{pod=~"<<index .LabelValuesByName "pod">>"}) by (pod)
    / sum(0 * depth{<<.LabelMatchers>>}) by (pod)
"""
SERIES = {
    "container_cpu_usage_seconds_total": ("counter", {"pod": "triton-1", "container": "main"}, 3.7),
    "container_fs_reads_total": ("counter", {"pod": "vllm-1", "container": "main"}, 30),
    "http_requests_total": ("counter", {"pod": "vllm-2", "service": "web", "verb": "GET"}, 45),
    "queue_depth": ("gauge", {"name": "orders", "topic": "t"}, 7.6543),
    "queue_consumer_lag": ("gauge", {"name": "orders"}, 9),
    "depth": ("gauge", {"pod": "triton-1", "container": "main"}, -1.2345),
}


def test_published_rules_are_read_as_the_adapter_reads_them(tmp_path: Path) -> None:
    lines = list[str]()
    for name, (kind, labels, value) in SERIES.items():
        lines.append(f"# TYPE {name} {kind}")
        for number in (1, 2):
            every = {**labels, "namespace": "default", "instance": str(number)}
            written = ",".join(f'{key}="{each}"' for key, each in every.items())
            lines.append(f"{name}{{{written}}} {value * number}")
    # The adapter ends at a kind that the cluster does not have, and so comes without the rule about `brand`.
    begun, _, rest = corrected().partition("- seriesQuery: 'cheddar")
    rules = tmp_path / "rules.yaml"
    rules.write_text(f"{begun}{OTHERS}externalRules:{rest.partition('externalRules:')[2]}")
    with adapting(tmp_path, rules, "\n".join(lines) + "\n") as (address, prometheus):
        items(address, "custom.metrics.k8s.io/v1beta1/namespaces/default/pods/*/epth_of_d")
        items(address, "external.metrics.k8s.io/v1beta1/namespaces/default/queue_depth")
        one = asyncio.run(reading(rules, prometheus))
        assert {f"{resource}/{metric}" for resource, metric in one.custom()} == listed(address, "custom.metrics.k8s.io")
        assert one.external() == listed(address, "external.metrics.k8s.io") == {"queue_depth", "queue_consumer_lag"}
        paths = ("pods/*/cpu_usage", "pods/*/fs_reads", "pods/*/http_requests", "pods/*/epth_of_d", "pods/*/nothing")
        more = ("pods/vllm-2/http_requests", "services/*/http_requests", "metrics/http_requests", "metrics/cpu_usage")
        assert sum(alike(address, one, path) for path in (*paths, *more)) == 9
        assert alike(address, one, "pods/*/http_requests", "verb=GET,instance notin (2,3)") == 1
        assert alike_external(address, one, "queue_depth") == 1
        assert alike_external(address, one, "queue_depth", "instance=2,name") == 1
        # A namespace without a label for it: both refuse, and here the reason is reported.
        with pytest.raises(urllib.error.HTTPError, match="500"):
            asked(address, "external.metrics.k8s.io/v1beta1/namespaces/default/queue_consumer_lag")
        with pytest.raises(InvalidInput, match="the rule says no label that names namespaces"):
            asyncio.run(series_of(one, External(metric="queue_consumer_lag", namespace="default")))


def test_its_answers_are_those_of_tessera_metrics(adapter: tuple[str, str]) -> None:
    address, _ = adapter
    metrics: dict[str, Callable[[ServerObservation], Any]] = {
        "tessera_queue_time_seconds": lambda found: found.queue_time_s,
        "tessera_requests_waiting": lambda found: found.waiting,
        "tessera_requests_in_flight": lambda found: found.in_flight,
        "avg_time_queue_us": lambda found: 1e6 * float(found.queue_time_s),  # type: ignore[arg-type]  # never missing
    }
    compared = 0
    for name, value_of in metrics.items():
        for version in ("v1beta1", "v1beta2"):
            found = items(address, f"custom.metrics.k8s.io/{version}/namespaces/default/pods/*/{name}")
            values = {each["describedObject"]["name"]: quantity(each["value"]) for each in found}
            want = {pod: value_of(tesseras(pod=pod)) for pod in PODS}
            assert values == pytest.approx(want, rel=0.01, abs=0.01), name
            compared += len(values)
    for name, value_of in list(metrics.items())[:3]:
        for server in ("ranker", "chat"):
            selected = f"labelSelector=serving_tessera_dev_server%3D{server}"
            (one,) = items(address, f"external.metrics.k8s.io/v1beta1/namespaces/default/{name}?{selected}")
            assert one["metricLabels"]["serving_tessera_dev_server"] == server
            assert quantity(one["value"]) == pytest.approx(value_of(tesseras(server)), rel=0.01, abs=0.01), name
            compared += 1
        every = items(address, f"external.metrics.k8s.io/v1beta1/namespaces/default/{name}")
        assert {each["metricLabels"]["serving_tessera_dev_server"] for each in every} == {"ranker", "chat"}
    assert compared == 30
