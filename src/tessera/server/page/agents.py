"""The page's metrics where no Prometheus is configured: read from the agents."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import Final

from tessera.clients.nodeusage import UsageSource
from tessera.core.explain.observedfleet import MeasuredUsage
from tessera.core.usage.activity import pod_activity, pod_memory
from tessera.core.usage.rightsizing import recommendations
from tessera.core.usage.usagereport import ContainerReport, UsageReport
from tessera.errors import Unavailable
from tessera.log import Logger, RepeatedError
from tessera.server.page.cachedanswer import CachedAnswer

__all__ = ["AgentMetrics"]

_STALE_S: Final = 180.0
"""Older values are not shown."""


class AgentMetrics:
    """`PageMetrics` of the nodes' agents, read in the background while the page is open.

    Args:
        usages: the agents.
        log: records errors.
        clock_s: a monotonic clock.
        every_s: time between two reads.

    """

    def __init__(
        self,
        usages: UsageSource,
        log: Logger,
        clock_s: Callable[[], float] = monotonic,
        every_s: float = 60.0,
    ) -> None:
        self._usages = usages
        self._log = log
        self._complaints: dict[str, RepeatedError] = {}
        """By agent; of those alone that do not answer, so that one that does is complained about again."""
        complain = RepeatedError(log, "agents_not_read")
        self._reported = CachedAnswer(self._read, MeasuredUsage(), complain, clock_s, every_s=every_s, stale_s=_STALE_S)

    def refresh(self, changed: Callable[[], None]) -> None:
        """Read again if the last read is old."""
        self._reported.refresh(changed)

    async def _read(self) -> MeasuredUsage:
        found = await self._usages.read()
        self._complain(found.silent)
        reports = found.reports
        return MeasuredUsage(
            activity=pod_activity((node, name, each.gpu_percent) for node, _, name, each in _containers(reports)),
            memory_mib=pod_memory((node, gpu, name, each.used_mib) for node, gpu, name, each in _containers(reports)),
            contention={
                (each.node, gpu.uuid): gpu.contention for each in reports for gpu in each.gpus if gpu.contention
            },
            throttled={(each.node, gpu.uuid): gpu.throttled for each in reports for gpu in each.gpus if gpu.throttled},
            recommendations=tuple(await asyncio.to_thread(recommendations, reports)),
        )

    def _complain(self, silent: Iterable[Unavailable]) -> None:
        """Log each agent that does not answer: once, until it does or its reason changes."""
        known, self._complaints = self._complaints, {}
        for each in silent:
            complain = known.get(each.subject) or RepeatedError(self._log, "agent_not_read")
            complain(each)
            self._complaints[each.subject] = complain

    @property
    def measured(self) -> MeasuredUsage:
        """What agents report; nothing of model servers, which they do not measure."""
        return self._reported.value


def _containers(reports: Iterable[UsageReport]) -> Iterator[tuple[str, str, str, ContainerReport]]:
    """Yield each container of a device with its node, its GPU's UUID, and its name."""
    for report in reports:
        for gpu in report.gpus:
            for device in gpu.devices:
                yield from ((report.node, gpu.uuid, each.name, each) for each in device.containers)
