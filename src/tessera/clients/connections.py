"""Requests to one server over connections that are kept; the one importer of aiohttp."""

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import msgspec
import yarl

from tessera.errors import InvalidInput, shown

__all__ = [
    "Broken",
    "Connections",
    "HttpResponse",
    "NoAddress",
    "ServerAddress",
    "TooLong",
    "Unreachable",
    "WebSocket",
    "reached",
]

_CONNECT_S = 10.0
_IDLE_S = 60.0
"""An unused connection is kept this long; the API server keeps it for 90 s."""
_AT_ONCE = 64
"""Concurrent requests; more wait, so that a burst does not open a thousand connections. Streams are not counted."""
_OK, _NO_CONTENT, _SUCCESSES = 200, 204, range(200, 300)
_ENDS = {aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSING, aiohttp.WSMsgType.CLOSED}
_PING_S = 30.0
"""Interval of WebSocket pings, which keep proxies from closing the connection; without an answer it is closed."""
_KEEPALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPALIVE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""A silent connection is probed after 30 s, as kubectl does, and given up after a minute.

A log may be silent for hours, and networks forget silent connections without a word.
Source: tcp(7); macOS calls the first TCP_KEEPALIVE; k8s.io/client-go `transport/cache.go` (`KeepAlive`).
"""
_PROXY_SCHEMES = {"http"}
_SCHEMES = {"http", "https"}


class Unreachable(Exception):
    """No connection: nothing was sent."""


class NoAddress(Unreachable):
    """The server's name has no address."""


class Broken(Exception):
    """The connection ended or was malformed: the request may have been processed."""


class TooLong(Broken):
    """The answer is longer than is accepted."""


class ServerAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Address of a server.

    Raises:
        InvalidInput: an invalid address.

    """

    url: str
    """`https://HOST:PORT/PREFIX` or `http://...`."""
    proxy: str = ""
    """`http://USER:PASSWORD@HOST:PORT` to go through; empty for none."""

    def __post_init__(self) -> None:
        _check(self.url, "address of a server", _SCHEMES)
        if self.proxy:
            _check(self.proxy, "address of a proxy", _PROXY_SCHEMES)


def reached(url: str) -> ServerAddress:
    """Return a server with its proxy from the environment, with curl's and kubectl's rules.

    Raises:
        InvalidInput: the address is invalid.

    """
    parts = urlsplit(ServerAddress(url=url).url)
    proxy = "" if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme, "")
    return ServerAddress(url=url, proxy=proxy if "://" in proxy or not proxy else f"http://{proxy}")


class HttpResponse(msgspec.Struct, frozen=True):
    """A server's response."""

    status: int
    content: bytes
    headers: dict[str, str] = {}
    """Lower-case names, if requested; of a repeated name the last value."""

    @property
    def success(self) -> bool:
        """Whether it succeeded."""
        return self.status in _SUCCESSES


