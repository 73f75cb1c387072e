"""The page's metrics from a Prometheus: busy pods, model servers' last hour, recommendations by a week of memory."""

import asyncio
import time
from collections.abc import Callable
from typing import Final
from urllib.parse import urlencode

import msgspec

from tessera.api.prometheus.gpuloads import load_queries, read_activity, read_contention, read_loads, read_memory
from tessera.api.prometheus.modelserverhistory import model_server_queries, read_model_servers
from tessera.clients.nodeusage import PrometheusUsage
from tessera.clients.prometheus import Prometheus
from tessera.core.explain.observedfleet import MeasuredUsage
from tessera.core.usage.rightsizing import Recommendation, recommendations
from tessera.errors import Unavailable
from tessera.log import Logger, RepeatedError
from tessera.server.page.cachedanswer import CachedAnswer

__all__ = ["PrometheusMetrics"]

_RETRY_S: Final = 15.0
_STALE_S: Final = 120.0
"""Older values are not shown."""
_ADVICE_S: Final = 600.0
"""Interval of queries over a week, which are expensive."""
_ADVICE_STALE_S: Final = 3600.0
"""Older recommendations are not shown."""
_WINDOW: Final = "7d"


class PrometheusMetrics:
    """`PageMetrics` of a Prometheus, which is queried in the background while the page is open.

    Args:
        prometheus: its clients are for a few fast queries.
        patient: the same with clients for slow queries.
        log: records errors.
        now_s: the seconds since 1970.
        clock_s: a monotonic clock.

    """

    def __init__(
        self,
        prometheus: Prometheus,
        patient: Prometheus,
        log: Logger,
        now_s: Callable[[], float] = time.time,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._prometheus = prometheus
        self._patient = patient
        self._url = prometheus.url.rstrip("/")
        self._now_s = now_s
        self._measured = CachedAnswer(
            self._measure,
            MeasuredUsage(),
            RepeatedError(log, "history_not_read"),
            clock_s,
            every_s=_RETRY_S,
            stale_s=_STALE_S,
        )
        no_advice: tuple[Recommendation, ...] = ()
        self._advice = CachedAnswer(
            self._advise,
            no_advice,
            RepeatedError(log, "recommendations_not_read"),
            clock_s,
            every_s=_ADVICE_S,
            stale_s=_ADVICE_STALE_S,
        )

    def refresh(self, changed: Callable[[], None]) -> None:
        """Query again what was queried too long ago."""
        self._measured.refresh(changed)
        self._advice.refresh(changed)

    async def _measure(self) -> MeasuredUsage:
        source = f"Prometheus {self._url}"
        matchers = self._prometheus.matchers
        ranges = model_server_queries(self._now_s(), matchers)
        targets = {
            **{name: f"query?{urlencode({'query': query})}" for name, query in load_queries(matchers).items()},
            **{name: f"query_range?{urlencode(each)}" for name, each in ranges.items()},
        }
        try:
            async with self._prometheus.connect() as metrics:
                found = await asyncio.gather(*(metrics.get(f"{self._url}/api/v1/{each}") for each in targets.values()))
        except Unavailable as error:
            raise Unavailable(source, found=error.found, hint="see Prometheus' log") from error
        answers = dict(zip(targets, found, strict=True))

        def read() -> MeasuredUsage:
            loads = read_loads(answers, source, now=True)
            return MeasuredUsage(
                activity=read_activity(read_loads(answers, source, now=False)),
                memory_mib=read_memory(answers, source),
                contention=read_contention(loads),
                throttled={key: each.causes for key, each in loads.items() if each.causes},
                model_servers=read_model_servers(answers, source),
            )

        return await asyncio.to_thread(read)  # so that scheduling requests are answered meanwhile

    async def _advise(self) -> tuple[Recommendation, ...]:
        """Return recommendations by a week."""
        async with self._patient.connect() as metrics:
            found = await PrometheusUsage(metrics, self._url, _WINDOW, self._patient.matchers).read()
        return tuple(await asyncio.to_thread(recommendations, found.reports))

    @property
    def measured(self) -> MeasuredUsage:
        """The last two minutes, the last hour of model servers, and recommendations by a week."""
        return msgspec.structs.replace(self._measured.value, recommendations=self._advice.value)
