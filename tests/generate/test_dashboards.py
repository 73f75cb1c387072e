"""Grafana's dashboards: Prometheus can read every query, each asks for metrics that there are, and none stays empty."""

import asyncio
import contextlib
import itertools
import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import reduce
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
import yaml

from builders.exposed import node_metrics, process_metrics
from builders.measuredservers import autoscaler, deployment, model_pod, triton
from builders.quotaobjects import cluster_queue, resource_quota
from harness.metricsserver import MetricsServer as AskedMetrics
from harness.metricsserver import front_proxy_config, make_certificates
from harness.nodestorage import storing
from harness.prometheusserver import history, serving_history
from judges.dashboards import DASHBOARDS, NOT_WITH_VLLM, NVIDIA_DASHBOARD, queries
from tessera.certificates import Tls
from tessera.clients.kube import (
    AUTOSCALERS,
    CLUSTER_QUEUES,
    CONFIG_MAPS,
    DEPLOYMENTS,
    PODS,
    RESOURCE_QUOTAS,
    MemoryKube,
    Object,
)
from tessera.clients.prometheus import HttpMetrics, MemoryMetrics
from tessera.core.usage.activity import UNUSED_MIB
from tessera.core.usage.nodemetrics import NODE_METRICS
from tessera.core.usage.ownmetrics import OWN_METRICS
from tessera.server.metrics.adaptermetrics import RulesFile, RulesSource
from tessera.server.metrics.requestqueues import PrometheusQueues
from tessera.server.metrics.run import MetricsServer, MetricsSettings
from tessera.server.metrics.samples import ScrapedSamples
from tessera.server.settings import Page
from tessera.sim.embedded import Embedded

NOW_S = 1_790_000_000
TIMES_S = range(NOW_S - 7200, NOW_S + 1, 60)
SCRAPES = 40
APART_S = 120
"""Between two scrapes, as Prometheus stores them: together they are longer than an hour."""
AGREE = 5
"""Scrapes at which page and dashboard agree to the byte, at least."""
MONITORED = {"job": "tessera-system/tessera", "endpoint": "metrics"}
"""Labels of every target of the chart's PodMonitor."""
NODE = "h100-1"
"""Of the embedded cluster, the one whose devices the dashboard `nodes` shows."""


def as_labeled(text: bytes, **labels: str) -> bytes:
    """Return metrics with more labels, as Prometheus gives them to all that it scrapes of a pod."""
    more = ",".join(f'{name}="{value}"' for name, value in labels.items()).encode()
    text = re.sub(rb"^([a-zA-Z_]+)(?= )", rb"\1{}", text, flags=re.MULTILINE)
    return re.sub(
        rb"^([a-zA-Z_]+)\{(.?)",
        lambda found: found[1] + b"{" + more + b"," * (found[2] != b"}") + found[2],
        text,
        flags=re.MULTILINE,
    )


def test_the_panels_that_may_be_empty_are_panels() -> None:
    assert {panel["title"] for board in DASHBOARDS.values() for panel in board["panels"]} >= NOT_WITH_VLLM


def test_they_are_what_grafana_imports() -> None:
    assert DASHBOARDS.keys() == {"cost", "fleet", "nodes", "processes", "serving"}
    for name, each in DASHBOARDS.items():
        assert (each["uid"], each["templating"]["list"][0]["type"]) == (f"tessera-{name}", "datasource")
        assert len({panel["id"] for panel in each["panels"]}) == len(each["panels"])
        places = [
            (x, y)
            for grid in (panel["gridPos"] for panel in each["panels"])
            for x in range(grid["x"], grid["x"] + grid["w"])
            for y in range(grid["y"], grid["y"] + grid["h"])
        ]
        assert len(set(places)) == len(places)
        assert max(x for x, _ in places) < 24


@pytest.mark.parametrize("name", DASHBOARDS)
def test_queries_ask_for_metrics_that_there_are(name: str) -> None:
    known = {each.name for each in (*NODE_METRICS, *OWN_METRICS)}
    for title, expr in queries(DASHBOARDS[name]):
        requested = {each.removesuffix("_bucket") for each in re.findall(r"\b(?:tessera|DCGM_FI)_\w+", expr)}
        assert requested, title
        assert requested <= known, title
        assert "$" not in expr, title


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_selector_is_of_the_chosen_cluster(name: str) -> None:
    variables = {each["name"]: each for each in DASHBOARDS[name]["templating"]["list"]}
    assert variables["cluster"]["definition"] == "label_values(tessera_loop_age_seconds, cluster)"
    exprs = [target["expr"] for panel in DASHBOARDS[name]["panels"] for target in panel["targets"]]
    exprs += [each["definition"] for each in variables.values() if each["name"] == "node"]
    for expr in exprs:
        found = re.findall(r"\b(?:tessera|DCGM_FI)_\w+(.{19})?", expr)
        assert found
        assert set(found) == {'{cluster="$cluster"'}, expr


