"""Grafana's dashboards of Tessera's metrics, written by `scripts/generate`: `python -m testbed.dashboards FOLDER`.

Source: grafana.com/docs, "Dashboard JSON model".
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

__all__ = ["DASHBOARDS", "Dashboard", "Panel", "model"]

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS = 24
_NODE = 'hostname=~"$node"'
_OF_NODE = 'node=~"$node"'
"""Of an agent's own metrics: the label that the PodMonitor gives them."""
_DEVICE = "GPU {{gpu}} {{GPU_I_PROFILE}} {{GPU_I_ID}}"
_CONTAINER = "{{namespace}}/{{pod}}/{{container}}, GPU {{gpu}} {{GPU_I_ID}}"
_ALLOCATED = "tessera_container_memory_allocated_bytes"
_QUOTA = "(kind, quota, flavor, resource)"
_OF_QUOTA = "{{quota}} {{flavor}} {{resource}}"
_OWN = "(namespace, pod, container, UUID, GPU_I_ID)"
_RATE = "[$__rate_interval]"
_GPU_MEMORY = "max by (UUID) (tessera_gpu_memory_bytes)"
_WHOLE_UTILIZATION = "max by (UUID, modelName) (DCGM_FI_DEV_GPU_UTIL)"
_INSTANCES = (
    'max by (UUID, modelName, GPU_I_ID) (DCGM_FI_PROF_SM_ACTIVE{GPU_I_ID!=""}) '
    "* on (UUID, GPU_I_ID) group_left () max by (UUID, GPU_I_ID) (tessera_device_memory_bytes)"
)
_MIG_UTILIZATION = f"100 * sum by (UUID, modelName) ({_INSTANCES}) / on (UUID) group_left () {_GPU_MEMORY}"
"""Instances by their part of the GPU's memory: an instance that is busy does not make the GPU busy."""


