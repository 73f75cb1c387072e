"""The interface for metrics: a bounded GET from an untrusted server."""

from typing import Protocol

__all__ = ["MetricsClient"]


class MetricsClient(Protocol):
    """Servers of metrics, each by its URL.

    An answer is bounded in size and time, because the server is untrusted. Raises `Unavailable` if the server
    does not answer in time, answers too much, or with an error; `InvalidInput` if the URL is invalid.
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