def test_what_is_exposed_of_model_servers_is_shown() -> None:
    shown = " ".join(expr for _, expr in queries(DASHBOARDS["serving"]))
    exposed = {e.name for e in OWN_METRICS if e.name.startswith(("tessera_model_server_", "tessera_metrics_"))}
    assert len(exposed) > 10
    assert {name for name in exposed if name not in shown} == set()


def test_prometheus_reads_every_query(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool, by which Prometheus checks queries, is not on PATH")
    found = [expr for each in DASHBOARDS.values() for _, expr in queries(each)]
    rules = [{"record": f"query:{number}", "expr": expr} for number, expr in enumerate(found)]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    command = [promtool, "check", "rules", "rules.yaml"]
    result = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def asked(url: str, path: str, **parameters: object) -> Any:
    """Return what Prometheus answers, as Grafana asks it."""
    requested = urllib.parse.urlencode(parameters)
    with urllib.request.urlopen(f"{url}/api/v1/{path}?{requested}", timeout=30) as response:
        return msgspec.json.decode(response.read())["data"]


def found_by(url: str, expr: str) -> list[Any]:
    """Return the series that a query finds; none where a value of one is not a number."""
    found: list[Any] = asked(url, "query", query=expr, time=NOW_S)["result"]
    return [] if any(each["value"][1] == "NaN" for each in found) else found


def as_scraped(text: bytes, instance: str, at_s: float) -> Iterator[str]:
    """Yield what Prometheus stores of an answer, in the OpenMetrics format, with the labels of test_podmonitor."""
    labels = {"instance": instance, "node": instance.removeprefix("agent-"), **MONITORED}
    labeled = as_labeled(text, **labels)
    yield from (f"{line} {at_s}\n" for line in labeled.decode().splitlines() if not line.startswith("#"))


def of_serving(named: Object) -> Object:
    """Return an object in the namespace in which the embedded cluster has its largest model server."""
    return named | {"metadata": named["metadata"] | {"namespace": "serving"}}


@asynccontextmanager
async def metrics_of_model_servers(folder: Path, prometheus: str) -> AsyncIterator[MetricsServer]:
    """Give `tessera metrics`, asked by kube-apiserver: a model server with load, one at zero, and an adapter's rules.

    Args:
        folder: for its certificates and rules.
        prometheus: the address of one that has `up`.

    """
    make_certificates(folder)
    rules = folder / "rules.yaml"
    rules.write_text("externalRules: [{seriesQuery: up, metricsQuery: up, resources: {namespaced: false}}]")
    kube, pods = MemoryKube(), MemoryMetrics()
    await kube.create(CONFIG_MAPS, front_proxy_config(folder))
    asleep = deployment("asleep", replicas=0, idle_seconds="60")
    for kind, each in (
        (DEPLOYMENTS, deployment(slots="4")),
        (DEPLOYMENTS, asleep),
        (AUTOSCALERS, autoscaler()),
        (PODS, model_pod()),
    ):
        await kube.create(kind, of_serving(each))
    one = MetricsServer(
        MetricsSettings(
            host="127.0.0.1", port=0, tls=Tls(certificate=folder / "server.crt", key=folder / "server.key")
        ),
        kube,
        ScrapedSamples(pods),
        queues=PrometheusQueues(HttpMetrics, prometheus, 'label_replace(up, "service", "asleep", "", "")'),
        rules=RulesSource(file=RulesFile(rules), connect=HttpMetrics, url=prometheus),
    )
    ended = itertools.count(100, 10)

    async def serve() -> None:
        while True:
            answered = next(ended)
            pods.contents["http://10.0.0.1:8002/metrics"] = triton(
                ended=answered, queued_s=answered / 4, served_s=answered, waiting=3
            )
            await asyncio.sleep(1)

    tasks = [asyncio.create_task(each) for each in (serve(), one.run())]
    try:
        await one.ready()
        yield one
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def fleet_totals(client: httpx2.AsyncClient, port: int) -> tuple[int, int]:
    """Return how many MiB of GPU memory the page says that there are, and how many are allocated."""
    fleet = (await client.get(f"http://127.0.0.1:{port}/api/fleet")).json()
    gpus = [gpu for node in fleet["nodes"] for gpu in node["gpus"]]
    return sum(each["memoryMib"] for each in gpus), sum(each.get("allocatedMib", 0) for each in gpus)


async def embedded_history(
    folder: Path, prometheus: str, storage: Callable[[], bytes]
) -> tuple[str, dict[int, tuple[int, int]]]:
    """Return what Prometheus stores of an embedded cluster and `tessera metrics`, scraped each second for a minute.

    With it the page's totals at the same times.

    Their ports are asked meanwhile as kube-scheduler and kube-apiserver do. The cluster has quotas, and an agent with
    models and images.

    Args:
        folder: for certificates.
        prometheus: the address of one that has `up`.
        storage: what the first agent exposes of its models and images.

    """
    cluster = Embedded(Page(port=0, sign_in=False))
    await cluster.kube.create(RESOURCE_QUOTAS, resource_quota("12"))
    await cluster.kube.create(CLUSTER_QUEUES, cluster_queue())
    await cluster.kube.patch(CLUSTER_QUEUES, "a", {"status": cluster_queue()["status"]}, subresource="status")
    running = asyncio.create_task(cluster.run(lambda _: None))
    samples: list[str] = []
    totals: dict[int, tuple[int, int]] = {}
    large = {"name": "main", "image": "example.com/a:1", "resources": {"limits": {"tessera.dev/gpu-memory": "90"}}}
    spec = {"containers": [large], "schedulerName": "tessera-scheduler", "nodeSelector": {"gpu": "h100"}}
    metadata = {"name": "too-large", "namespace": "research"}
    try:
        pod = await cluster.kube.create(PODS, {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}})
        async with metrics_of_model_servers(folder, prometheus) as metrics, httpx2.AsyncClient(timeout=60) as scheduler:
            apiserver = AskedMetrics(folder, metrics.port)
            for step in range(SCRAPES):
                await asyncio.sleep(1)
                asked_about = {"Pod": pod, "Nodes": None, "NodeNames": ["h100-1"]}
                found = await scheduler.post(f"http://127.0.0.1:{cluster.server.port}/filter", json=asked_about)
                assert found.status_code == 200
                await apiserver.get("/apis/external.metrics.k8s.io/v1beta1")
                totals_now = await fleet_totals(scheduler, cluster.server.page_port)
                at_s = NOW_S - APART_S * (SCRAPES - 1 - step)
                exposed = {**cluster.metrics(), "metrics": metrics.metrics()}
                exposed[f"agent-{NODE}"] += storage()
                for instance, text in exposed.items():
                    samples += as_scraped(text, instance, at_s)
                totals[at_s] = totals_now
        assert not running.done()
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    return "".join(samples), totals


