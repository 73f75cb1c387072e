"""What the page shows by what a Prometheus remembers: how busy pods are, and the last hour of model servers."""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final
from urllib.parse import urlencode

from tessera.api.prometheus.pagehistory import page_queries, read_activity, read_services
from tessera.clients.prometheus import Metrics
from tessera.core.explain.fleetview import Service
from tessera.core.workload.need import PodKey
from tessera.errors import TesseraError, Unavailable
from tessera.log import Complaint, Logger

__all__ = ["PrometheusHistory"]

_RETRY_S: Final = 15.0
_STALE_S: Final = 120.0
"""What was known so long ago is not shown as if it were now."""


class PrometheusHistory:
    """`PageMetrics` of a Prometheus, which is asked while somebody looks at the page.

    Args:
        connect: gives a client for a few questions; so a token that was replaced is read again.
        url: `https://HOST[:PORT][/PREFIX]`.
        log: records trouble.
        now_s: the seconds since 1970.

    """

    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[Metrics]],
        url: str,
        log: Logger,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._connect = connect
        self._url = url.rstrip("/")
        self._now_s = now_s
        self._asked_s = self._known_s = -float("inf")
        self._activity: Mapping[PodKey, float] = {}
        self._services: tuple[Service, ...] = ()
        self._complain = Complaint(log, "history_not_read")

    async def look(self) -> None:
        """Ask again where that was not done just now; without an answer what is known counts for two minutes."""
        now_s = self._now_s()
        if now_s - self._asked_s < _RETRY_S:
            return
        self._asked_s = now_s
        try:
            self._activity, self._services = await self._ask(now_s)
            self._known_s = now_s
            self._complain.settle()
        except (TesseraError, OSError) as error:
            self._complain(error)
            if now_s - self._known_s >= _STALE_S:
                self._activity, self._services = {}, ()

    async def _ask(self, now_s: float) -> tuple[Mapping[PodKey, float], tuple[Service, ...]]:
        queries, source = page_queries(now_s), f"Prometheus {self._url}"
        targets = (f"{self._url}{path}?{urlencode(parameters)}" for path, parameters in queries.values())
        try:
            async with self._connect() as metrics:
                found = await asyncio.gather(*map(metrics.get, targets))
        except Unavailable as error:
            raise Unavailable(source, found=error.found, expected="what the page asks of it") from error
        answers = dict(zip(queries, found, strict=True))

        def read() -> tuple[Mapping[PodKey, float], tuple[Service, ...]]:
            return read_activity(answers["activity"], source), read_services(answers, source)

        return await asyncio.to_thread(read)  # the scheduler is answered meanwhile

    def activity(self) -> Mapping[PodKey, float]:
        """Return how much of its compute each pod uses, in percent."""
        return self._activity

    def services(self) -> tuple[Service, ...]:
        """Return the model servers with their last hour."""
        return self._services
