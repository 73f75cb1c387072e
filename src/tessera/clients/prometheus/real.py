"""Metrics over HTTP."""

import asyncio
import ssl
from typing import Self
from urllib.parse import urlsplit

from tessera.clients.connections import Broken, Connections, ServerAddress, TooLong, Unreachable
from tessera.clients.prometheus.protocol import AnswerTooLarge
from tessera.errors import InvalidInput, Unavailable, shown

__all__ = ["HttpMetrics"]

_MOST_BYTES = 2 << 20
"""Largest answer; a Triton with a hundred models has 400 kB."""
_TOO_MUCH = 422
"""Prometheus' status of a query that would load too many samples. Source: prometheus.io, "HTTP API"."""
_DEADLINE_S = 3.0
"""Less than the interval of passes."""
_AT_ONCE = 64
"""Concurrent answers: 128 MiB at most, whatever servers send."""


class HttpMetrics:
    """`MetricsClient` over HTTP or HTTPS; no redirects.

    Args:
        most_bytes: of an answer.
        deadline_s: for an answer.
        headers: sent with each request, as `Authorization`.
        tls: trusted certificates; None for the machine's CAs.

    """

    def __init__(
        self,
        *,
        most_bytes: int = _MOST_BYTES,
        deadline_s: float = _DEADLINE_S,
        headers: dict[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._most_bytes, self._deadline_s, self._headers = most_bytes, deadline_s, headers or {}
        self._trusted = tls
        self._connections: dict[str, Connections] = {}
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        await self.close()

    async def get(self, url: str) -> bytes:
        """Return the content of a URL."""
        server, target = _split(url)
        async with self._turns:
            try:
                async with asyncio.timeout(self._deadline_s):
                    answer = await self._to(server).read(target, self._headers, most=self._most_bytes)
            except TimeoutError as error:
                found = f"no answer in {self._deadline_s:g} s"
                raise Unavailable(url, found=found, hint="check that it runs") from error
            except TooLong as error:
                raise AnswerTooLarge(url, found=shown(error), hint="check what it serves") from error
            except (Unreachable, Broken) as error:
                raise Unavailable(url, found=shown(error), hint="check that it runs") from error
        if not answer.success:
            text = answer.content.decode(errors="replace").strip()
            failure = AnswerTooLarge if answer.status == _TOO_MUCH else Unavailable
            raise failure(url, found=f"HTTP {answer.status}, {shown(text)}", hint="check the address")
        return answer.content

    async def keep(self, servers: frozenset[str]) -> None:
        """Close the connections to all but these servers."""
        for each in self._connections.keys() - servers:
            await self._connections.pop(each).close()

    async def close(self) -> None:
        """Close all connections."""
        await self.keep(frozenset())

    def _to(self, server: str) -> Connections:
        if server not in self._connections:
            tls = (self._trusted or ssl.create_default_context()) if server.startswith("https:") else None
            self._connections[server] = Connections(ServerAddress(url=server), tls)
        return self._connections[server]


def _split(url: str) -> tuple[str, str]:
    """Return the server, and path with parameters."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InvalidInput("address of metrics", found=shown(url), expected="http://HOST:PORT/PATH") from error
    if parts.scheme not in {"http", "https"} or not parts.netloc:
        raise InvalidInput("address of metrics", found=shown(url), expected="http://HOST:PORT/PATH")
    return f"{parts.scheme}://{parts.netloc}", f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
