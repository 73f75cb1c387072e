"""In-memory servers of metrics, for demos, the simulator and tests."""

from tessera.errors import Unavailable

__all__ = ["MemoryMetrics"]


class MemoryMetrics:
    """`MetricsClient` with given answers.

    Attributes:
        contents: by URL; an error is raised.

    """

    def __init__(self) -> None:
        self.contents: dict[str, bytes | Unavailable] = {}

    async def get(self, url: str) -> bytes:
        """Return the content of a URL."""
        found = self.contents.get(url)
        if found is None:
            raise Unavailable(url, found="no connection", hint="check that it runs")
        if isinstance(found, Unavailable):
            raise found
        return found

    async def keep(self, servers: frozenset[str]) -> None:
        """Close the connections to all but these servers; there are none."""

    async def close(self) -> None:
        """Close all connections; there are none."""
