"""Prometheus' data for the dashboard page: how busy pods are, and the last hour of model servers.

Answers are untrusted: an implausible sample is left out.
Source: prometheus.io, "HTTP API"; kubernetes/kube-state-metrics `docs/metrics/workload/deployment-metrics.md`.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from tessera.api.prometheus.answers import Series, read_series
from tessera.core.explain.fleetview import ScalePoint, Service
from tessera.core.serving.metricnames import IN_FLIGHT, SERVER, recorded_name
from tessera.core.usage.nodemetrics import GPU_UTIL, SM_ACTIVE, THROTTLED
from tessera.core.usage.throttling import Cause
from tessera.core.workload.need import PodKey

__all__ = ["page_queries", "read_activity", "read_services", "read_throttled"]

_HOUR_S: Final = 3600
_STEP_S: Final = 60
_MOST_SERIES: Final = 20_000
_MOST_SERVICES: Final = 200
"""Model servers that are shown."""
_MOST: Final = 1e9
"""Upper bound of plausible replicas or requests."""
_LOAD: Final = recorded_name(IN_FLIGHT, "server")
_OF_SERVER: Final = f'and on (namespace, deployment) label_replace({_LOAD}, "deployment", "$1", "{SERVER}", "(.+)")'
_Values = Mapping[tuple[str, str], Mapping[float, float]]
"""By namespace and name, then by time."""


def page_queries(now_s: float) -> dict[str, tuple[str, dict[str, str]]]:
    """Return the queries by purpose: path below Prometheus' address, and parameters."""
    activity = (
        f'max by (namespace, pod) (avg_over_time({GPU_UTIL.name}{{pod!=""}}[2m])'
        f' or avg_over_time({SM_ACTIVE.name}{{pod!=""}}[2m]) * 100)'
    )
    over_time = {
        "in_flight": f"max by (namespace, {SERVER}) ({_LOAD})",
        "desired": f"max by (namespace, deployment) (kube_deployment_spec_replicas {_OF_SERVER})",
        "ready": f"max by (namespace, deployment) (kube_deployment_status_replicas_ready {_OF_SERVER})",
    }
    end_s = now_s - now_s % _STEP_S
    span = {"start": f"{end_s - _HOUR_S:.0f}", "end": f"{end_s:.0f}", "step": str(_STEP_S)}
    ranges = {name: ("/api/v1/query_range", {"query": query, **span}) for name, query in over_time.items()}
    instant = {"activity": activity, "throttled": f"max by (UUID, cause) ({THROTTLED.name}) == 1"}
    return {name: ("/api/v1/query", {"query": query}) for name, query in instant.items()} | ranges


def read_activity(answer: bytes, source: str) -> dict[PodKey, float]:
    """Return how much of its compute each pod uses, in percent.

    Raises:
        InvalidInput: the answer is none, or has too many series.

    """
    found = {}
    for each in read_series(answer, source, most=_MOST_SERIES):
        namespace, pod = each.metric.get("namespace", ""), each.metric.get("pod", "")
        for _, percent in _believed([each.value] if each.value else []):
            if namespace and pod:
                found[PodKey(f"{namespace}/{pod}")] = min(percent, 100.0)
    return found


def read_throttled(answer: bytes, source: str) -> dict[str, tuple[str, ...]]:
    """Return why GPUs lower their clocks, by UUID.

    Raises:
        InvalidInput: the answer is none, or has too many series.

    """
    found: dict[str, set[str]] = defaultdict(set)
    for each in read_series(answer, source, most=_MOST_SERIES):
        found[each.metric.get("UUID", "")].add(each.metric.get("cause", ""))
    return {uuid: tuple(cause.value for cause in Cause if cause.value in causes) for uuid, causes in found.items()}


def read_services(answers: Mapping[str, bytes], source: str) -> tuple[Service, ...]:
    """Return the model servers with known load and replicas, ordered by name.

    Raises:
        InvalidInput: an answer is none, or has too many series.

    """
    labels = {"in_flight": SERVER, "desired": "deployment", "ready": "deployment"}
    series = {name: read_series(answers[name], source, most=_MOST_SERIES) for name in labels}
    found = {name: _values(series[name], label) for name, label in labels.items()}
    load, desired, ready = found["in_flight"], found["desired"], found["ready"]
    return tuple(
        Service(namespace=each[0], name=each[1], points=tuple(_points(load[each], desired[each], ready[each])))
        for each in sorted(load.keys() & desired.keys() & ready.keys())[:_MOST_SERVICES]
    )


def _points(
    load: Mapping[float, float], desired: Mapping[float, float], ready: Mapping[float, float]
) -> Iterator[ScalePoint]:
    for at_s in sorted(load.keys() & desired.keys() & ready.keys()):
        yield ScalePoint(at_s, round(desired[at_s]), round(ready[at_s]), load[at_s])


def _values(series: Iterable[Series], label: str) -> _Values:
    found: dict[tuple[str, str], dict[float, float]] = defaultdict(dict)
    for each in series:
        key = each.metric.get("namespace", ""), each.metric.get(label, "")
        if all(key):
            found[key].update(_believed(each.values))
    return found


def _believed(samples: Iterable[tuple[float, str]]) -> Iterator[tuple[float, float]]:
    for at_s, text in samples:
        try:
            value = float(text)
        except ValueError:
            continue
        if math.isfinite(at_s) and 0 <= value <= _MOST:
            yield at_s, value
