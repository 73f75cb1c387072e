"""What waits in front of model servers that have no replica: who is asked for it, and what they say.

A Service keeps no request for later. Where a gateway, a proxy or a queue in front of the servers does, or counts those
that it refused, its Prometheus knows when a server that sleeps is needed.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol
from urllib.parse import urlencode

from tessera.api.prometheus.waiting import read_waiting
from tessera.clients.prometheus import Metrics
from tessera.errors import Unavailable, shown

__all__ = ["Fronts", "PrometheusFronts"]


class Fronts(Protocol):
    """Where it is known that requests wait for a server."""

    async def read(self) -> Mapping[tuple[str, str], float]:
        """Return what waits, by namespace and name of the server; none where nothing does.

        Raises:
            TesseraError: nobody says.

        """
        ...


class PrometheusFronts:
    """A Prometheus, by an expression of the administrator's: one question for all servers.

    Args:
        connect: gives a client for one question.
        url: `https://HOST[:PORT][/PREFIX]`.
        query: above 0 where requests wait, with the labels `namespace` and `service`.

    Attributes:
        target: the question.

    """

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[Metrics]], url: str, query: str) -> None:
        self._connect = connect
        self.target = f"{url.rstrip('/')}/api/v1/query?{urlencode({'query': query})}"
        self._subject = f"Prometheus {url}, by --wake-query"

    async def read(self) -> Mapping[tuple[str, str], float]:
        """Return what it says."""
        try:
            async with self._connect() as metrics:
                return read_waiting(await metrics.get(self.target), self._subject)
        except OSError as error:  # the files of token and authorities
            raise Unavailable(self._subject, found=shown(error), expected="the files of its options") from error
