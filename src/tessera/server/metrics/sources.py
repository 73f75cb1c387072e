"""The metrics that the metrics APIs serve: the Protocol of a source, and several sources as one."""

from collections.abc import Sequence
from typing import Protocol

from tessera.api.kubernetes.metrics.answers import ExternalSeries, MetricValue
from tessera.api.kubernetes.metrics.paths import Custom, External
from tessera.errors import Unavailable

__all__ = ["JoinedSources", "MetricAbsent", "MetricsSource"]


class MetricAbsent(Unavailable):
    """The metric does not exist, or has no value; the message says why."""


class MetricsSource(Protocol):
    """Metrics by name, with their values. Raises `MetricAbsent`, or `Unavailable` where its backend does not answer."""

    def custom(self) -> frozenset[tuple[str, str]]:
        """Return the custom metrics with the resources that they describe."""
        ...

    def external(self) -> frozenset[str]:
        """Return the external metrics."""
        ...

    async def values(self, requested: Custom) -> Sequence[MetricValue]:
        """Return values of a metric in `custom`; at least one."""
        ...

    async def series(self, requested: External) -> Sequence[ExternalSeries]:
        """Return series of a metric in `external`; at least one."""
        ...


class JoinedSources:
    """Several sources as one; for a metric that two serve, the first answers.

    Args:
        sources: in order of precedence.

    """

    def __init__(self, sources: Sequence[MetricsSource]) -> None:
        self._sources = sources

    def custom(self) -> frozenset[tuple[str, str]]:
        """Return the custom metrics with the resources that they describe."""
        return frozenset[tuple[str, str]]().union(*(each.custom() for each in self._sources))

    def external(self) -> frozenset[str]:
        """Return the external metrics."""
        return frozenset[str]().union(*(each.external() for each in self._sources))

    async def values(self, requested: Custom) -> Sequence[MetricValue]:
        """Return values of a metric."""
        for each in self._sources:
            if (requested.resource, requested.metric) in each.custom():
                return await each.values(requested)
        served = sorted(metric for resource, metric in self.custom() if resource == requested.resource)
        raise _unknown(f"metric {requested.metric} of {requested.resource}", served)

    async def series(self, requested: External) -> Sequence[ExternalSeries]:
        """Return series of a metric."""
        for each in self._sources:
            if requested.metric in each.external():
                return await each.series(requested)
        raise _unknown(f"external metric {requested.metric}", sorted(self.external()))


_MOST_SHOWN = 20


def _unknown(subject: str, served: Sequence[str]) -> MetricAbsent:
    more = ", ..." if len(served) > _MOST_SHOWN else ""
    known = f"request one of {', '.join(served[:_MOST_SHOWN])}{more}"
    hint = known if served else "add a rule that serves it (--adapter-rules)"
    return MetricAbsent(subject, found="there is no such metric", hint=hint)
