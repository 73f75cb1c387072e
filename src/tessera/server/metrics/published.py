"""The Prometheus metrics of model servers: observations and decisions."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from tessera.core.serving.autoscaling.decisions import ScalingDecision
from tessera.core.serving.autoscaling.serverfacts import ServerFacts
from tessera.core.serving.metrics.counters import Unmeasured
from tessera.core.serving.metrics.observed import ServerObservation
from tessera.core.usage.families import Labels, Metric
from tessera.core.usage.ownmetrics import (
    MODEL_SERVER_DECISION_AGE,
    MODEL_SERVER_IN_FLIGHT,
    MODEL_SERVER_INPUT_INVALID,
    MODEL_SERVER_PROPOSED,
    MODEL_SERVER_QUEUE_TIME,
    MODEL_SERVER_READY,
    MODEL_SERVER_REPLICAS,
    MODEL_SERVERS_LEFT_OUT,
)
from tessera.measures import Measures

__all__ = ["MeasuredServer", "publish"]

_MOST_OF_NAMESPACE: Final = 256
"""Most servers of a namespace with series: users who create Deployments must not fill Prometheus."""


class MeasuredServer(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements of a server in one pass."""

    at_s: float
    facts: ServerFacts
    observation: ServerObservation
    decision: ScalingDecision
    decided_s: float | None
    """When the last valid decision that still counts was made; None for none."""


def _known(value: float | Unmeasured) -> float | None:
    return None if isinstance(value, Unmeasured) else value


_GAUGES: Final[Mapping[Metric, Callable[[MeasuredServer], float | None]]] = {
    MODEL_SERVER_QUEUE_TIME: lambda each: _known(each.observation.queue_time_s),
    MODEL_SERVER_IN_FLIGHT: lambda each: _known(each.observation.in_flight),
    MODEL_SERVER_REPLICAS: lambda each: each.facts.replicas,
    MODEL_SERVER_READY: lambda each: each.facts.ready,
    MODEL_SERVER_PROPOSED: lambda each: each.decision.replicas,
    MODEL_SERVER_DECISION_AGE: lambda each: None if each.decided_s is None else each.at_s - each.decided_s,
    MODEL_SERVER_INPUT_INVALID: lambda each: each.decision.bad,
}
"""Unknown values have no series."""


def publish(measures: Measures, observed: Mapping[tuple[str, str], MeasuredServer]) -> None:
    """Set the gauges of all servers, by namespace and name; deleted servers have no series."""
    shown: dict[tuple[str, str], MeasuredServer] = {}
    of_namespace = Counter[str]()
    for key, each in sorted(observed.items()):
        of_namespace[key[0]] += 1
        if of_namespace[key[0]] <= _MOST_OF_NAMESPACE:
            shown[key] = each
    measures.set(MODEL_SERVERS_LEFT_OUT, {(): len(observed) - len(shown)})
    for metric, value_of in _GAUGES.items():
        values: dict[Labels, float] = {}
        for (namespace, server), each in shown.items():
            value = value_of(each)
            if value is not None:
                values[("namespace", namespace), ("server", server)] = float(value)
        measures.set(metric, values)