@pytest.mark.anyio
async def test_an_embedded_cluster_fills_the_panels(tmp_path: Path, socket_folder: Path, pki: Path) -> None:
    minutes = {"start": NOW_S - APART_S * SCRAPES, "end": NOW_S, "step": 60}
    for name in ("now", "metrics", "then"):
        (tmp_path / name).mkdir()
    now_s = time.time()
    up = "".join(f'up{{namespace="serving"}} 1 {now_s + 60 * step:.0f}\n' for step in range(-5, 10))
    with serving_history(tmp_path / "now", up) as prometheus:
        async with storing(NODE, tmp_path / "node", socket_folder, pki) as storage:
            samples, totals = await embedded_history(tmp_path / "metrics", prometheus, storage)
    with serving_history(tmp_path / "then", samples) as url:
        panels = [panel for board in DASHBOARDS.values() for panel in queries(board)]
        empty = {
            title
            for title, expr in panels
            if not asked(url, "query_range", query=expr.replace('"n1"', f'"{NODE}"'), **minutes)["result"]
        }
        fleet = dict(reversed([*queries(DASHBOARDS["fleet"])]))

        def over_time(query: str) -> dict[int, float]:
            found = asked(url, "query_range", query=query, **minutes)["result"]
            return {at_s: float(value) for at_s, value in found[0]["values"]}

        of_all, part = over_time(fleet["Memory of all GPUs"]), over_time(fleet["Memory allocated"])
        by_namespace = over_time(f"sum({fleet['Memory allocated by namespace']})")
    assert empty == set()
    known = totals.keys() & part.keys() & by_namespace.keys()
    assert len(known) > SCRAPES / 2
    assert of_all[NOW_S] / 2**20 == totals[NOW_S][0]
    # Agents observe a moment after a pod is bound: then both differ until the next scrape.
    pages = {at_s: allocated_mib / memory_mib for at_s, (memory_mib, allocated_mib) in totals.items()}
    assert sum(part[at_s] == pytest.approx(pages[at_s]) for at_s in known) >= AGREE
    assert sum(by_namespace[at_s] == pytest.approx(pages[at_s] * of_all[at_s]) for at_s in known) >= AGREE


