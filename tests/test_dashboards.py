"""Grafana's dashboards: Prometheus can read every query, each asks for metrics that there are, and none stays empty."""

import asyncio
import contextlib
import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from builders.exposed import node_metrics
from harness.prometheusserver import history, serving_history
from tessera.clients.kube import PODS
from tessera.core.usage.nodemetrics import NODE_METRICS
from tessera.core.usage.processmetrics import PROCESS_METRICS
from tessera.measures import Measures
from tessera.server.settings import Page
from tessera.sim.embedded import Embedded

FOLDER = Path(__file__).parents[1] / "deploy/chart/files/monitoring/dashboards"
DASHBOARDS = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
NOW_S = 1_790_000_000
TIMES_S = range(NOW_S - 7200, NOW_S + 1, 60)
GRAFANA = {"$__rate_interval": "5m", "$__range": "1h"}
CHOSEN = '{instance=~"$instance", gpu=~"$gpu"}'
SCRAPES = 40
NOT_EMBEDDED = {
    "Quota in use",
    "Quota borrowed",
    "Requests to the server, by answer",
    "Time of a request, 99th percentile",
    "Models by state",
    "Images by state",
    "Models read, by source",
    *(panel["title"] for panel in DASHBOARDS["serving"]["panels"]),
}
"""Panels that the embedded cluster leaves empty: it has no quota, ModelCache or ImageWarmup, asks the server's verbs
directly and not by HTTP, and its model servers are scaled without `tessera metrics`.
"""
NVIDIA_DASHBOARD = {
    "GPU Temperature": f"DCGM_FI_DEV_GPU_TEMP{CHOSEN}",
    "GPU Avg. Temp": f"avg(DCGM_FI_DEV_GPU_TEMP{CHOSEN})",
    "GPU Power Usage": f"DCGM_FI_DEV_POWER_USAGE{CHOSEN}",
    "GPU Power Total": f"sum(DCGM_FI_DEV_POWER_USAGE{CHOSEN})",
    "GPU SM Clocks": f"DCGM_FI_DEV_SM_CLOCK{CHOSEN} * 1000000",
    "GPU Utilization": f"DCGM_FI_DEV_GPU_UTIL{CHOSEN}",
    "GPU Framebuffer Mem Used": f"DCGM_FI_DEV_FB_USED{CHOSEN}",
    "Tensor Core Utilization": f"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{CHOSEN}",
}
"""The panels of NVIDIA's own dashboard, grafana.com 12239, and what they ask.

Source: NVIDIA dcgm-exporter, `grafana/dcgm-exporter-dashboard.json`.
"""


def queries(board: dict[str, Any], node: str = "n1") -> Iterator[tuple[str, str]]:
    """Yield each query with its panel's title, with Grafana's variables filled in."""
    for panel in board["panels"]:
        for target in panel["targets"]:
            expr = target["expr"]
            for name, value in (*GRAFANA.items(), ("$node", node)):
                expr = expr.replace(name, value)
            yield panel["title"], expr


def process_metrics() -> bytes:
    """Return one sample or more of everything that processes count."""
    clock = iter(range(1000))
    measures = Measures(lambda: float(next(clock)))
    measures.turned("reconcile")
    for each in PROCESS_METRICS:
        labels = dict.fromkeys(each.labels, "x") | ({"namespace": "team"} if "namespace" in each.labels else {})
        if each.kind == "histogram":
            measures.observe(each, 0.02, **labels)
        elif each.name != "tessera_loop_age_seconds":
            measures.set(each, {tuple(labels.items()): 1})
    return as_labelled(measures.render(), node="n1")


def as_labelled(text: bytes, **labels: str) -> bytes:
    """Return metrics with more labels, as Prometheus gives them to all that it scrapes of a pod."""
    more = ",".join(f'{name}="{value}"' for name, value in labels.items()).encode()
    text = re.sub(rb"^([a-zA-Z_]+)(?= )", rb"\1{}", text, flags=re.MULTILINE)
    return re.sub(
        rb"^([a-zA-Z_]+)\{(.?)",
        lambda found: found[1] + b"{" + more + b"," * (found[2] != b"}") + found[2],
        text,
        flags=re.MULTILINE,
    )


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
    known = {each.name for each in (*NODE_METRICS, *PROCESS_METRICS)}
    for title, expr in queries(DASHBOARDS[name]):
        requested = {each.removesuffix("_bucket") for each in re.findall(r"\b(?:tessera|DCGM_FI)_\w+", expr)}
        assert requested, title
        assert requested <= known, title
        assert "$" not in expr, title


def test_what_is_exposed_of_model_servers_is_shown() -> None:
    shown = " ".join(expr for _, expr in queries(DASHBOARDS["serving"]))
    exposed = {e.name for e in PROCESS_METRICS if e.name.startswith(("tessera_model_server_", "tessera_metrics_"))}
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
    """Return the series that a query finds; none where a value of one is no number."""
    found: list[Any] = asked(url, "query", query=expr, time=NOW_S)["result"]
    return [] if any(each["value"][1] == "NaN" for each in found) else found


def as_scraped(text: bytes, instance: str, at_s: float) -> Iterator[str]:
    """Yield what Prometheus stores of an answer, in the OpenMetrics format, with the labels of the PodMonitor."""
    labelled = as_labelled(text, instance=instance, node=instance.removeprefix("agent-"))
    yield from (f"{line} {at_s}\n" for line in labelled.decode().splitlines() if not line.startswith("#"))


async def embedded_history() -> str:
    """Return what Prometheus stores of an embedded cluster that it scrapes each second, taken for a minute."""
    cluster = Embedded(Page(port=0, sign_in=False))
    running = asyncio.create_task(cluster.run(lambda _: None))
    samples: list[str] = []
    large = {"name": "main", "image": "example.com/a:1", "resources": {"limits": {"tessera.dev/gpu-memory": "90"}}}
    spec = {"containers": [large], "schedulerName": "tessera-scheduler", "nodeSelector": {"gpu": "h100"}}
    metadata = {"name": "too-large", "namespace": "research"}
    try:
        await cluster.kube.create(PODS, {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}})
        for step in range(SCRAPES):
            await asyncio.sleep(1)
            at_s = NOW_S - 60 * (SCRAPES - 1 - step)
            for instance, text in cluster.metrics().items():
                samples += as_scraped(text, instance, at_s)
        assert not running.done()
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    return "".join(samples)


@pytest.mark.anyio
async def test_an_embedded_cluster_fills_the_panels(tmp_path: Path) -> None:
    minutes = {"start": NOW_S - 60 * SCRAPES, "end": NOW_S, "step": 60}
    with serving_history(tmp_path, await embedded_history()) as url:
        panels = [panel for board in DASHBOARDS.values() for panel in queries(board)]
        empty = {
            title
            for title, expr in panels
            if not asked(url, "query_range", query=expr.replace('"n1"', '"h100-1"'), **minutes)["result"]
        }
    assert empty == NOT_EMBEDDED


def test_no_panel_is_empty_where_everything_is_exposed(tmp_path: Path) -> None:
    with serving_history(tmp_path, history(node_metrics() + process_metrics(), TIMES_S)) as url:
        panels = [panel for board in DASHBOARDS.values() for panel in queries(board)]
        assert [title for title, expr in panels if not found_by(url, expr)] == []


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
