"""Requests queued in front of model servers without a replica, and where their number is read.

A Service does not queue requests. If a gateway, a proxy or a queue in front of the servers does, or counts the
requests it rejected, its Prometheus knows when a server without replicas is needed.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol
from urllib.parse import urlencode

from tessera.api.prometheus.pendingrequests import PendingRequests, read_pending_requests
from tessera.clients.prometheus import MetricsClient
from tessera.errors import Unavailable, shown

__all__ = ["PrometheusQueues", "RequestQueues"]


class RequestQueues(Protocol):
    """A source of the number of queued requests."""

    async def read(self) -> PendingRequests:
        """Return the queued requests.

        Raises:
            TesseraError: the source does not answer, or with nothing that counts.

        """
        ...


class PrometheusQueues:
    """A Prometheus, with the administrator's query: one query for all servers.

    Args:
        connect: returns a client for one query.
        url: `https://HOST[:PORT][/PREFIX]`.
        query: above 0 where requests are queued, with the labels `namespace` and `service`.

    Attributes:
        target: URL of the query.

    """

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[MetricsClient]], url: str, query: str) -> None:
        self._connect = connect
        self.target = f"{url.rstrip('/')}/api/v1/query?{urlencode({'query': query})}"
        self._subject = f"Prometheus {url}, by --wake-query"

    async def read(self) -> PendingRequests:
        """Return the result of the query."""
        try:
            async with self._connect() as metrics:
                return read_pending_requests(await metrics.get(self.target), self._subject)
        except OSError as error:  # files with the token and the CA
            raise Unavailable(self._subject, found=shown(error), expected="the files of its options") from error
