"""HTTP/1.1 to one server over connections that are kept.

A server that binds pods does little but such requests, and a general HTTP library spends five times as much processor
time on each as this module does (1.0 and 0.2 ms). It does what the API server needs: TLS with client
certificates, answers of known length and in chunks, streams, and a proxy that is asked to CONNECT.

Source: RFC 9112.
"""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from tessera.errors import InvalidInput, shown

__all__ = ["Address", "Answer", "Broken", "HttpClient", "Unreachable"]

_CONNECT_S = 10.0
_IDLE_S = 60.0
"""An unused connection is kept so long; the API server keeps it for 90 s."""
_AT_ONCE = 64
"""Requests; more wait, so that a burst does not open a thousand connections. Streams are not counted."""
_LONGEST_HEAD = 1 << 16
_LONGEST_BODY = 1 << 30
_PIECE = 1 << 16
_PORTS = {"https": 443, "http": 80}
_OK, _SUCCESSES = 200, range(200, 300)
_INFORMATION = range(100, 200)
_BODILESS = frozenset({204, 304})


class Unreachable(Exception):
    """No connection: nothing was sent."""


class Broken(Exception):
    """The connection ended or was misused in the middle: what was sent may have been done."""


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where the server is.

    Args:
        url: `https://HOST:PORT/PREFIX` or `http://...`.
        proxy: `http://USER:PASSWORD@HOST:PORT` to go through; empty for none.

    """

    url: str
    proxy: str = ""

    def __post_init__(self) -> None:
        _parts(self.url)
        if self.proxy and _parts(self.proxy).scheme != "http":
            raise InvalidInput("address of a proxy", found=shown(self.proxy), wanted="http://HOST:PORT")

    @property
    def parts(self) -> SplitResult:
        """The URL in parts."""
        return _parts(self.url)


class Answer(msgspec.Struct, frozen=True):
    """What the server answered."""

    status: int
    content: bytes

    @property
    def success(self) -> bool:
        """Whether it did what it was asked."""
        return self.status in _SUCCESSES


class HttpClient:
    """Connections to a server.

    Args:
        address: where it is.
        tls: for `https`.

    """

    def __init__(self, address: Address, tls: ssl.SSLContext | None) -> None:
        self._address = address
        parts = address.parts
        self._tls = tls if parts.scheme == "https" else None
        self._prefix = parts.path.rstrip("/")
        self._host = parts.netloc.rpartition("@")[2]
        self._idle: list[_Connection] = []
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def ask(self, method: str, target: str, headers: Mapping[str, str], body: bytes = b"") -> Answer:
        """Return the answer to a request, whole.

        Raises:
            Unreachable: there is no connection.
            Broken: it ended before the answer did.

        """
        async with self._turns:
            while True:
                connection, kept = await self._connection()
                try:
                    head = await connection.send(self._request(method, target, headers, body))
                    content = await connection.body(head)
                except Broken:
                    connection.abort()
                    if kept and method == "GET" and not connection.heard:
                        continue  # the server had given up the kept connection; nothing is lost by asking again
                    raise
                except BaseException:
                    connection.abort()
                    raise
                self._keep(connection, head)
                return Answer(head.status, content)

    @asynccontextmanager
    async def stream(self, target: str, headers: Mapping[str, str]) -> AsyncIterator["Answer | AsyncIterator[bytes]"]:
        """Give the pieces of an answer as they come; where the server refuses, its answer."""
        connection, _ = await self._connection(fresh=True)
        try:
            head = await connection.send(self._request("GET", target, headers, b""))
            if head.status != _OK:
                yield Answer(head.status, await connection.body(head))
            else:
                yield connection.pieces(head)
        finally:
            connection.abort()

    async def close(self) -> None:
        """End the connections that are not in use."""
        for each in self._idle:
            each.abort()
        self._idle.clear()
        await asyncio.sleep(0)

    def _request(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> bytes:
        fields = {"Host": self._host, "Content-Length": str(len(body)), **headers}
        if method == "GET":
            del fields["Content-Length"]
        lines = [f"{method} {self._prefix}{target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
        if any("\r" in line or "\n" in line for line in lines):
            raise InvalidInput("HTTP request", found="a line break in a header", wanted="values of one line")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace") + body

    async def _connection(self, *, fresh: bool = False) -> tuple["_Connection", bool]:
        now_s = asyncio.get_running_loop().time()
        while self._idle and not fresh:
            connection = self._idle.pop()
            if connection.usable and now_s - connection.since_s < _IDLE_S:
                return connection, True
            connection.abort()
        try:
            async with asyncio.timeout(_CONNECT_S):
                return await _connect(self._address, self._tls), False
        except (OSError, TimeoutError, Broken, ValueError) as error:
            raise Unreachable(_told(error)) from error

    def _keep(self, connection: "_Connection", head: "_Head") -> None:
        if head.keeps and connection.usable:
            connection.since_s = asyncio.get_running_loop().time()
            self._idle.append(connection)
        else:
            connection.abort()


class _Head(msgspec.Struct, frozen=True):
    """Status and headers of an answer."""

    status: int
    headers: dict[str, str]
    version: str

    @property
    def keeps(self) -> bool:
        """Whether the connection can be used again."""
        return self.version == "HTTP/1.1" and self.headers.get("connection", "").lower() != "close" and self.bounded

    @property
    def chunked(self) -> bool:
        return self.headers.get("transfer-encoding", "").lower() == "chunked"

    @property
    def bounded(self) -> bool:
        """Whether the end of the body is told by something else than the end of the connection."""
        return self.chunked or "content-length" in self.headers or self.status in _BODILESS


class _Connection:
    """One connection, for one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.since_s = 0.0
        self.heard = False
        """Whether anything of the present answer has come."""

    @property
    def usable(self) -> bool:
        return not (self.reader.at_eof() or self.writer.is_closing() or self.reader.exception())

    def abort(self) -> None:
        self.writer.transport.abort()

    async def send(self, request: bytes) -> _Head:
        """Send a request and return the head of its answer."""
        self.heard = False
        try:
            self.writer.write(request)
            await self.writer.drain()
            while True:
                text = await self.reader.readuntil(b"\r\n\r\n")
                self.heard = True
                head = _head(text)
                if head.status not in _INFORMATION:
                    return head
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
            raise Broken(_told(error)) from error

    async def body(self, head: _Head) -> bytes:
        """Return the body of an answer."""
        if head.status in _BODILESS:
            return b""
        if head.chunked or not head.bounded:
            return b"".join([piece async for piece in self.pieces(head)])
        try:
            return await self.reader.readexactly(_length(head.headers["content-length"], 10))
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            raise Broken(_told(error)) from error

    async def pieces(self, head: _Head) -> AsyncIterator[bytes]:
        """Yield the body of an answer as it comes."""
        try:
            if not head.chunked:
                while piece := await self.reader.read(_PIECE):
                    yield piece
                return
            while length := _length((await self.reader.readuntil(b"\r\n")).split(b";")[0].decode(), 16):
                yield (await self.reader.readexactly(length + 2))[:-2]
            while await self.reader.readuntil(b"\r\n") != b"\r\n":
                pass  # trailers
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
            raise Broken(_told(error)) from error