def test_no_panel_is_empty_where_everything_is_exposed(tmp_path: Path) -> None:
    with serving_history(tmp_path, history(node_metrics() + as_labeled(process_metrics(), node="n1"), TIMES_S)) as url:
        panels = [panel for board in DASHBOARDS.values() for panel in queries(board)]
        assert [title for title, expr in panels if not found_by(url, expr)] == []


def test_a_pod_has_no_history_of_an_earlier_one_of_its_name_and_energy_is_of_all(tmp_path: Path) -> None:
    """Six pods `web-0`, one after the other, each has the GPU at 300 W for 4 h; a DCGM exporter counts beside them."""
    gpu = 'gpu="0",UUID="GPU-0",modelName="NVIDIA A100-SXM4-40GB",Hostname="n1"'
    start_s = NOW_S - 24 * 3600
    series: dict[str, list[str]] = {}
    for at_s in range(start_s, NOW_S + 1, 60):
        number = min((at_s - start_s) // (4 * 3600), 5)
        pod = f'namespace="ml",pod="web-0",container="main",pod_uid="u{number}"'
        unknown = 'namespace="ml",pod="unknown",container="main",pod_uid="u9"'  # what it uses is not known
        used_mib = 0 if number == 4 and at_s < NOW_S - 3600 * 4 else 10240
        for labels in (f'{gpu},hostname="n1",{pod}', f'{gpu},job="dcgm",{pod}'):
            for name, value in (
                ("DCGM_FI_DEV_FB_USED", used_mib),
                ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 5e9 + 300_000 * (at_s - start_s)),
            ):
                series.setdefault(f"{name}{{{labels}}}", []).append(f"{value:.0f} {at_s}")
        for name, labels in (
            ("tessera_container_memory_allocated_bytes", f'{gpu},hostname="n1",{pod}'),
            ("tessera_container_memory_allocated_bytes", f'{gpu},hostname="n1",{unknown}'),
        ):
            series.setdefault(f"{name}{{{labels}}}", []).append(f"{40960 * 2**20} {at_s}")
    samples = "".join(f"{name} {each}\n" for name, values in sorted(series.items()) for each in values)
    with serving_history(tmp_path, samples) as url:
        shown = {}
        for title, expr in (pair for name in ("cost", "fleet") for pair in queries(DASHBOARDS[name])):
            if title in {"Energy, in kWh", "Peak memory used in a day, % of allocated", "Allocated memory in use"}:
                shown[title] = [float(each["value"][1]) for each in found_by(url, expr.replace("[1h]", "[24h]"))]
        unused = {title: expr for title, expr in queries(DASHBOARDS["cost"]) if "used none" in title}
        handed_over_s = NOW_S - 4 * 3600 + 600  # the fourth has been there for 4 h without memory, the fifth for 10 min
        found = [asked(url, "query", query=expr, time=handed_over_s)["result"] for expr in unused.values()]
    assert shown == {
        "Energy, in kWh": [pytest.approx(7.2, rel=0.01)],
        "Peak memory used in a day, % of allocated": [0.25],
        "Allocated memory in use": [0.25],
    }
    assert found == [[]]


