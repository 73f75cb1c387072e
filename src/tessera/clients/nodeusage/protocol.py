"""The interface of GPU usage reports."""

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Protocol, Self

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

    @classmethod
    async def gathered(cls, answers: Iterable[Awaitable[UsageReport]]) -> Self:
        """Wait for all answers; an `Unavailable` is of an agent that does not answer."""
        found = await asyncio.gather(*answers, return_exceptions=True)
        for each in found:
            if isinstance(each, BaseException) and not isinstance(each, Unavailable):
                raise each
        reports = sorted((each for each in found if isinstance(each, UsageReport)), key=lambda each: each.node)
        return cls(tuple(reports), tuple(each for each in found if isinstance(each, Unavailable)))

    def some(self) -> tuple[UsageReport, ...]:
        """Return the reports.

        Raises:
            Unavailable: there is none, because no agent answers.

        """
        if self.silent and not self.reports:
            raise self.silent[0]
        return self.reports


class UsageSource(Protocol):
    """The agents of some nodes."""

    async def read(self) -> NodeReports:
        """Return the report of each agent that answers.

        Raises:
            Unavailable: no agent can be asked.

        """
        ...

    async def close(self) -> None:
        """End all connections."""
        ...
