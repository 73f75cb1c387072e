"""The generated dashboards and NVIDIA's own: what their panels ask of Prometheus, and which may be empty."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["DASHBOARDS", "NOT_WITH_VLLM", "NVIDIA_DASHBOARD", "queries"]

_FOLDER = Path(__file__).parents[2] / "deploy/chart/files/monitoring/dashboards"
DASHBOARDS = {path.stem: json.loads(path.read_text()) for path in sorted(_FOLDER.glob("*.json"))}
_GRAFANA = {"$__rate_interval": "5m", "$__range": "1h"}
_CHOSEN = '{instance=~"$instance", gpu=~"$gpu"}'
NOT_WITH_VLLM = {
    "Age of the decision",
    "Images by state",
    "Memory rows remapped",
    "Models read, by source",
    "Pending pods that no MIG layout can place",
    "Queries for rules of prometheus-adapter, by result",
    "Quota borrowed",
    "Quota in use",
    "Replicas",
    "Wake-up queries, by result",
}
"""Panels that docs/walkthroughs/vllm-on-3g40gb.md leaves empty: it has no quota, pending pod, ImageWarmup, autoscaler
or rules of a prometheus-adapter, its nodes share no models, and its simulated NVML remaps no rows.
"""
NVIDIA_DASHBOARD = {
    "GPU Temperature": f"DCGM_FI_DEV_GPU_TEMP{_CHOSEN}",
    "GPU Avg. Temp": f"avg(DCGM_FI_DEV_GPU_TEMP{_CHOSEN})",
    "GPU Power Usage": f"DCGM_FI_DEV_POWER_USAGE{_CHOSEN}",
    "GPU Power Total": f"sum(DCGM_FI_DEV_POWER_USAGE{_CHOSEN})",
    "GPU SM Clocks": f"DCGM_FI_DEV_SM_CLOCK{_CHOSEN} * 1000000",
    "GPU Utilization": f"DCGM_FI_DEV_GPU_UTIL{_CHOSEN}",
    "GPU Framebuffer Mem Used": f"DCGM_FI_DEV_FB_USED{_CHOSEN}",
    "Tensor Core Utilization": f"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{_CHOSEN}",
}
"""The panels of NVIDIA's own dashboard, grafana.com 12239, and what they ask.

Source: NVIDIA dcgm-exporter, `grafana/dcgm-exporter-dashboard.json`.
"""


def queries(board: dict[str, Any], node: str = "n1", cluster: str = "") -> Iterator[tuple[str, str]]:
    """Yield each query with its panel's title, Grafana's variables filled in; no cluster is of series without one."""
    for panel in board["panels"]:
        for target in panel["targets"]:
            expr = target["expr"]
            for name, value in (*_GRAFANA.items(), ("$node", node), ("$cluster", cluster)):
                expr = expr.replace(name, value)
            yield panel["title"], expr
