"""What a real Prometheus stores of an agent that it scrapes as the Prometheus operator reads the chart's PodMonitor."""

import json
import re
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from builders.usage import GPU, allocation
from generate.dashboards.fleet import FLEET
from harness.prometheusserver import serving_history
from tessera.api.prometheus.exposition import exposition
from tessera.api.prometheus.gpuloads import load_queries, read_activity, read_contention, read_loads
from tessera.core.gpu.readings import GpuReading, ProcessReading
from tessera.core.usage.attribution import Owner, attribute_usage
from tessera.core.usage.contention import Contention
from tessera.core.usage.nodemetrics import node_families
from tessera.core.usage.observation import NodeUsage
from testbed.deploy import rendered

AGENT: Final = {
    "__meta_kubernetes_namespace": "tessera-system",
    "__meta_kubernetes_pod_name": "tessera-agent-x7k2p",
    "__meta_kubernetes_pod_container_name": "agent",
    "__meta_kubernetes_pod_node_name": "n1",
    "__meta_kubernetes_pod_label_app_kubernetes_io_component": "agent",
}
OPERATOR: Final = (
    {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
    {"source_labels": ["__meta_kubernetes_pod_container_name"], "target_label": "container"},
    {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
    {"target_label": "job", "replacement": "tessera-system/tessera"},
    {"target_label": "endpoint", "replacement": "metrics"},
)
"""What the operator writes before the relabelings of a PodMonitor.

Source: prometheus-operator v0.85.0, `pkg/prometheus/promcfg.go`, `generatePodMonitorConfig`.
"""
RELABELINGS: Final = {True: "those of the chart", False: "none"}


def shared_gpu() -> bytes:
    """Return what an agent exposes: a GPU with a power cap that two pods share, `busy` and `small`, and an idle one."""
    processes = (
        ProcessReading(pid=7, memory_mib=1500, sm_percent=80),
        ProcessReading(pid=8, memory_mib=700, sm_percent=15),
    )
    reading = GpuReading(memory_used_mib=3000, gpu_percent=99, clocks_event_reasons=0x4, processes=processes)
    owners = {7: Owner(uid="uid-busy", container="main"), 8: Owner(uid="uid-small", container="main")}
    allocations = (allocation("busy", allocated_mib=4096), allocation("small", allocated_mib=4096))
    idle = msgspec.structs.replace(GPU, uuid="GPU-idle", index=1, minor=1)
    unused = attribute_usage(idle, GpuReading(memory_used_mib=600, gpu_percent=0, clocks_event_reasons=0), (), {})
    return exposition(
        node_families(NodeUsage(node="n1", gpus=(attribute_usage(GPU, reading, allocations, owners), unused)))
    )


@contextmanager
def serving_metrics(text: bytes) -> Iterator[str]:
    """Give the address of a server of these metrics."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def relabelings(configs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a PodMonitor's relabelings as Prometheus has them in its file."""
    return [
        {re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", key): value for key, value in each.items()}
        for each in json.loads(json.dumps(configs))
    ]


def scrapes(address: str, *, chart: bool) -> dict[str, Any]:
    """Return the settings of a Prometheus that scrapes an agent there, with the relabelings of the chart or without."""
    (monitor,) = (
        each
        for each in rendered({"image": {"repository": "tessera"}, "metrics": {"podMonitor": True}})
        if each["kind"] == "PodMonitor"
    )
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    job = {
        "job_name": "tessera-system/tessera",
        "honor_labels": endpoint["honorLabels"],
        "scrape_interval": "1s",
        "static_configs": [{"targets": [address], "labels": AGENT}],
        "relabel_configs": [*OPERATOR, *(relabelings(endpoint["relabelings"]) if chart else ())],
        "metric_relabel_configs": relabelings(endpoint["metricRelabelings"]),
    }
    return {"scrape_configs": [job]}


def answer(url: str, path: str, parameters: dict[str, str]) -> bytes:
    with urllib.request.urlopen(f"{url}{path}?{urllib.parse.urlencode(parameters)}", timeout=30) as response:
        found: bytes = response.read()
        return found


def series(url: str, query: str) -> list[tuple[dict[str, str], float]]:
    found = msgspec.json.decode(answer(url, "/api/v1/query", {"query": query}))["data"]["result"]
    return [(each["metric"], float(each["value"][1])) for each in found]


@pytest.fixture(params=RELABELINGS, ids=list(RELABELINGS.values()))
def prometheus(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Give the address of a Prometheus that has scraped the agent, with the chart's relabelings and without."""
    with serving_metrics(shared_gpu()) as address:
        settings = scrapes(address, chart=request.param)
        with serving_history(tmp_path, "former 1 1790000000\n", settings=settings) as url:
            deadline = time.monotonic() + 60
            while not series(url, "tessera_gpu_lost"):
                assert time.monotonic() < deadline, "nothing was scraped"
                time.sleep(0.2)
            yield url


def series_labels(text: bytes, name: str, uuid: str) -> set[str]:
    """Return the names of the labels of an exposed series."""
    (line,) = (line for line in text.decode().splitlines() if line.startswith(f"{name}{{") and uuid in line)
    return set(re.findall(r'(\w+)="', line))


@pytest.mark.parametrize("prometheus", [True], ids=[RELABELINGS[True]], indirect=True)
def test_series_of_no_container_get_no_pod(prometheus: str) -> None:
    users = {labels["namespace"] for labels, _ in series(prometheus, '{pod!="",__name__=~"tessera_.+|DCGM_.+"}')}
    assert users == {"team"}
    (whole,) = series(prometheus, 'DCGM_FI_DEV_FB_USED{UUID="GPU-idle"}')
    monitored = {"instance", "job", "endpoint", "node"}
    assert monitored <= whole[0].keys()
    own = series_labels(shared_gpu(), "DCGM_FI_DEV_FB_USED", "GPU-idle")
    assert whole[0].keys() == own | monitored | {"__name__"}
    assert not {"namespace", "pod", "container", "tessera"} & whole[0].keys()
    ((up, _),) = series(prometheus, "up")
    assert (up["tessera"], up["node"]) == ("agent", "n1"), "the alerts of absent agents find and name it"


def test_the_busy_pod_is_named_however_prometheus_labels_the_agent(prometheus: str) -> None:
    answers = {name: answer(prometheus, "/api/v1/query", {"query": query}) for name, query in load_queries().items()}
    loads = read_loads(answers, "Prometheus", now=True)
    assert read_loads(answers, "Prometheus", now=False) == loads
    assert read_activity(loads) == {("n1", "team/busy"): 80, ("n1", "team/small"): 15}
    names: dict[str, Any] = {"caused_by": ("team/busy/main",), "affected": ("team/small/main",)}
    assert read_contention(loads) == {
        ("n1", GPU.uuid): (Contention(cause="power-cap", **names), Contention(cause="saturated", **names))
    }


def test_dashboards_count_what_containers_use_however_prometheus_labels_the_agent(prometheus: str) -> None:
    queries = {panel.title: panel.queries[0][0] for panel in FLEET.panels}
    ((_, used),) = series(prometheus, queries["Allocated memory in use"])
    assert used == pytest.approx(2200 / 8192)
    by_namespace = series(prometheus, queries["Memory in use by namespace"])
    assert by_namespace == [({"namespace": "team"}, 2200 * 2**20)]
