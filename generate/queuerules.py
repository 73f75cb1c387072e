"""Rules for sites that scrape model servers with Prometheus: queue time, and prometheus-adapter's configuration.

Series of both engines get one name by recording rules, because two rules of prometheus-adapter for one metric hide
each other.
"""

from functools import partial
from typing import Final

from tessera.api.documents import Plain
from tessera.core.serving.metrics.enginemetrics import ENGINE_METRICS
from tessera.core.serving.metrics.metricnames import (
    IN_FLIGHT,
    QUEUE_TIME,
    QUEUE_TIME_US,
    SERVER,
    WAITING,
    recorded_name,
)
from tessera.core.serving.metrics.promql import in_flight, queue_time, waiting

__all__ = ["adapter_rules", "prometheus_rules"]

_BY: Final = {"pod": f"cluster, namespace, pod, {SERVER}", "server": f"cluster, namespace, {SERVER}"}
"""The label `cluster` keeps the clusters of one ruler apart; it is absent where there is one."""
_LONG_S: Final = 5
"""An average wait that fires an alert: far above the usual targets for inference."""
_METRICS: Final = {
    QUEUE_TIME: (QUEUE_TIME, ""),
    WAITING: (WAITING, ""),
    IN_FLIGHT: (IN_FLIGHT, ""),
    QUEUE_TIME_US: (QUEUE_TIME, " * 1e6"),
}
"""Metrics of pods, as `tessera metrics` serves them: the recorded series, and its unit. Servers lack the last."""


def prometheus_rules() -> Plain:
    """Return rules for Prometheus: recorded series of pods and servers, and an alert for requests that wait long."""
    recorded: list[Plain] = []
    for level in _BY:
        for metric, expression in (
            (QUEUE_TIME, queue_time),
            (WAITING, waiting),
            (IN_FLIGHT, in_flight),
        ):
            each = " or ".join(f"({expression(engine, partial(_sum, level))})" for engine in ENGINE_METRICS)
            recorded.append({"record": recorded_name(metric, level), "expr": each})
    alert: Plain = {
        "alert": "TesseraRequestsWaitLong",
        "expr": f"{recorded_name(QUEUE_TIME, 'server')} > {_LONG_S}",
        "for": "10m",
        "labels": {"severity": "warning"},
        "annotations": {
            "summary": f"Requests of model server {{{{ $labels.{SERVER} }}}} in namespace {{{{ $labels.namespace }}}} "
            "have waited {{ $value | humanizeDuration }} on average for ten minutes.",
            "runbook": "docs/troubleshoot.md#tesserarequestswaitlong",
        },
    }
    return {"groups": [{"name": "tessera-model-servers", "rules": [*recorded, alert]}]}


def adapter_rules() -> Plain:
    """Return the configuration of prometheus-adapter with the metrics of `tessera metrics`, except its decisions."""
    rules: list[Plain] = [
        _adapter_rule(metric, recorded_name(source, "pod"), unit, ("namespace", "pod"))
        for metric, (source, unit) in _METRICS.items()
    ]
    external: list[Plain] = [
        _adapter_rule(metric, recorded_name(source, "server"), unit, ("namespace",))
        for metric, (source, unit) in _METRICS.items()
        if not unit
    ]
    return {"rules": rules, "externalRules": external}


def _adapter_rule(metric: str, series: str, unit: str, resources: tuple[str, ...]) -> Plain:
    there = ", ".join(f'{each}!=""' for each in resources)
    # External metrics are grouped by nothing: without a selector each server should have a series, not their sum.
    by = "<<.GroupBy>>" if "pod" in resources else _BY["server"]
    overrides: Plain = {each: {"resource": each} for each in resources}
    return {
        "seriesQuery": f"{series}{{{there}}}",
        "resources": {"overrides": overrides},
        "name": {"matches": "^.*$", "as": metric},
        "metricsQuery": f"sum by ({by}) (<<.Series>>{{<<.LabelMatchers>>}}){unit}",
    }


def _sum(level: str, inner: str) -> str:
    chosen = f'{{{SERVER}!=""}}' if level == "server" else ""
    return f"sum by ({_BY[level]}) ({inner.replace('{}', chosen)})"
