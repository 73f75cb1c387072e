"""The dashboard `processes`: Tessera's own processes: what they decide, and how long it takes."""

from generate.dashboards.panels import RATE, Dashboard, Panel

__all__ = ["PROCESSES"]


PROCESSES = Dashboard(
    "processes",
    "Tessera: its processes",
    (
        Panel("Server is ready", "none", (("tessera_server_ready", "{{instance}}"),)),
        Panel(
            "Requests to the server, by answer",
            "reqps",
            ((f"sum by (handler, code) (rate(tessera_server_requests_total{RATE}))", "{{handler}} {{code}}"),),
        ),
        Panel(
            "Time of a request, 99th percentile",
            "s",
            (
                (
                    (
                        "histogram_quantile(0.99, sum by (le, handler) "
                        f"(rate(tessera_server_request_duration_seconds_bucket{RATE})))"
                    ),
                    "{{handler}}",
                ),
            ),
        ),
        Panel(
            "Bindings",
            "reqps",
            ((f"sum by (result) (rate(tessera_server_bindings_total{RATE}))", "{{result}}"),),
        ),
        Panel(
            "Plan duration of the controller, 99th percentile",
            "s",
            (
                (
                    (
                        "histogram_quantile(0.99, sum by (le) "
                        f"(rate(tessera_controller_plan_duration_seconds_bucket{RATE})))"
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
                        f"(rate(tessera_controller_reconcile_duration_seconds_bucket{RATE})))"
                    ),
                    "reconcile",
                ),
            ),
        ),
        Panel(
            "Reconciles of the controller",
            "reqps",
            ((f"sum by (result) (rate(tessera_controller_reconciles_total{RATE}))", "{{result}}"),),
        ),
        Panel(
            "Decisions in an hour",
            "none",
            (("sum by (reason) (increase(tessera_controller_decisions_total[1h]))", "{{reason}}"),),
        ),
        Panel("Time since a loop did its work", "s", (("tessera_loop_age_seconds", "{{instance}}: {{loop}}"),)),
        Panel(
            "Without series, beyond a bound",
            "none",
            (
                (
                    (
                        "max by (__name__) (tessera_exporter_containers_left_out or tessera_quota_left_out "
                        "or tessera_model_servers_left_out)"
                    ),
                    "{{__name__}}",
                ),
            ),
            text="Containers of a node, amounts of quotas, model servers of a namespace: what they use is not shown.",
        ),
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
