"""The interface of GPU usage reports."""

from typing import Protocol

import msgspec

from tessera.core.usage.usagereport import UsageReport
from tessera.errors import Unavailable

__all__ = ["METRICS_PORT", "MOST_BYTES", "NodeReports", "UsageSource"]

METRICS_PORT = 9400
"""Of an agent that the chart installed."""

MOST_BYTES = 2 << 20
"""Largest report; one of 224 containers has 60 kB, of 2,048 containers with the longest names 1.2 MB."""


class NodeReports(msgspec.Struct, frozen=True):
    """The reports of some nodes' agents, and which agents do not answer."""

    reports: tuple[UsageReport, ...] = ()
    """Sorted by node."""
    silent: tuple[Unavailable, ...] = ()
    """Why an agent does not answer, or not with a report of its node."""

    def some(self) -> tuple[UsageReport, ...]:
        """Return the reports.

        Raises:
            Unavailable: there is none, because no agent answers.

        """
        if self.silent and not self.reports:
            raise self.silent[0]
        return self.reports


class UsageSource(Protocol):
    """The agents of some nodes, read again and again, once at a time."""

    async def read(self) -> NodeReports:
        """Return the report of each agent that answers; one that did not at the last read delays it little.

        Raises:
            Unavailable: no agent can be asked.

        """
        ...

    async def close(self) -> None:
        """End all connections."""
        ...