def test_panels_go_on_when_an_agent_is_replaced_and_a_new_pod_is_not_one_that_used_none_for_an_hour(
    tmp_path: Path,
) -> None:
    gpu = 'UUID="GPU-0",Hostname="n1",hostname="n1",namespace="ml",container="main"'
    lines = []
    for at_s in range(NOW_S - 7200, NOW_S + 1, 60):
        agent = "10.0.0.5:9400" if at_s < NOW_S - 600 else "10.0.0.77:9400"
        for pod, used_mib in ({"busy": 10240, "unused": 0} | ({"new": 0} if at_s > NOW_S - 120 else {})).items():
            labels = f'{gpu},pod="{pod}",pod_uid="u-{pod}",instance="{agent}"'
            lines.append(f"DCGM_FI_DEV_FB_USED{{{labels}}} {used_mib} {at_s}\n")
            lines.append(f"tessera_container_memory_allocated_bytes{{{labels}}} {40960 * 2**20} {at_s}\n")
    cost = dict(queries(DASHBOARDS["cost"]))
    with serving_history(tmp_path, "".join(sorted(lines))) as url:
        peaks = found_by(url, cost["Peak memory used in a day, % of allocated"])
        unused = found_by(url, cost["Memory allocated to containers that used none for an hour"])
    assert {each["metric"]["pod"]: float(each["value"][1]) for each in peaks} == {"busy": 0.25, "unused": 0, "new": 0}
    assert [float(each["value"][1]) for each in unused] == [40960 * 2**20]


def test_two_clusters_in_one_prometheus_do_not_mix(tmp_path: Path) -> None:
    """Names, addresses, UIDs and GPUs are the same in both; the other one has more of everything."""
    own = node_metrics() + process_metrics()
    other = re.sub(rb" ([0-9.]+)$", lambda found: b" %g" % (3 * float(found[1]) + 1), own, flags=re.MULTILINE)
    panels = [(title, expr) for board in DASHBOARDS.values() for title, expr in queries(board)]
    shown = []
    for folder, texts in (("alone", {"": own}), ("both", {"a": own, "b": other})):
        (tmp_path / folder).mkdir()
        samples = "".join(
            history(as_labeled(text, cluster=cluster) if cluster else text, TIMES_S) for cluster, text in texts.items()
        )
        with serving_history(tmp_path / folder, samples) as url:
            chosen = "a" if folder == "both" else ""
            found = [
                (
                    title,
                    asked(url, "query", query=expr.replace('cluster=""', f'cluster="{chosen}"'), time=NOW_S)["result"],
                )
                for title, expr in panels
            ]
        for _, series in found:
            for each in series:
                each["metric"].pop("cluster", None)
                each["value"][1] = f"{float(each['value'][1]):.9g}"  # Prometheus adds up in the order of its series
        shown.append([(title, sorted(series, key=json.dumps)) for title, series in found])
    alone, both = shown
    assert both == alone
    assert sum(bool(series) for _, series in alone) > len(panels) / 2


def test_panels_of_nvidia_s_own_dashboard_answer_from_tessera_s_metrics(tmp_path: Path) -> None:
    """Its variables have the values that Grafana's `label_values` finds, its panels the GPUs that they are about."""
    scraped = re.sub(rb"^(DCGM_FI_\w+)\{", rb'\1{instance="10.0.0.7:9400",', node_metrics(), flags=re.MULTILINE)
    with serving_history(tmp_path, history(scraped, TIMES_S)) as url:
        variables = {}
        for label in ("instance", "gpu"):
            match = {"match[]": "DCGM_FI_DEV_GPU_TEMP", "start": NOW_S - 900, "end": NOW_S}
            variables[f"${label}"] = "|".join(asked(url, f"label/{label}/values", **match))
        assert variables == {"$instance": "10.0.0.7:9400", "$gpu": "0|1"}
        shown = {}
        for title, expr in NVIDIA_DASHBOARD.items():
            chosen = reduce(lambda text, pair: text.replace(*pair), variables.items(), expr)
            shown[title] = {each["metric"].get("gpu") for each in found_by(url, chosen)}
    single = {"GPU Avg. Temp": {None}, "GPU Power Total": {None}}
    without_mig, by_gpm = {"GPU Utilization": {"0"}}, {"Tensor Core Utilization": {"1"}}
    assert shown == {title: {"0", "1"} for title in NVIDIA_DASHBOARD} | single | without_mig | by_gpm


def test_what_a_driver_reports_of_an_empty_mig_instance_is_no_use_of_it() -> None:
    panels = {each["title"]: each["targets"][0]["expr"] for each in DASHBOARDS["cost"]["panels"]}
    assert f"[1h]) <= {UNUSED_MIB})" in panels["Memory allocated to containers that used none for an hour"]