class WebSocket:
    """A connection that carries messages of bytes both ways.

    Args:
        socket: the library's own.

    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket

    async def send(self, content: bytes) -> None:
        """Send a message.

        Raises:
            Broken: the connection has ended.

        """
        with _translated():
            await self._socket.send_bytes(content)

    async def receive(self) -> bytes | None:
        """Return the next message; None if the other side has closed the connection.

        Raises:
            Broken: it ended otherwise, or sends what is no message of bytes.

        """
        with _translated():
            message = await self._socket.receive()
        if message.type is aiohttp.WSMsgType.BINARY:
            return bytes(message.data)
        if message.type in _ENDS:
            return None
        raise Broken(f"{message.type.name}: {shown(message.data)}")


class Connections:
    """Connections to a server, opened on demand.

    Args:
        server: its address.
        tls: CA and client certificate; None for `http`.

    """

    def __init__(self, server: ServerAddress, tls: ssl.SSLContext | None) -> None:
        self._prefix = server.url.rstrip("/")
        self._proxy = server.proxy or None
        self._tls = tls
        self._opened: aiohttp.ClientSession | None = None
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def ask(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes = b"", *, most: int | None = None
    ) -> HttpResponse:
        """Return the whole response to a request, of at most `most` bytes.

        A read lost with a kept connection is repeated.

        Raises:
            Unreachable: there is no connection.
            Broken: it ended before the response did, or the response is larger.
            InvalidInput: an invalid header.

        """
        async with self._turns, self._sent(method, target, headers, body) as response:
            content = await response.read() if most is None else await _at_most(response, most)
            return HttpResponse(response.status, content)

    async def read(self, target: str, headers: Mapping[str, str], *, most: int) -> HttpResponse:
        """Return the response to GET with its headers, from an untrusted server, of at most `most` bytes.

        Raises:
            Unreachable: there is no connection.
            Broken: it ended before the answer did, or the answer is larger.

        """
        async with self._turns, self._sent("GET", target, headers, b"") as response:
            headers = {name.lower(): value for name, value in response.headers.items()}
            return HttpResponse(response.status, await _at_most(response, most), headers)

    @asynccontextmanager
    async def stream(
        self, target: str, headers: Mapping[str, str]
    ) -> AsyncIterator["HttpResponse | AsyncIterator[bytes]"]:
        """Yield the pieces of a response as they arrive, maybe none; if the server rejects it, its response."""
        async with self._sent("GET", target, headers, b"") as response:
            if response.status not in {_OK, _NO_CONTENT}:
                yield HttpResponse(response.status, await response.read())
            else:
                yield _pieces(response)

    @asynccontextmanager
    async def websocket(
        self, target: str, headers: Mapping[str, str], *, protocol: str
    ) -> AsyncIterator["HttpResponse | WebSocket"]:
        """Yield a WebSocket with a protocol; if the server rejects it, its response.

        Raises:
            Unreachable: there is no connection.
            Broken: it ended before the server agreed.

        """
        url = yarl.URL(self._prefix + target, encoded=True)
        try:
            with _translated():
                socket = await self._session.ws_connect(
                    url,
                    protocols=(protocol,),
                    headers={**headers, "Accept": "*/*"},
                    proxy=self._proxy,
                    heartbeat=_PING_S,
                )
        except Broken as error:
            if not isinstance(cause := error.__cause__, aiohttp.WSServerHandshakeError):
                raise
            yield HttpResponse(cause.status, msgspec.json.encode({"message": cause.message}))
            return
        try:
            yield WebSocket(socket)
        finally:
            await socket.close()

    async def close(self) -> None:
        """End all connections."""
        if self._opened is not None:
            await self._opened.close()
            self._opened = None

    @asynccontextmanager
    async def _sent(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        url = yarl.URL(self._prefix + target, encoded=True)
        with _translated():
            async with self._session.request(
                method, url, headers=headers, data=body or None, proxy=self._proxy, allow_redirects=False
            ) as response:
                yield response

    @property
    def _session(self) -> aiohttp.ClientSession:
        """Created inside the loop that uses it, as the library requires."""
        if self._opened is None:
            self._opened = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    ssl=self._tls or True, limit=0, keepalive_timeout=_IDLE_S, socket_factory=_probed_socket
                ),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                # Not compressed, as Kubernetes' own components ask: compression costs both sides more than it saves.
                headers={"Accept-Encoding": "identity", "Accept": "application/json", "User-Agent": "tessera"},
            )
        return self._opened


def _probed_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """Return a socket whose silent connection is probed."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if (option := getattr(socket, name, None)) is not None:  # each system has some of them
            made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


async def _at_most(response: aiohttp.ClientResponse, most: int) -> bytes:
    content = bytearray()
    async for piece in response.content.iter_any():
        content += piece
        if len(content) > most:
            raise TooLong(f"an answer of more than {most} bytes")
    return bytes(content)


async def _pieces(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    with _translated():
        async for piece in response.content.iter_any():
            yield piece


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except aiohttp.ClientConnectorDNSError as error:
        raise NoAddress(f"no address for the name {error.host}") from error
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientHttpProxyError) as error:
        raise Unreachable(_text(error)) from error
    except (aiohttp.ClientError, OSError) as error:
        raise Broken(_text(error)) from error
    except ValueError as error:
        raise InvalidInput("HTTP request", found=shown(error), hint="write headers of one line each") from error


def _check(url: str, subject: str, schemes: set[str]) -> None:
    try:
        found = yarl.URL(url)
        sound = found.scheme in schemes and bool(found.host) and found.port is not None
    except ValueError:
        sound = False
    if not sound:
        desired = " or ".join(f"{scheme}://HOST:PORT" for scheme in sorted(schemes))
        raise InvalidInput(subject, found=shown(url), expected=desired)


def _text(error: Exception) -> str:
    """Return an error in words; without a connection, only the address and the system's reason."""
    if isinstance(error, aiohttp.ClientConnectorError) and isinstance(error.os_error, ConnectionError):
        return f"no connection to {error.host}:{error.port}: {os.strerror(error.os_error.errno or 0)}"
    return str(error) or type(error).__name__
