"""What a Prometheus in a testbed knows: answers by way of the API server, and a picture of them as in Grafana."""

import json
import time
import urllib.parse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from judges.dashboards import DASHBOARDS, NVIDIA_DASHBOARD, queries
from tessera.sim.report.style import MUTED, end_labels, figure, plain, render, titles
from testbed.cluster import Cluster

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Prometheus", "draw"]

_NAMESPACE = "walkthrough-monitoring"
"""Source: examples/11-prometheus/prometheus.yaml."""
_STEP_S = 5
_GPU_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#1b1f24", "#8d96a0")
_PARTS = ("#0072b2", "#56b4e9")
"""Of the pods of one GPU, or of two pods."""
_INSTANCE_GIB = 39.5
"""Memory of a 3g.40gb. Source: docs/walkthroughs/vllm-on-3g40gb.md, `tessera size`."""


class Prometheus:
    """The Prometheus of a walk-through."""

    def __init__(self, cluster: Cluster) -> None:
        (pod,) = cluster.get("pods", f"--namespace={_NAMESPACE}", "--selector=app=prometheus")["items"]
        self._base = f"/api/v1/namespaces/{_NAMESPACE}/pods/{pod['metadata']['name']}:9090/proxy/api/v1"
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
    made = figure(11, 6.4)
    titles(made, "Sixteen vLLM replicas on eight H100s", "simulated GPUs; metrics by DCGM exporter's names, as scraped")
    memory, activity, power, tokens = (
        made.add_axes((0.05 + 0.49 * (number % 2), 0.54 - 0.47 * (number // 2), 0.38, 0.31)) for number in range(4)
    )
    _bars(memory, prometheus.instant('DCGM_FI_DEV_FB_USED{namespace="walkthrough-serving"} / 1024'))
    plain(memory, "", "Memory in use by pod, of 39.5 GiB: DCGM_FI_DEV_FB_USED")
    by_gpu = {
        activity: ("SMs busy by instance, DCGM_FI_PROF_SM_ACTIVE", 'DCGM_FI_PROF_SM_ACTIVE{GPU_I_ID!=""}'),
        power: ("Power by GPU (W), DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_POWER_USAGE"),
    }
    for axes, (title, query) in by_gpu.items():
        lines = _lines(prometheus.range(query, seconds), "gpu")
        _plot(axes, title, [(f"GPU {gpu}", _GPU_COLORS[int(gpu)], points) for gpu, points in lines])
    lines = _lines(prometheus.range("rate(vllm:generation_tokens_total[30s]) > 0", seconds), "pod")
    shown = [(f"…-{pod.rpartition('-')[2]}", _PARTS[place], points) for place, (pod, points) in enumerate(lines)]
    _plot(tokens, "Tokens a second of the two real vLLMs, vllm:generation_tokens_total", shown)
    path.write_bytes(render(made, "svg"))


def _bars(axes: "Axes", series: list[dict[str, Any]]) -> None:
    """Draw what the pods of each GPU have beside each other, and the size of their instances."""
    ordered = sorted(series, key=lambda each: (each["metric"]["gpu"], int(each["metric"]["GPU_I_ID"])))
    places, values = Counter[str](), [(each["metric"]["gpu"], float(each["value"][1])) for each in ordered]
    for gpu, value in values:
        color = _PARTS[places[gpu] % 2]
        at = int(gpu) + 0.4 * (places[gpu] - 0.5)
        axes.bar(at, _INSTANCE_GIB, width=0.36, facecolor="none", edgecolor=MUTED, linewidth=0.7)
        axes.bar(at, value, width=0.36, color=color)
        places[gpu] += 1
    axes.set_xticks(range(len(places)), [f"GPU {gpu}" for gpu in places])


def _plot(axes: "Axes", title: str, lines: list[tuple[str, str, tuple[list[float], list[float]]]]) -> None:
    """Draw lines with their names at their ends, and those of one name in one color."""
    for _, color, points in lines:
        axes.plot(*points, color=color, linewidth=1.4)
    plain(axes, "", title)
    highest = 1.08 * max(value for _, _, (_, values) in lines for value in values)
    axes.set_ylim(0, highest)
    axes.set_xlim(min(times[0] for _, _, (times, _) in lines), 0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f} s")
    ends = {name: (name, values[-1], color) for name, color, (_, values) in lines}
    end_labels(axes, [*ends.values()], 0, highest / 13)


def _lines(series: list[dict[str, Any]], label: str) -> list[tuple[str, tuple[list[float], list[float]]]]:
    """Return the value of a label and the points of each series, in seconds before the last of all."""
    now = max(each["values"][-1][0] for each in series)
    ordered = sorted(series, key=lambda each: (each["metric"][label], each["metric"].get("GPU_I_ID", "")))
    return [
        (each["metric"][label], ([at - now for at, _ in each["values"]], [float(one) for _, one in each["values"]]))
        for each in ordered
    ]
