"""Rules for sites that scrape model servers with Prometheus: queue time, and prometheus-adapter's configuration.

The expressions compute the same as `core.serving.queuetime`: `increase` handles restarts, an idle pod
has no wait, and if requests wait and none was started the wait is at least the window. Series of both engines
get one name by recording rules, because two rules of prometheus-adapter for one metric hide each other.
"""

from functools import partial
from typing import Final

from tessera.api.documents import Plain
from tessera.core.serving.enginemetrics import ENGINE_METRICS, EngineMetrics
from tessera.core.serving.metricnames import IN_FLIGHT, QUEUE_TIME, QUEUE_TIME_US, SERVER, WAITING, recorded_name
from tessera.core.serving.render.promql import WINDOW_S, queue_time

__all__ = ["adapter_rules", "prometheus_rules"]

_BY: Final = {"pod": f"namespace, pod, {SERVER}", "server": f"namespace, {SERVER}"}
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
            (QUEUE_TIME, _queue_time),
            (WAITING, _waiting),
            (IN_FLIGHT, _in_flight),
        ):
            each = " or ".join(f"({expression(engine, level)})" for engine in ENGINE_METRICS)
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


def _increases(level: str, names: tuple[str, ...]) -> str:
    """Return the increase of the sum of counters over the window."""
    return " + ".join(_sum(level, f"increase({name}{{}}[{WINDOW_S}s])") for name in names)


def _queue_time(engine: EngineMetrics, level: str) -> str:
    return queue_time(engine, partial(_sum, level))


def _waiting(engine: EngineMetrics, level: str) -> str:
    """Return the requests that wait; by Little's law where the engine does not say."""
    spent = _increases(level, (engine.queued,))
    return f"{_sum(level, f'{engine.waiting}{{}}')} or {spent} * {engine.seconds / WINDOW_S:.12g}"


def _in_flight(engine: EngineMetrics, level: str) -> str:
    if engine.running:
        running = _sum(level, f"{engine.running}{{}}")
    else:
        running = f"({_increases(level, engine.served)}) * {engine.seconds / WINDOW_S:.12g}"
    return f"({_waiting(engine, level)}) + ({running})"
