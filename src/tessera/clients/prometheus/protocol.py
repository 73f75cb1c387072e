"""The interface for metrics: a bounded GET from an untrusted server."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

from tessera.errors import Unavailable

__all__ = ["AnswerTooLarge", "MetricsClient", "Prometheus"]


class AnswerTooLarge(Unavailable):
    """The server answers more than is accepted, or cannot compute that much: less is to be requested."""


class MetricsClient(Protocol):
    """Servers of metrics, each by its URL.

    An answer is bounded in size and time, because the server is untrusted. Raises `Unavailable` if the server does not
    answer in time, or with an error, `AnswerTooLarge` if it answers too much; `InvalidInput` if the URL is invalid.
    """

    async def get(self, url: str) -> bytes:
        """Return the content of a URL: the metrics of a pod, or the JSON of Prometheus' HTTP API."""
        ...

    async def keep(self, servers: frozenset[str]) -> None:
        """Close the connections to all but these servers, each `http://HOST:PORT`."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


class Prometheus(msgspec.Struct, frozen=True, kw_only=True):
    """A Prometheus to query."""

    url: str
    """`https://HOST[:PORT][/PREFIX]`."""
    connect: Callable[[], AbstractAsyncContextManager[MetricsClient]]
    """Returns a client; its files are read each time, so that a replaced token counts."""
    matchers: str = ""
    """Labels of the cluster's series; empty where it has those of one cluster."""
