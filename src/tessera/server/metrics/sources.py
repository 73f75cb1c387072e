"""What the metrics APIs serve: the Protocol of a source, and several as one."""

from collections.abc import Sequence
from typing import Protocol

from tessera.api.kubernetes.metrics.answers import Series, Value
from tessera.api.kubernetes.metrics.paths import Custom, External
from tessera.errors import Unavailable

__all__ = ["Absent", "JoinedSources", "Source"]


class Absent(Unavailable):
    """There is no such metric, or no value of it; the message says why."""


class Source(Protocol):
    """Metrics by name, and their values. Raised is `Absent`, or `Unavailable` where what is behind does not answer."""

    def custom(self) -> frozenset[tuple[str, str]]:
        """Return resources and metrics of their objects."""
        ...

    def external(self) -> frozenset[str]:
        """Return metrics that describe no object."""
        ...

    async def values(self, requested: Custom) -> Sequence[Value]:
        """Return values of a metric that is among `custom`: one at least."""
        ...

    async def series(self, requested: External) -> Sequence[Series]:
        """Return series of a metric that is among `external`: one at least."""
        ...


class JoinedSources:
    """Several sources as one; of two that serve the same metric the first answers.

    Args:
        sources: in their order.

    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources

    def custom(self) -> frozenset[tuple[str, str]]:
        """Return resources and metrics of their objects."""
        return frozenset[tuple[str, str]]().union(*(each.custom() for each in self._sources))

    def external(self) -> frozenset[str]:
        """Return metrics that describe no object."""
        return frozenset[str]().union(*(each.external() for each in self._sources))

    async def values(self, requested: Custom) -> Sequence[Value]:
        """Return values of a metric."""
        for each in self._sources:
            if (requested.resource, requested.metric) in each.custom():
                return await each.values(requested)
        served = sorted(metric for resource, metric in self.custom() if resource == requested.resource)
        raise _unknown(f"metric {requested.metric} of {requested.resource}", served)

    async def series(self, requested: External) -> Sequence[Series]:
        """Return series of a metric."""
        for each in self._sources:
            if requested.metric in each.external():
                return await each.series(requested)
        raise _unknown(f"external metric {requested.metric}", sorted(self.external()))


_MOST_SHOWN = 20


def _unknown(subject: str, served: Sequence[str]) -> Absent:
    more = ", ..." if len(served) > _MOST_SHOWN else ""
    names = ", ".join(served[:_MOST_SHOWN]) or "none"
    return Absent(subject, found="there is no such metric", hint=f"those served are {names}{more}")
