"""Reports of all nodes from Prometheus' history."""

import asyncio
from urllib.parse import urlencode

from tessera.api.prometheus.usagehistory import history_queries, read_history
from tessera.clients.nodeusage.protocol import NodeReports
from tessera.clients.prometheus import MetricsClient
from tessera.errors import InvalidInput, Unavailable

__all__ = ["PrometheusUsage"]


class PrometheusUsage:
    """`UsageSource` of a Prometheus: peaks and means over a window, of existing containers.

    Args:
        metrics: the client.
        url: `https://HOST[:PORT][/PREFIX]`.
        window: how far back, as a PromQL duration: `14d`.
        matchers: labels of the cluster's series; empty where Prometheus has those of one cluster.

    """

    def __init__(self, metrics: MetricsClient, url: str, window: str, matchers: str = "") -> None:
        self._metrics = metrics
        self._url = url.rstrip("/")
        self._queries = history_queries(window, matchers)

    async def read(self) -> NodeReports:
        """Return the report of each node known to Prometheus."""
        targets = (f"{self._url}/api/v1/query?{urlencode({'query': each})}" for each in self._queries.values())
        subject = f"Prometheus {self._url}"
        try:
            answers = await asyncio.gather(*map(self._metrics.get, targets))
        except Unavailable as error:
            raise Unavailable(subject, found=error.found, hint="check that Prometheus scrapes the agents") from error
        try:
            # In a thread, because a large fleet's takes a while.
            found = await asyncio.to_thread(read_history, dict(zip(self._queries, answers, strict=True)), subject)
        except InvalidInput as error:
            raise Unavailable(subject, found=error.found, expected=error.expected) from error
        return NodeReports(found)

    async def close(self) -> None:
        """End all connections."""
        await self._metrics.close()
