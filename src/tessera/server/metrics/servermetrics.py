"""The metrics of model servers and their pods in the metrics APIs, as measured in the last pass."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tessera.api.kubernetes.labelselectors import selects
from tessera.api.kubernetes.metrics.answers import ExternalSeries, MetricValue
from tessera.api.kubernetes.metrics.paths import Custom, External
from tessera.core.serving.annotations import SERVER_LABEL
from tessera.core.serving.metrics.counters import Unmeasured
from tessera.core.serving.metrics.load import PASS_S
from tessera.core.serving.metrics.metricnames import IN_FLIGHT, QUEUE_TIME, QUEUE_TIME_US, REPLICAS, WAITING
from tessera.core.serving.metrics.observed import ServerObservation
from tessera.core.serving.metrics.queuetime import Window
from tessera.errors import Unavailable
from tessera.server.metrics.autoscaling import ModelServerAutoscaler
from tessera.server.metrics.sources import MetricAbsent

__all__ = ["ModelServerMetrics"]

_STALE_S: Final = 60.0
"""Measurements older than this are not served."""
_SHOWN: Final = 5
"""Pods or servers whose reasons an error names: autoscalers repeat it in a condition."""
_POD_METRICS: Final[Mapping[str, Callable[[Window], float]]] = {
    QUEUE_TIME: lambda window: window.queue_time_s,
    WAITING: lambda window: window.waiting,
    IN_FLIGHT: lambda window: window.in_flight,
    QUEUE_TIME_US: lambda window: window.queue_time_s * 1e6,
}
_SERVER_METRICS: Final[Mapping[str, Callable[[ServerObservation], float | Unmeasured]]] = {
    QUEUE_TIME: lambda observation: observation.queue_time_s,
    WAITING: lambda observation: observation.waiting,
    IN_FLIGHT: lambda observation: observation.in_flight,
}


class ModelServerMetrics:
    """A `MetricsSource` of model servers and their pods.

    Args:
        servers: measures them.
        now_s: the seconds since 1970.

    """

    def __init__(self, servers: ModelServerAutoscaler, *, now_s: Callable[[], float] = time.time) -> None:
        self._servers = servers
        self._now_s = now_s

    def custom(self) -> frozenset[tuple[str, str]]:
        """Return the metrics of pods."""
        return frozenset(("pods", name) for name in _POD_METRICS)

    def external(self) -> frozenset[str]:
        """Return the metrics of servers."""
        return frozenset({*_SERVER_METRICS, REPLICAS})

    async def values(self, requested: Custom) -> Sequence[MetricValue]:
        """Return a metric of pods."""
        subject = f"metric {requested.metric} of pods in namespace {requested.namespace}"
        self._check_fresh(subject)
        windows = {
            name: (server.at_s, window)
            for (namespace, _), server in self._servers.measured.items()
            if namespace == requested.namespace
            for name, window in server.observation.pods.items()
        }
        chosen = {
            name: each
            for name, each in windows.items()
            if requested.name in {"", name}
            and selects(requested.selector, self._servers.labels_of_pod(requested.namespace, name))
        }
        values = [
            MetricValue(
                name=name,
                namespace=requested.namespace,
                value=_POD_METRICS[requested.metric](window),
                at_s=at_s,
                window_s=window.seconds,
            )
            for name, (at_s, window) in sorted(chosen.items())
            if isinstance(window, Window)
        ]
        if not values:
            reasons = {name: window.reason for name, (_, window) in chosen.items() if isinstance(window, Unmeasured)}
            raise MetricAbsent(
                subject,
                found="; ".join(f"{name}: {reason}" for name, reason in sorted(reasons.items())[:_SHOWN])
                or f"no such running pod has the label {SERVER_LABEL}",
                hint="wait until a pod was measured",
            )
        return values

    async def series(self, requested: External) -> Sequence[ExternalSeries]:
        """Return a metric of servers, by their label."""
        subject = f"external metric {requested.metric} in namespace {requested.namespace}"
        self._check_fresh(subject)
        series, reasons = list[ExternalSeries](), list[str]()
        for (namespace, server), measured in sorted(self._servers.measured.items()):
            labels = {SERVER_LABEL: server}
            if namespace != requested.namespace or not selects(requested.selector, labels):
                continue
            value: float | Unmeasured
            if requested.metric == REPLICAS:
                decision = measured.decision
                value = Unmeasured(decision.reason) if decision.replicas is None else float(decision.replicas)
            else:
                value = _SERVER_METRICS[requested.metric](measured.observation)
            if isinstance(value, Unmeasured):
                reasons.append(f"{server}: {value.reason}")
            else:
                series.append(ExternalSeries(labels=labels, value=value, at_s=measured.at_s))
        if reasons or not series:  # a sum without one of its servers would be too small
            more = [f"{len(reasons) - _SHOWN} more servers"] if len(reasons) > _SHOWN else []
            found = "; ".join((*reasons[:_SHOWN], *more)) or "no such server"
            raise MetricAbsent(subject, found=found, hint=f"check the pods with the label {SERVER_LABEL}")
        return series

    def _check_fresh(self, subject: str) -> None:
        measured_s = self._servers.measured_s
        age_s = math.inf if measured_s is None else self._now_s() - measured_s
        if age_s > _STALE_S:
            found = "nothing was measured yet" if measured_s is None else f"last measured {age_s:.0f} s ago"
            raise Unavailable(subject, found=found, hint=f"it is measured every {PASS_S} s; try again")
