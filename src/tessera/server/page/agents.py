"""The page's metrics where no Prometheus is configured: read from the agents."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import Final, NamedTuple

from tessera.clients.nodeusage import NodeUsages
from tessera.core.explain.fleetview import ModelServerHistory
from tessera.core.usage.neighbors import Contention
from tessera.core.usage.rightsizing import Recommendation, recommendations
from tessera.core.usage.usagereport import UsageReport
from tessera.core.workload.need import PodKey
from tessera.errors import Unavailable
from tessera.log import Complaint, Logger
from tessera.server.page.cachedanswer import CachedAnswer

__all__ = ["AgentMetrics"]

_STALE_S: Final = 180.0
"""Older values are not shown."""


class _Reported(NamedTuple):
    activity: Mapping[PodKey, float] = {}
    contention: Mapping[str, tuple[Contention, ...]] = {}
    advice: tuple[Recommendation, ...] = ()


class AgentMetrics:
    """`PageMetrics` of the nodes' agents, read in the background while the page is open.

    Args:
        usages: the agents.
        silent: to which `usages` adds why an agent does not answer; emptied before each read.
        log: records errors.
        clock_s: a monotonic clock.
        every_s: time between two reads.

    """

    def __init__(
        self,
        usages: NodeUsages,
        silent: list[Unavailable],
        log: Logger,
        clock_s: Callable[[], float] = monotonic,
        every_s: float = 60.0,
    ) -> None:
        self._usages = usages
        self._silent = silent
        self._log = log
        self._complaints: dict[str, Complaint] = {}
        """By agent; of those alone that do not answer, so that one that does is complained about again."""
        complain = Complaint(log, "agents_not_read")
        self._reported = CachedAnswer(self._read, _Reported(), complain, clock_s, every_s=every_s, stale_s=_STALE_S)

    def refresh(self, changed: Callable[[], None]) -> None:
        """Read again if the last read is old."""
        self._reported.refresh(changed)

    async def _read(self) -> _Reported:
        self._silent.clear()
        reports = await self._usages.read()
        self._complain()
        return _Reported(
            activity=_activity(reports),
            contention={gpu.uuid: gpu.contention for each in reports for gpu in each.gpus if gpu.contention},
            advice=tuple(await asyncio.to_thread(recommendations, reports)),
        )

    def _complain(self) -> None:
        """Log each agent that does not answer: once, until it does or its reason changes."""
        known, self._complaints = self._complaints, {}
        for each in self._silent:
            complain = known.get(each.subject) or Complaint(self._log, "agent_not_read")
            complain(each)
            self._complaints[each.subject] = complain

    def activity(self) -> Mapping[PodKey, float]:
        """Return how much of its compute each pod uses, in percent: of its busiest device."""
        return self._reported.value.activity

    def contention(self) -> Mapping[str, tuple[Contention, ...]]:
        """Return what slows down the pods of GPUs, by UUID."""
        return self._reported.value.contention

    def services(self) -> tuple[ModelServerHistory, ...]:
        """Return nothing: agents do not measure model servers."""
        return ()

    def recommendations(self) -> tuple[Recommendation, ...]:
        """Return recommendations for containers, by their usage since the agent started; the most urgent first."""
        return self._reported.value.advice


def _activity(reports: Iterable[UsageReport]) -> Mapping[PodKey, float]:
    found: dict[PodKey, float] = defaultdict(float)
    devices = (device for report in reports for gpu in report.gpus for device in gpu.devices)
    for each in (container for device in devices for container in device.containers):
        if each.gpu_percent is not None:
            key = PodKey(f"{each.namespace}/{each.pod}")
            found[key] = max(found[key], min(each.gpu_percent, 100.0))
    return found
