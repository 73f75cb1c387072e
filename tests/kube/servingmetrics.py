"""What a Prometheus in a testbed knows: answers by way of the API server, and a picture of them as in Grafana."""

import json
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tessera.sim.report.style import MUTED, figure, plain, render, titles
from test_dashboards import DASHBOARDS, NVIDIA_DASHBOARD, queries
from testbed.cluster import Cluster

__all__ = ["Prometheus", "draw"]

_STEP_S = 5
_INK = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#1b1f24", "#6a737d")
_PANELS = (
    ("Memory in use by pod (GiB), DCGM_FI_DEV_FB_USED", 'DCGM_FI_DEV_FB_USED{namespace="serving"} / 1024'),
    ("SMs busy by instance, DCGM_FI_PROF_SM_ACTIVE", 'DCGM_FI_PROF_SM_ACTIVE{GPU_I_ID!=""}'),
    ("Power by GPU (W), DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_POWER_USAGE"),
    ("Tokens a second, vllm:generation_tokens_total", "rate(vllm:generation_tokens_total[30s]) > 0"),
)


class Prometheus:
    """The Prometheus in namespace `monitoring`."""

    def __init__(self, cluster: Cluster) -> None:
        (pod,) = cluster.get("pods", "--namespace=monitoring", "--selector=app=prometheus")["items"]
        self._base = f"/api/v1/namespaces/monitoring/pods/{pod['metadata']['name']}:9090/proxy/api/v1"
        self._cluster = cluster

    def instant(self, query: str) -> list[dict[str, Any]]:
        """Return the series of a query now."""
        return self._ask("query", query=query)

    def range(self, query: str, seconds: float) -> list[dict[str, Any]]:
        """Return the series of a query since so long."""
        now = time.time()
        return self._ask("query_range", query=query, start=str(now - seconds), end=str(now), step=str(_STEP_S))

    def empty_panels(self, board: str, node: str) -> set[str]:
        """Return the panels of a dashboard that would show nothing of a node."""
        return {title for title, query in queries(DASHBOARDS[board], node) if not self.instant(query)}

    def empty_panels_of_nvidia(self) -> set[str]:
        """Return the panels of NVIDIA's own dashboard that would show nothing."""
        chosen = {
            title: query.replace("$instance", ".+").replace("$gpu", ".+") for title, query in NVIDIA_DASHBOARD.items()
        }
        return {title for title, query in chosen.items() if not self.instant(query)}

    def _ask(self, way: str, **values: str) -> list[dict[str, Any]]:
        said = self._cluster.kubectl("get", "--raw", f"{self._base}/{way}?{urllib.parse.urlencode(values)}")
        result: list[dict[str, Any]] = json.loads(said)["data"]["result"]
        return result


def draw(prometheus: Prometheus, path: Path, seconds: float) -> None:
    """Draw what Prometheus has of the last so many seconds."""
    made = figure(11, 6.6)
    titles(made, "Sixteen vLLM replicas on eight H100s", "simulated GPUs; metrics by DCGM exporter's names, as scraped")
    for number, (title, query) in enumerate(_PANELS):
        axes = made.add_axes((0.05 + 0.49 * (number % 2), 0.54 - 0.46 * (number // 2), 0.42, 0.29))
        for place, points in enumerate(_lines(prometheus.range(query, seconds))):
            axes.plot(*points, color=_INK[place // 2 % len(_INK)], linewidth=1.2)
        plain(axes, "", title)
        axes.set_ylim(bottom=0)
        axes.set_xlim(-seconds, 0)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f} s")
        axes.tick_params(axis="x", labelcolor=MUTED)
    path.write_bytes(render(made, "svg"))


def _lines(series: list[dict[str, Any]]) -> Iterator[tuple[list[float], list[float]]]:
    """Give the points of each series, in the order of GPUs and instances, in seconds before now."""
    now = time.time()
    ordered = sorted(series, key=lambda each: (each["metric"].get("gpu", ""), each["metric"].get("GPU_I_ID", "")))
    for each in ordered:
        yield [at - now for at, _ in each["values"]], [float(value) for _, value in each["values"]]
