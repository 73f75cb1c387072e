"""The page's metrics where no Prometheus is configured: read from the agents."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import Final

from tessera.api.tessera.usage.usagereports import UsageReport, recommendations
from tessera.clients.nodeusage import NodeUsages
from tessera.core.explain.fleetview import Service
from tessera.core.usage.neighbours import Contention
from tessera.core.usage.rightsizing import Recommendation
from tessera.core.workload.need import PodKey
from tessera.log import Complaint, Logger
from tessera.loops import one_turn

__all__ = ["AgentsMemory"]

_STALE_S: Final = 180.0
"""Older values are not shown."""


class AgentsMemory:
    """`PageMetrics` of the nodes' agents, read in the background while the page is open.

    Args:
        usages: the agents.
        log: records errors.
        clock_s: a monotonic clock.
        every_s: time between two reads.

    """

    def __init__(
        self, usages: NodeUsages, log: Logger, clock_s: Callable[[], float] = monotonic, every_s: float = 60.0
    ) -> None:
        self._usages = usages
        self._every_s = every_s
        self._clock_s = clock_s
        self._complain = Complaint(log, "agents_not_read")
        self._asking: asyncio.Task[None] | None = None
        self._asked_s = self._known_s = -float("inf")
        self._forget()

    def _forget(self) -> None:
        self._activity: Mapping[PodKey, float] = {}
        self._contention: Mapping[str, tuple[Contention, ...]] = {}
        self._advice: tuple[Recommendation, ...] = ()

    async def refresh(self) -> None:
        """Start reading again if the last read is old."""
        now_s = self._clock_s()
        if now_s - self._known_s >= _STALE_S:
            self._forget()
        if now_s - self._asked_s >= self._every_s and (self._asking is None or self._asking.done()):
            self._asked_s = now_s
            self._asking = asyncio.create_task(one_turn(self._ask, self._complain, self._complain.settle))

    async def _ask(self) -> None:
        reports = await self._usages.read()
        self._advice = tuple(await asyncio.to_thread(recommendations, reports))
        self._activity = _activity(reports)
        self._contention = {gpu.uuid: gpu.contention for each in reports for gpu in each.gpus if gpu.contention}
        self._known_s = self._clock_s()

    def activity(self) -> Mapping[PodKey, float]:
        """Return how much of its compute each pod uses, in percent: of its busiest device."""
        return self._activity

    def contention(self) -> Mapping[str, tuple[Contention, ...]]:
        """Return what slows down the pods of GPUs, by UUID."""
        return self._contention

    def services(self) -> tuple[Service, ...]:
        """Return nothing: agents do not measure model servers."""
        return ()

    def recommendations(self) -> tuple[Recommendation, ...]:
        """Return recommendations for containers, by their usage since the agent started; the most urgent first."""
        return self._advice


def _activity(reports: Iterable[UsageReport]) -> Mapping[PodKey, float]:
    found: dict[PodKey, float] = defaultdict(float)
    devices = (device for report in reports for gpu in report.gpus for device in gpu.devices)
    for each in (container for device in devices for container in device.containers):
        if each.gpu_percent is not None:
            key = PodKey(f"{each.namespace}/{each.pod}")
            found[key] = max(found[key], min(each.gpu_percent, 100.0))
    return found
