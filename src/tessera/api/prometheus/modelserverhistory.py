"""The last hour of model servers by Prometheus: its queries, and their answers.

Answers are untrusted: an implausible sample is left out.
Source: prometheus.io, "HTTP API"; kubernetes/kube-state-metrics `docs/metrics/workload/deployment-metrics.md`.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from tessera.api.prometheus.answers import Series, numbers, read_series
from tessera.api.prometheus.matchers import selected
from tessera.core.explain.fleetview import ModelServerHistory, ScalePoint
from tessera.core.serving.metrics.metricnames import IN_FLIGHT, SERVER, recorded_name

__all__ = ["model_server_queries", "read_model_servers"]

_HOUR_S: Final = 3600
_STEP_S: Final = 60
_MOST_SERIES: Final = 20_000
_LOAD: Final = recorded_name(IN_FLIGHT, "server")
_Values: TypeAlias = Mapping[tuple[str, str], Mapping[float, float]]
"""By namespace and name, then by time."""


def model_server_queries(now_s: float, matchers: str = "") -> dict[str, dict[str, str]]:
    """Return the parameters of the range queries, by purpose.

    Args:
        now_s: seconds since 1970.
        matchers: labels of the cluster's series; empty where Prometheus has those of one cluster.

    """
    load, desired, ready = (
        selected(each, matchers)
        for each in (_LOAD, "kube_deployment_spec_replicas", "kube_deployment_status_replicas_ready")
    )
    of_server = f'and on (namespace, deployment) label_replace({load}, "deployment", "$1", "{SERVER}", "(.+)")'
    queries = {
        "in_flight": f"max by (namespace, {SERVER}) ({load})",
        "desired": f"max by (namespace, deployment) ({desired} {of_server})",
        "ready": f"max by (namespace, deployment) ({ready} {of_server})",
    }
    end_s = now_s - now_s % _STEP_S
    span = {"start": f"{end_s - _HOUR_S:.0f}", "end": f"{end_s:.0f}", "step": str(_STEP_S)}
    return {name: {"query": query, **span} for name, query in queries.items()}


def read_model_servers(answers: Mapping[str, bytes], source: str) -> tuple[ModelServerHistory, ...]:
    """Return the model servers with known load and replicas, ordered by name.

    Raises:
        InvalidInput: an answer is not Prometheus' JSON, or has too many series.

    """
    labels = {"in_flight": SERVER, "desired": "deployment", "ready": "deployment"}
    series = {name: read_series(answers[name], source, most=_MOST_SERIES) for name in labels}
    found = {name: _values(series[name], label) for name, label in labels.items()}
    load, desired, ready = found["in_flight"], found["desired"], found["ready"]
    return tuple(
        ModelServerHistory(
            namespace=each[0], name=each[1], points=tuple(_points(load[each], desired[each], ready[each]))
        )
        for each in sorted(load.keys() & desired.keys() & ready.keys())
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
            found[key].update(numbers(each.values))
    return found
