"""The dashboard `serving`: model servers: requests, waiting, replicas."""

from generate.dashboards.panels import ALLOCATED, RATE, Dashboard, Panel

__all__ = ["SERVING"]


_SERVER = "{{namespace}}/{{server}}"
SERVING = Dashboard(
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
            "Model servers with unreadable metrics",
            "none",
            (("sum(tessera_model_server_input_invalid)", ""),),
            "stat",
            "The last good decision counts for five minutes; then the replicas stay as they are.",
        ),
        Panel("Queue time", "s", (("tessera_model_server_queue_time_seconds", _SERVER),)),
        Panel("Requests in flight", "none", (("tessera_model_server_requests_in_flight", _SERVER),)),
        Panel(
            "Replicas",
            "none",
            (
                ("tessera_model_server_proposed_replicas", f"{_SERVER}: proposed"),
                ("tessera_model_server_replicas", f"{_SERVER}: desired"),
                ("tessera_model_server_ready_replicas", f"{_SERVER}: ready"),
            ),
        ),
        Panel(
            "MIG instances and shares",
            "none",
            (
                (
                    (
                        f"count by (namespace, GPU_I_PROFILE) ({ALLOCATED} "
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
            text="Above 0 an earlier decision stays in force.",
        ),
        Panel(
            "Scrapes of model servers, by result",
            "reqps",
            ((f"sum by (result) (rate(tessera_metrics_samples_total{RATE}))", "{{result}}"),),
        ),
        Panel(
            "Wake-up queries, by result",
            "reqps",
            ((f"sum by (result) (rate(tessera_metrics_wake_queries_total{RATE}))", "{{result}}"),),
            text="Queried from the Prometheus of `metricsApi.prometheus` while a server has no replica.",
        ),
        Panel(
            "Queries for rules of prometheus-adapter, by result",
            "reqps",
            (
                (f"sum by (result) (rate(tessera_metrics_rule_queries_total{RATE}))", "{{result}}"),
                ("sum(tessera_metrics_rules_invalid)", "broken files"),
            ),
            text="Which series there are, queried from the Prometheus of `metricsApi.prometheus`.",
        ),
        Panel(
            "Requests to the metrics APIs, by answer",
            "reqps",
            ((f"sum by (code) (rate(tessera_metrics_requests_total{RATE}))", "{{code}}"),),
        ),
        Panel(
            "Reconcile duration of model servers, 99th percentile",
            "s",
            (
                (
                    (
                        "histogram_quantile(0.99, sum by (le) "
                        f"(rate(tessera_metrics_reconcile_duration_seconds_bucket{RATE})))"
                    ),
                    "reconcile",
                ),
            ),
        ),
    ),
)