class Panel(msgspec.Struct, frozen=True):
    """One panel: its title, its unit as Grafana names it, and its queries with their legends."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    kind: Literal["timeseries", "stat"] = "timeseries"
    text: str = ""
    """What the title does not say."""


class Dashboard(msgspec.Struct, frozen=True):
    """One dashboard."""

    name: str
    title: str
    panels: tuple[Panel, ...]
    by_node: bool = False
    """Whether its panels are of the nodes that are chosen."""


_FLEET = Dashboard(
    "fleet",
    "Tessera: fleet",
    (
        Panel("GPUs", "none", (("count(tessera_gpu_lost)", ""),), "stat"),
        Panel(
            "Memory allocated",
            "percentunit",
            (("sum(tessera_device_memory_allocated_bytes) / sum(tessera_device_memory_bytes)", ""),),
            "stat",
        ),
        Panel(
            "Allocated memory in use",
            "percentunit",
            (('sum(DCGM_FI_DEV_FB_USED{pod!=""}) * 2^20 / sum(tessera_device_memory_allocated_bytes)', ""),),
            "stat",
        ),
        Panel("Unhealthy devices", "none", (("sum(1 - tessera_device_healthy)", ""),), "stat"),
        Panel(
            "Memory of all devices",
            "bytes",
            (
                ("sum(tessera_device_memory_bytes)", "usable"),
                ("sum(tessera_device_memory_allocated_bytes)", "allocated"),
                ("sum(tessera_device_memory_used_bytes)", "in use"),
            ),
        ),
        Panel(
            "Memory allocated by namespace",
            "bytes",
            (("sum by (namespace) (tessera_container_memory_allocated_bytes)", "{{namespace}}"),),
        ),
        Panel(
            "Memory in use by namespace",
            "bytes",
            (('sum by (namespace) (DCGM_FI_DEV_FB_USED{namespace!=""}) * 2^20', "{{namespace}}"),),
        ),
        Panel(
            "GPU utilization by model",
            "percent",
            ((f"avg by (modelName) ({_WHOLE_UTILIZATION} or {_MIG_UTILIZATION})", "{{modelName}}"),),
            text="Of partitioned GPUs by what their MIG instances do, from Hopper on.",
        ),
        Panel(
            "Devices by sharing mode",
            "none",
            (("count by (mode) (tessera_device_sharing_info)", "{{mode}}"),),
        ),
        Panel(
            "Free memory slices",
            "none",
            (
                ("sum(tessera_gpu_free_memory_slices)", "free"),
                ("max(tessera_gpu_largest_free_memory_slices)", "largest MIG instance that fits"),
            ),
        ),
        Panel(
            "Pods that no change of layouts would place",
            "none",
            (("sum by (policy, reason) (tessera_controller_pending_pods) > 0", "{{policy}}: {{reason}}"),),
        ),
        Panel("Throttled GPUs by cause", "none", (("sum by (cause) (tessera_gpu_throttled)", "{{cause}}"),)),
        Panel(
            "Quota in use",
            "percentunit",
            ((f"max by {_QUOTA} (tessera_quota_used) / max by {_QUOTA} (tessera_quota_guaranteed > 0)", _OF_QUOTA),),
            text="Above 100 %: borrowed from the cohort.",
        ),
        Panel("Quota borrowed", "none", ((f"max by {_QUOTA} (tessera_quota_borrowed)", _OF_QUOTA),)),
    ),
)
_NODES = Dashboard(
    "nodes",
    "Tessera: nodes and devices",
    (
        Panel("Memory in use by device", "bytes", ((f"tessera_device_memory_used_bytes{{{_NODE}}}", _DEVICE),)),
        Panel("Memory allocated by device", "bytes", ((f"tessera_device_memory_allocated_bytes{{{_NODE}}}", _DEVICE),)),
        Panel(
            "Memory in use by container",
            "bytes",
            ((f'DCGM_FI_DEV_FB_USED{{{_NODE}, pod!=""}} * 2^20', _CONTAINER),),
        ),
        Panel(
            "GPU utilization by container",
            "percent",
            (
                (
                    (f'DCGM_FI_DEV_GPU_UTIL{{{_NODE}, pod!=""}} or DCGM_FI_PROF_SM_ACTIVE{{{_NODE}, pod!=""}} * 100'),
                    _CONTAINER,
                ),
            ),
            text="Where the driver samples processes; of a MIG instance the SMs that were busy, from Hopper on.",
        ),
        Panel(
            "SMs that were busy",
            "percentunit",
            ((f"DCGM_FI_PROF_SM_ACTIVE{{{_NODE}}}", _DEVICE),),
            text="From Hopper on.",
        ),
        Panel("Containers by device", "none", ((f"tessera_device_containers{{{_NODE}}}", _DEVICE),)),
        Panel("Temperature", "celsius", ((f"DCGM_FI_DEV_GPU_TEMP{{{_NODE}}}", "GPU {{gpu}}"),)),
        Panel("Power", "watt", ((f"DCGM_FI_DEV_POWER_USAGE{{{_NODE}}}", "GPU {{gpu}}"),)),
        Panel("SM clock", "rotmhz", ((f"DCGM_FI_DEV_SM_CLOCK{{{_NODE}}}", "GPU {{gpu}}"),)),
        Panel("Throttled, by cause", "none", ((f"tessera_gpu_throttled{{{_NODE}}}", "GPU {{gpu}}: {{cause}}"),)),
        Panel(
            "XIDs in an hour",
            "none",
            ((f"increase(tessera_gpu_xid_errors_total{{{_NODE}}}[1h])", "GPU {{gpu}}: {{class}}"),),
        ),
        Panel(
            "Memory errors in an hour",
            "none",
            (
                (f"increase(DCGM_FI_DEV_ECC_SBE_VOL_TOTAL{{{_NODE}}}[1h])", "GPU {{gpu}}, corrected"),
                (f"increase(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{{{_NODE}}}[1h])", "GPU {{gpu}}, uncorrected"),
            ),
        ),
        Panel(
            "Changes of MIG layouts in an hour",
            "none",
            ((f"increase(tessera_gpu_layout_changes_total{{{_NODE}}}[1h])", "GPU {{gpu}}"),),
        ),
        Panel(
            "Models by state",
            "none",
            ((f"sum by (node, state) (tessera_node_models{{{_OF_NODE}}})", "{{node}}: {{state}}"),),
            text="That a ModelCache asks for. Needs the label `node`, which the PodMonitor gives.",
        ),
        Panel(
            "Images by state",
            "none",
            ((f"sum by (node, state) (tessera_node_images{{{_OF_NODE}}})", "{{node}}: {{state}}"),),
            text="That an ImageWarmup asks for.",
        ),
        Panel(
            "Models read, by source",
            "Bps",
            (
                (
                    f"sum by (node, source) (rate(tessera_node_models_read_bytes_total{{{_OF_NODE}}}{_RATE}))",
                    "{{node}}: {{source}}",
                ),
            ),
        ),
    ),
    by_node=True,
)
_USE = Dashboard(
    "cost",
    "Tessera: cost",
    (
        Panel(
            "GPU hours by namespace",
            "none",
            (
                (
                    (
                        f"sum by (namespace) (sum_over_time(({_ALLOCATED} / on (UUID) group_left () {_GPU_MEMORY})"
                        "[$__range:5m])) / 12"
                    ),
                    "{{namespace}}",
                ),
            ),
            "stat",
            "Over the time shown. A part of a GPU counts by its part of the GPU's memory.",
        ),
        Panel(
            "GPU memory allocated by namespace, in GiB hours",
            "none",
            (
                (
                    f"sum by (namespace) (sum_over_time({_ALLOCATED}[$__range:5m])) / 12 / 2^30",
                    "{{namespace}}",
                ),
            ),
            "stat",
            "Over the time shown.",
        ),
        Panel(
            "Energy, in kWh",
            "kwatth",
            (("sum(increase(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[$__range])) / 3.6e9", ""),),
            "stat",
            "Of all GPUs over the time shown.",
        ),
        Panel(
            "Memory allocated to containers that used none for an hour",
            "bytes",
            (
                (
                    (
                        f"sum by (namespace) ({_ALLOCATED} and on {_OWN} "
                        '(max_over_time(DCGM_FI_DEV_FB_USED{pod!=""}[1h]) == 0))'
                    ),
                    "{{namespace}}",
                ),
            ),
        ),
        Panel(
            "Most memory used in a day, as a part of what is allocated",
            "percentunit",
            (
                (
                    (
                        f'max_over_time(DCGM_FI_DEV_FB_USED{{pod!=""}}[1d]) * 2^20 / on {_OWN} '
                        "(tessera_container_memory_allocated_bytes > 0)"
                    ),
                    "{{namespace}}/{{pod}}/{{container}}",
                ),
            ),
            text="`tessera recommend --prometheus` says what would fit.",
        ),
    ),
)
_PROCESSES = Dashboard(
    "processes",
    "Tessera: its processes",
    (
        Panel("Server is ready", "none", (("tessera_server_ready", "{{instance}}"),)),
        Panel(
            "Requests to the server, by answer",
            "reqps",
            ((f"sum by (handler, code) (rate(tessera_server_requests_total{_RATE}))", "{{handler}} {{code}}"),),
        ),
        Panel(
            "Time of a request, 99th percentile",
            "s",
            (
                (
                    (
                        "histogram_quantile(0.99, sum by (le, handler) "
                        f"(rate(tessera_server_request_duration_seconds_bucket{_RATE})))"
                    ),
                    "{{handler}}",
                ),
            ),
        ),
        Panel(
            "Bindings",
            "reqps",
            ((f"sum by (result) (rate(tessera_server_bindings_total{_RATE}))", "{{result}}"),),
        ),
        Panel(
            "Plan duration of the controller, 99th percentile",
            "s",
            (
                (
                    (
                        "histogram_quantile(0.99, sum by (le) "
                        f"(rate(tessera_controller_plan_duration_seconds_bucket{_RATE})))"
                    ),
                    "plan",
                ),
            ),
            text="Only of reconciles that found a change.",
        ),
        Panel(
            "Reconcile duration of the controller, 99th percentile",
            "s",
            (
                (
                    (
                        "histogram_quantile(0.99, sum by (le) "
                        f"(rate(tessera_controller_reconcile_duration_seconds_bucket{_RATE})))"
                    ),
                    "reconcile",
                ),
            ),
        ),
        Panel(
            "Reconciles of the controller",
            "reqps",
            ((f"sum by (result) (rate(tessera_controller_reconciles_total{_RATE}))", "{{result}}"),),
        ),
        Panel(
            "Decisions in an hour",
            "none",
            (("sum by (reason) (increase(tessera_controller_decisions_total[1h]))", "{{reason}}"),),
        ),
        Panel("Time since a loop did its work", "s", (("tessera_loop_age_seconds", "{{instance}}: {{loop}}"),)),
        Panel(
            "Observation of GPUs",
            "s",
            (
                ("max(tessera_exporter_age_seconds)", "time since the oldest"),
                ("max(tessera_exporter_duration_seconds)", "how long the slowest took"),
            ),
        ),
    ),
)
_SERVER = "{{namespace}}/{{server}}"
_SERVING = Dashboard(
    "serving",
    "Tessera: model servers",
    (
        Panel("Model servers", "none", (("count(tessera_model_server_replicas)", ""),), "stat"),
        Panel("Replicas that serve", "none", (("sum(tessera_model_server_ready_replicas)", ""),), "stat"),
        Panel(
            "Scaled to zero",
            "none",
            (("sum(tessera_model_server_replicas == bool 0)", ""),),
            "stat",
            "Servers without a replica. Requests to them are refused until they are woken.",
        ),
        Panel(
            "Servers whose metrics are bad",
            "none",
            (("sum(tessera_model_server_input_bad)", ""),),
            "stat",
            "The last good decision counts for five minutes; then the replicas stay as they are.",
        ),
        Panel("Queue time", "s", (("tessera_model_server_queue_time_seconds", _SERVER),)),
        Panel("Requests in flight", "none", (("tessera_model_server_requests_in_flight", _SERVER),)),
        Panel(
            "Replicas",
            "none",
            (
                ("tessera_model_server_proposed_replicas", f"{_SERVER}: the decision"),
                ("tessera_model_server_replicas", f"{_SERVER}: asked for"),
                ("tessera_model_server_ready_replicas", f"{_SERVER}: ready"),
            ),
        ),
        Panel(
            "MIG instances and shares",
            "none",
            (
                (
                    (
                        f"count by (namespace, GPU_I_PROFILE) ({_ALLOCATED} "
                        "and on (namespace) tessera_model_server_replicas)"
                    ),
                    "{{namespace}} {{GPU_I_PROFILE}}",
                ),
            ),
            text="Allocated in the namespaces of model servers; without a profile: whole GPUs and parts of them.",
        ),
        Panel(
            "Age of the decision",
            "s",
            (("tessera_model_server_decision_age_seconds", _SERVER),),
            text="Above 0 an earlier decision is held.",
        ),
        Panel(
            "Pods that were asked, by result",
            "reqps",
            ((f"sum by (result) (rate(tessera_metrics_samples_total{_RATE}))", "{{result}}"),),
        ),
        Panel(
            "Wake-up queries, by result",
            "reqps",
            ((f"sum by (result) (rate(tessera_metrics_wake_queries_total{_RATE}))", "{{result}}"),),
            text="Asked of the Prometheus of `metricsApi.prometheus` while a server has no replica.",
        ),
        Panel(
            "Queries for rules of prometheus-adapter, by result",
            "reqps",
            (
                (f"sum by (result) (rate(tessera_metrics_rule_queries_total{_RATE}))", "{{result}}"),
                ("sum(tessera_metrics_rules_bad)", "broken files"),
            ),
            text="Which series there are, asked of the Prometheus of `metricsApi.prometheus`.",
        ),
        Panel(
            "Requests to the metrics APIs, by answer",
            "reqps",
            ((f"sum by (code) (rate(tessera_metrics_requests_total{_RATE}))", "{{code}}"),),
        ),
        Panel(
            "Reconcile duration of model servers, 99th percentile",
            "s",
            (
                (
                    (
                        "histogram_quantile(0.99, sum by (le) "
                        f"(rate(tessera_metrics_reconcile_duration_seconds_bucket{_RATE})))"
                    ),
                    "reconcile",
                ),
            ),
        ),
    ),
)
DASHBOARDS = (_FLEET, _NODES, _USE, _SERVING, _PROCESSES)


def model(dashboard: Dashboard) -> dict[str, Any]:
    """Return a dashboard as Grafana imports it; it asks for the data source when it is opened."""
    variables: list[dict[str, Any]] = [
        {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    ]
    if dashboard.by_node:
        query = "label_values(tessera_gpu_lost, hostname)"
        variables.append(
            {
                "name": "node",
                "type": "query",
                "datasource": _SOURCE,
                "query": {"query": query, "refId": "node"},
                "definition": query,
                "refresh": 2,
                "sort": 1,
                "multi": True,
                "includeAll": True,
                "current": {"text": ["All"], "value": ["$__all"]},
            }
        )
    return {
        "uid": f"tessera-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["tessera", "gpu"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": variables},
        "panels": list(_panels(dashboard)),
    }


def _panels(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    """Yield the panels in rows: four stats, or two with time series."""
    x, y, height = 0, 0, 0
    for number, each in enumerate(dashboard.panels, 1):
        wide, high = (6, 5) if each.kind == "stat" else (12, 8)
        if x + wide > _COLUMNS or (height and high != height):
            x, y = 0, y + height
        height = high
        yield {
            "id": number,
            "type": each.kind,
            "title": each.title,
            **({"description": each.text} if each.text else {}),
            "datasource": _SOURCE,
            "gridPos": {"h": high, "w": wide, "x": x, "y": y},
            "fieldConfig": {"defaults": {"unit": each.unit, "min": 0}, "overrides": []},
            "targets": [
                {
                    "refId": chr(ord("A") + place),
                    "datasource": _SOURCE,
                    "expr": expr,
                    "legendFormat": legend or "__auto",
                    **({"instant": True, "range": False} if each.kind == "stat" else {}),
                }
                for place, (expr, legend) in enumerate(each.queries)
            ],
        }
        x += wide


if __name__ == "__main__":
    for one in DASHBOARDS:
        path = Path(sys.argv[1]) / f"{one.name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(model(one), indent=1) + "\n")
