"""Converts Prometheus' result of a rule's query: values of objects, or series, truncated as in the adapter."""

import math
from collections.abc import Collection, Sequence
from typing import Final

from tessera.api.kubernetes.metrics.answers import ExternalSeries, MetricValue
from tessera.api.prometheus.answers import Sampled
from tessera.errors import InvalidInput, shown

__all__ = ["series_of", "values_of"]

_LARGEST: Final = ((1 << 63) - 1) / 1000


def values_of(sampled: Sequence[Sampled], label: str, names: Collection[str], namespace: str) -> list[MetricValue]:
    """Return the values of objects, without those that have none; NaN, as of a division by zero, is 0.

    Args:
        sampled: Prometheus' result.
        label: with the names of objects.
        names: the requested objects.
        namespace: of the objects.

    Raises:
        InvalidInput: an object with two values, or one that no autoscaler could use.

    """
    found, requested = dict[str, MetricValue](), frozenset(names)
    for each in sampled:
        name = each.labels.get(label, "")
        if name not in requested:
            continue
        if name in found:
            cause = f"{label} {shown(name)} has two series: one has {_words(each)}"
            raise InvalidInput("answer", found=cause, hint="write its metricsQuery as sum(...) by (<<.GroupBy>>)")
        value = 0.0 if math.isnan(each.value) else _milli(each.value, f"{label} {shown(name)}")
        found[name] = MetricValue(name=name, namespace=namespace, value=value, at_s=each.at_s)
    return [found[name] for name in sorted(found)]


def series_of(sampled: Sequence[Sampled]) -> list[ExternalSeries]:
    """Return the series of an external metric.

    Raises:
        InvalidInput: a value that is not a number, or that no autoscaler could use.

    """
    return [
        ExternalSeries(labels=each.labels, value=_milli(each.value, _words(each)), at_s=each.at_s) for each in sampled
    ]


def _words(sample: Sampled) -> str:
    return f"series {shown(', '.join(f'{name}={value}' for name, value in sorted(sample.labels.items())))}"


def _milli(value: float, subject: str) -> float:
    """Return a value truncated to the thousandth, toward 0."""
    if not math.isfinite(value) or abs(value) > _LARGEST:
        raise InvalidInput(subject, found=f"{value:g}", expected="a number that an autoscaler can use")
    return math.trunc(value * 1000) / 1000
