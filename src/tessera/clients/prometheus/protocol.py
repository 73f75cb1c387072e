"""What Tessera asks for metrics: a GET that a stranger answers, within bounds."""

from typing import Protocol

__all__ = ["Metrics"]


class Metrics(Protocol):
    """Servers of metrics, each by its URL.

    An answer is bounded in size and time: whoever serves it is not trusted. Raised is `Unavailable` where the server
    does not answer in time, answers too much, or refuses; `InvalidInput` where the URL is none.
    """

    async def get(self, url: str) -> bytes:
        """Return what is at a URL: the metrics of a pod, or the JSON of Prometheus' HTTP API."""
        ...

    async def keep(self, servers: frozenset[str]) -> None:
        """Close the connections to all but these servers, each `http://HOST:PORT`."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...