async def _connect(address: Address, tls: ssl.SSLContext | None) -> _Connection:
    parts = address.parts
    host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    if not address.proxy:
        name = host if tls else None
        reader, writer = await asyncio.open_connection(host, port, ssl=tls, server_hostname=name, limit=_LONGEST_HEAD)
        return _Connection(reader, writer)
    proxy = _parts(address.proxy)
    reader, writer = await asyncio.open_connection(proxy.hostname, proxy.port or _PORTS["http"], limit=_LONGEST_HEAD)
    connection = _Connection(reader, writer)
    try:
        await _through(connection, _tunnel(proxy, host, port))
        if tls:
            await writer.start_tls(tls, server_hostname=host)
    except BaseException:
        connection.abort()
        raise
    return connection


async def _through(connection: _Connection, request: bytes) -> None:
    head = await connection.send(request)
    if head.status not in _SUCCESSES:
        raise ConnectionError(f"HTTP {head.status} from the proxy")


def _tunnel(proxy: SplitResult, host: str, port: int) -> bytes:
    """Return the request that a proxy carry what follows. Source: RFC 9110, 9.3.6."""
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    credentials = f"{unquote(proxy.username or '')}:{unquote(proxy.password or '')}".encode()
    who = f"Proxy-Authorization: Basic {base64.b64encode(credentials).decode()}\r\n" if proxy.username else ""
    return f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n{who}\r\n".encode()


def _head(text: bytes) -> _Head:
    first, *lines = text.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    version, _, rest = first.partition(" ")
    code = rest[:3]
    if not version.startswith("HTTP/1.") or not (code.isascii() and code.isdecimal()):
        raise ValueError(f"no HTTP answer: {first[:40]!r}")
    fields = (line.partition(":") for line in lines)
    return _Head(int(code), {name.strip().lower(): value.strip() for name, _, value in fields}, version)


def _length(text: str, base: int) -> int:
    length = int(text.strip(), base)
    if not 0 <= length <= _LONGEST_BODY:
        raise ValueError(f"a length of {text.strip()[:20]}")
    return length


def _parts(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        sound = parts.scheme in _PORTS and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        sound = None
        parts = SplitResult("", "", "", "", "")
    if not sound:
        raise InvalidInput("address of a server", found=shown(url), wanted="https://HOST:PORT or http://HOST:PORT")
    return parts


def _told(error: Exception) -> str:
    return str(error) or type(error).__name__
