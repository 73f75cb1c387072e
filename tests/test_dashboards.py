"""Grafana's dashboards: Prometheus can read every query, each asks for metrics that there are, and none stays empty."""

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from builders.exposed import node_metrics
from harness.prometheusserver import history, serving_history
from tessera.core.usage.nodemetrics import NODE_METRICS
from tessera.core.usage.processmetrics import PROCESS_METRICS
from tessera.measures import Measures

FOLDER = Path(__file__).parents[1] / "deploy/monitoring/dashboards"
DASHBOARDS = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
NOW_S = 1_790_000_000
TIMES_S = range(NOW_S - 7200, NOW_S + 1, 60)
GRAFANA = {"$__rate_interval": "5m", "$__range": "1h", "$node": "n1"}


def queries(board: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each query with its panel's title, with Grafana's variables filled in."""
    for panel in board["panels"]:
        for target in panel["targets"]:
            expr = target["expr"]
            for name, value in GRAFANA.items():
                expr = expr.replace(name, value)
            yield panel["title"], expr


def process_metrics() -> bytes:
    """Return one sample or more of everything that processes count."""
    clock = iter(range(1000))
    measures = Measures(lambda: float(next(clock)))
    measures.turned("look")
    for each in PROCESS_METRICS:
        labels = dict.fromkeys(each.labels, "x")
        if each.kind == "histogram":
            measures.observe(each, 0.02, **labels)
        elif each.name != "tessera_loop_age_seconds":
            measures.set(each, {tuple(labels.items()): 1})
    return measures.render()


def test_they_are_what_grafana_imports() -> None:
    assert DASHBOARDS.keys() == {"cost", "fleet", "nodes", "processes"}
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


def test_no_panel_is_empty_where_everything_is_exposed(tmp_path: Path) -> None:
    with serving_history(tmp_path, history(node_metrics() + process_metrics(), TIMES_S)) as url:
        empty = []
        for board in DASHBOARDS.values():
            for title, expr in queries(board):
                requested = urllib.parse.urlencode({"query": expr, "time": NOW_S})
                with urllib.request.urlopen(f"{url}/api/v1/query?{requested}", timeout=30) as response:
                    answer = msgspec.json.decode(response.read())
                found = answer["data"]["result"]
                if not found or any(each["value"][1] == "NaN" for each in found):
                    empty.append(title)
    assert empty == []
