"""The page's metrics from a Prometheus: busy pods, model servers' last hour, recommendations by a week of memory."""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final, TypeAlias
from urllib.parse import urlencode

from tessera.api.prometheus.pagehistory import page_queries, read_activity, read_contention, read_loads, read_services
from tessera.api.tessera.usage.usagehistory import history_queries, read_history
from tessera.api.tessera.usage.usagereports import recommendations
from tessera.clients.prometheus import MetricsServers
from tessera.core.explain.fleetview import Service
from tessera.core.usage.neighbours import Contention
from tessera.core.usage.rightsizing import Recommendation
from tessera.core.workload.need import PodKey
from tessera.errors import TesseraError, Unavailable
from tessera.log import Complaint, Logger
from tessera.loops import one_turn

__all__ = ["PrometheusHistory"]

_RETRY_S: Final = 15.0
_STALE_S: Final = 120.0
"""Older values are not shown."""
_ADVICE_S: Final = 600.0
"""Interval of queries over a week, which are expensive."""
_WINDOW: Final = "7d"
_Known: TypeAlias = tuple[Mapping[PodKey, float], Mapping[str, tuple[Contention, ...]], tuple[Service, ...]]


class PrometheusHistory:
    """`PageMetrics` of a Prometheus, which is queried while the page is open.

    Args:
        connect: returns a client for a few queries, with the current token.
        patient: the same for slow queries; nothing waits for them.
        url: `https://HOST[:PORT][/PREFIX]`.
        log: records errors.
        now_s: the seconds since 1970.

    """

    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[MetricsServers]],
        patient: Callable[[], AbstractAsyncContextManager[MetricsServers]],
        url: str,
        log: Logger,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._connect = connect
        self._patient = patient
        self._url = url.rstrip("/")
        self._now_s = now_s
        self._asked_s = self._known_s = -float("inf")
        self._activity: Mapping[PodKey, float] = {}
        self._contention: Mapping[str, tuple[Contention, ...]] = {}
        self._services: tuple[Service, ...] = ()
        self._complain = Complaint(log, "history_not_read")
        self._advised_s = -float("inf")
        self._advice: tuple[Recommendation, ...] = ()
        self._advising: asyncio.Task[None] | None = None
        self._complain_of_advice = Complaint(log, "recommendations_not_read")

    async def refresh(self) -> None:
        """Query again if the last query is old; without an answer the former values count for two minutes."""
        now_s = self._now_s()
        if now_s - self._advised_s >= _ADVICE_S and (self._advising is None or self._advising.done()):
            self._advised_s = now_s
            done = self._complain_of_advice.settle
            self._advising = asyncio.create_task(one_turn(self._advise, self._complain_of_advice, done))
        if now_s - self._asked_s < _RETRY_S:
            return
        self._asked_s = now_s
        try:
            self._activity, self._contention, self._services = await self._ask(now_s)
            self._known_s = now_s
            self._complain.settle()
        except (TesseraError, OSError) as error:
            self._complain(error)
            if now_s - self._known_s >= _STALE_S:
                self._activity, self._contention, self._services = {}, {}, ()

    async def _ask(self, now_s: float) -> _Known:
        queries, source = page_queries(now_s), f"Prometheus {self._url}"
        targets = (f"{self._url}{path}?{urlencode(parameters)}" for path, parameters in queries.values())
        try:
            async with self._connect() as metrics:
                found = await asyncio.gather(*map(metrics.get, targets))
        except Unavailable as error:
            raise Unavailable(source, found=error.found, hint="see Prometheus' log") from error
        answers = dict(zip(queries, found, strict=True))

        def read() -> _Known:
            loads = read_loads(answers, source)
            return read_activity(loads.values()), read_contention(loads), read_services(answers, source)

        return await asyncio.to_thread(read)  # so that scheduling requests are answered meanwhile

    async def _advise(self) -> None:
        """Compute recommendations by a week; without an answer the former ones stay."""
        targets = {
            name: f"{self._url}/api/v1/query?{urlencode({'query': query})}"
            for name, query in history_queries(_WINDOW).items()
        }
        async with self._patient() as metrics:
            answers = {name: await metrics.get(target) for name, target in targets.items()}

        def read() -> tuple[Recommendation, ...]:
            return tuple(recommendations(read_history(answers, f"Prometheus {self._url}")))

        self._advice = await asyncio.to_thread(read)

    def activity(self) -> Mapping[PodKey, float]:
        """Return how much of its compute each pod uses, in percent."""
        return self._activity

    def contention(self) -> Mapping[str, tuple[Contention, ...]]:
        """Return what slows down the pods of GPUs, by UUID."""
        return self._contention

    def services(self) -> tuple[Service, ...]:
        """Return the model servers with their last hour."""
        return self._services

    def recommendations(self) -> tuple[Recommendation, ...]:
        """Return recommendations for containers by a week; the most urgent first."""
        return self._advice
