"""Names of the metrics of model servers: in Prometheus, and in the metrics APIs."""

from typing import Final

from tessera.core.serving.annotations import SERVER_LABEL

__all__ = [
    "IN_FLIGHT",
    "QUEUE_TIME",
    "QUEUE_TIME_US",
    "REPLICAS",
    "SERVER",
    "SERVING_METRICS",
    "WAITING",
    "recorded_name",
]

REPLICAS: Final = "tessera_replicas"
"""The replicas proposed by Tessera's policy; an external metric by the server's label."""
QUEUE_TIME: Final = "tessera_queue_time_seconds"
"""The average time that a request waited in the queue of a pod or server."""
QUEUE_TIME_US: Final = "avg_time_queue_us"
"""The same in microseconds, under the name of the rule in Triton's Helm chart: its HorizontalPodAutoscaler works."""
WAITING: Final = "tessera_requests_waiting"
IN_FLIGHT: Final = "tessera_requests_in_flight"

SERVING_METRICS: Final = (REPLICAS, QUEUE_TIME, QUEUE_TIME_US, WAITING, IN_FLIGHT)

SERVER: Final = SERVER_LABEL.replace(".", "_").replace("/", "_")
"""The label `serving.tessera.dev/server` as Prometheus has it: a PodMonitor's `podTargetLabels`."""


def recorded_name(metric: str, level: str) -> str:
    """Return the name under which Prometheus records a metric of each `pod` or `server`."""
    return f"{level}:{metric}:2m"
