"""HTTP/1.1 on raw sockets: kept connections, ranges read into the caller's memory, each wait with a timeout.

`http.client` spends more on a request's headers than a small file costs
(docs/decisions/0021-models-over-raw-sockets.md).
"""

import contextlib
import math
import re
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from urllib.parse import SplitResult

from tessera.clients.store.protocol import Refused, Temporary

__all__ = ["HEAD_BYTES", "Endpoint", "Head", "Response", "acknowledge_at_once", "read_head", "request_of"]

HEAD_BYTES = 64 * 1024
_SMALL_BYTES = 64 * 2**20
_SKIPPED_BYTES = 2**20
_STATUS = re.compile(r"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: |$)")
_LAST_INTERIM, _LEAST_ERROR, _LEAST_SERVER_ERROR = 199, 400, 500
_LENGTH = re.compile(r"[0-9]{1,15}")
_AGAIN = frozenset({408, 425, 429})
_NO_BODY = frozenset({204, 304})


class Head(NamedTuple):
    """The head of a response.

    Args:
        status: the code.
        headers: by lower-case name.
        chunked: whether the body comes in chunks, each with its length.
        length: bytes of the body; None where no header says it.
        stays: whether the connection stays open.

    """

    status: int
    headers: dict[str, str]
    chunked: bool
    length: int | None
    stays: bool

    @property
    def etag_is_checksum(self) -> bool:
        """Whether an ETag that looks like a checksum is one: the store has encrypted with no key of its own."""
        return not (
            self.headers.get("x-amz-server-side-encryption", "").startswith("aws:kms")
            or "x-amz-server-side-encryption-customer-algorithm" in self.headers
        )


def read_head(data: bytes) -> Head:
    """Return the head of a response, from all before the empty line that ends it.

    Raises:
        Temporary: it is not a response of HTTP/1.

    """
    status, *lines = data.decode("latin-1").split("\r\n")
    if (found := _STATUS.match(status)) is None:
        raise Temporary(f"no HTTP status: {status[:40]!r}")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    coding = headers.get("transfer-encoding", "").lower()
    if coding not in {"", "chunked"}:  # framing that would be taken for content
        raise Temporary(f"Transfer-Encoding {coding[:40]!r} was not requested")
    chunked = coding == "chunked"
    length = headers.get("content-length")
    if length is not None and not _LENGTH.fullmatch(length):
        raise Temporary(f"Content-Length {length[:40]!r} is not a size")
    # HTTP/1.0 closes the connection, unless it says otherwise.
    stays = headers.get("connection", "" if found[1] == "1" else "close").lower() != "close"
    return Head(int(found[2]), headers, chunked, None if chunked or length is None else int(length), stays)


class Response:
    """A response: status, headers by lower-case name, and the body, read once.

    Args:
        connection: an open socket.
        method: the request's.
        until_s: its deadline, on the monotonic clock, however little is received at a time.

    """

    def __init__(self, connection: socket.socket, method: str, until_s: float = math.inf) -> None:
        self._socket = connection
        self._until_s = until_s
        self._pace_until_s = math.inf
        self._paced = 0
        self._rest = b""
        self._begin_pace()
        self.head = self._head()
        self._pace_until_s = math.inf  # who reads the body says how fast it must come
        self.status, self.headers, self._chunked, self.length, stays = self.head
        self.etag_is_checksum = self.head.etag_is_checksum
        if method == "HEAD" or self.status in _NO_BODY:
            self._chunked, self.length = False, 0
        self._remaining = self.length
        self.keeps_connection = stays and (self._chunked or self.length is not None)

    @property
    def complete(self) -> bool:
        """Whether the body was read to its end, so that the connection can be reused."""
        return self._remaining == 0

    def _begin_pace(self) -> None:
        """From now on each 64 KiB must come within the connection's timeout: a drip would be waited for without end."""
        self._pace_until_s = time.monotonic() + (self._socket.gettimeout() or math.inf)
        self._paced = 0

    def _count(self, size: int) -> None:
        self._paced += size
        if self._paced >= HEAD_BYTES and self._pace_until_s < math.inf:
            self._begin_pace()

    def _check_time(self) -> None:
        if time.monotonic() > min(self._until_s, self._pace_until_s):
            raise Temporary("the transfer is too slow")

    def _receive(self, size: int = HEAD_BYTES) -> bytes:
        self._check_time()
        data = self._socket.recv(size)
        if not data:
            raise Temporary("the connection ended too early")
        self._count(len(data))
        return data

    def _head(self) -> Head:
        """Return the head of the answer; interim ones before it (`103 Early Hints`) are skipped."""
        data = self._receive()
        while True:
            while (end := data.find(b"\r\n\r\n")) < 0:
                if len(data) > HEAD_BYTES:
                    raise Temporary("more than 64 KiB of headers")
                data += self._receive()
            head, data = read_head(data[:end]), data[end + 4 :]
            if head.status > _LAST_INTERIM:
                self._rest = data
                return head

    def readinto(self, view: memoryview) -> int:
        """Fill the view's beginning; 0 after the last byte. A body of unknown length ends with the connection."""
        if self._chunked:
            raise Temporary("a range without its length")
        most = len(view) if self._remaining is None else min(len(view), self._remaining)
        if most == 0:
            return 0
        if self._rest:
            count = min(most, len(self._rest))
            view[:count] = self._rest[:count]
            self._rest = self._rest[count:]
        else:
            self._check_time()
            count = self._socket.recv_into(view, most)
            if count == 0 and self._remaining is not None:
                raise Temporary(f"the connection ended {self._remaining} bytes too early")
        if self._remaining is not None:
            self._remaining -= count
        self._count(count)
        return count

    def skip(self, size: int) -> None:
        """Read and drop bytes."""
        self._begin_pace()
        buffer = memoryview(bytearray(min(size, _SKIPPED_BYTES)))
        while size:
            count = self.readinto(buffer[:size])
            if count == 0:
                raise Temporary("the body ended too early")
            size -= count
        self._pace_until_s = math.inf

    def content(self) -> bytes:
        """Return a whole small body: a listing, an error."""
        self._begin_pace()
        if self._chunked:
            return self._unchunked()
        if (self.length or 0) > _SMALL_BYTES:
            raise Temporary("a listing of more than 64 MiB")
        buffer, done = bytearray(self.length if self.length is not None else 2**20), 0
        with memoryview(buffer) as view:
            while count := self.readinto(view[done:]):
                done += count
        if self.length is None and done == len(buffer):
            raise Temporary("a listing of unknown length, above 1 MiB")
        return bytes(buffer[:done])

    def _unchunked(self) -> bytes:
        parts: list[bytes] = []
        total = 0
        while True:
            while b"\r\n" not in self._rest:
                if len(self._rest) > HEAD_BYTES:
                    raise Temporary("a chunk without its length")
                self._rest += self._receive()
            line, _, self._rest = self._rest.partition(b"\r\n")
            digits = line.partition(b";")[0].strip()
            if not re.fullmatch(rb"[0-9a-fA-F]{1,8}", digits):
                raise Temporary(f"not the length of a chunk: {digits[:20]!r}")
            size = int(digits, 16)
            total += size
            if total > _SMALL_BYTES:
                raise Temporary("a listing of more than 64 MiB")
            while len(self._rest) < size + 2:
                self._rest += self._receive()
            if size == 0:
                self._remaining = 0 if self._rest.startswith(b"\r\n") else None
                return b"".join(parts)
            parts.append(self._rest[:size])
            self._rest = self._rest[size + 2 :]


class Endpoint:
    """A server, and its kept connections.

    Args:
        address: scheme `http` or `https`, host and port.
        timeout_s: of one receive or connect.
        tls: the trusted certificates, and the name in the server's certificate; by default the system's, and its
        address.

    """

    def __init__(self, address: SplitResult, timeout_s: float, tls: tuple[ssl.SSLContext, str] | None = None) -> None:
        if not address.hostname:
            raise Refused("the address has no host")
        own = (ssl.create_default_context(), address.hostname) if address.scheme == "https" else None
        self._tls = tls or own
        if not address.netloc.isascii():
            raise Refused("its host is not ASCII: write xn--...")
        self._server = (address.hostname, address.port or (443 if self._tls else 80))
        self.host = address.netloc.rpartition("@")[2]
        self.timeout_s = timeout_s
        self._idle: list[socket.socket] = []
        self.requests = 0

    @contextlib.contextmanager
    def request(
        self, method: str, target: str, headers: Mapping[str, str], until_s: float = math.inf
    ) -> Iterator[Response]:
        """Send a request and yield the response; the connection is kept if its body was read to the end.

        Args:
            method: GET, HEAD or another.
            target: path and query.
            headers: by name.
            until_s: deadline of the whole response, on the monotonic clock.

        Raises:
            Temporary: no connection, a broken answer, or status 408, 425, 429 or 5xx.
            Refused: any other status from 400 on but 412, with the beginning of the body.

        """
        connection: socket.socket | None = None
        try:
            connection, response = self._exchange(request_of(method, target, headers), method, until_s)
            if response.status >= _LEAST_ERROR:
                _refuse(response)
            try:
                yield response
            finally:  # whatever comes of an answer that was read to its end, its connection carries another request
                if response.keeps_connection and response.complete:
                    self._idle.append(connection)
                    connection = None
        except (TimeoutError, ssl.SSLError, ConnectionError, socket.gaierror) as error:
            reason = f"no data for {self.timeout_s:g} s" if isinstance(error, TimeoutError) else str(error)
            raise Temporary(f"{self.host}: {reason}") from error
        finally:
            if connection is not None:
                connection.close()

    def keep(self, connection: socket.socket) -> None:
        """Keep a connection that nothing more comes on for the next request."""
        self._idle.append(connection)

    def _exchange(self, message: bytes, method: str, until_s: float) -> tuple[socket.socket, Response]:
        """Send on a kept connection, or on a new one if the server has closed that meanwhile."""
        self.requests += 1
        while self._idle:
            with contextlib.suppress(IndexError):
                keeps_connection = self._idle.pop()
                try:
                    return keeps_connection, self._send(keeps_connection, message, method, until_s)
                except (Temporary, OSError) as error:
                    keeps_connection.close()
                    if isinstance(error, TimeoutError):
                        raise
        connection = self.connect(self.timeout_s)
        try:
            return connection, self._send(connection, message, method, until_s)
        except BaseException:
            connection.close()
            raise

    def _send(self, connection: socket.socket, sent: bytes, method: str, until_s: float) -> Response:
        connection.sendall(sent)
        acknowledge_at_once(connection)
        return Response(connection, method, until_s)

    def connect(self, timeout_s: float) -> socket.socket:
        """Return a new connection.

        Raises:
            Temporary: the server does not accept it within the timeout.
            Refused: its certificate is not trusted.

        """
        try:
            raw = socket.create_connection(self._server, timeout_s)
        except ConnectionRefusedError as error:
            raise Temporary(f"{self.host} refuses connections") from error
        except OSError as error:
            raise Temporary(f"{self.host}: {error.strerror or error}") from error
        except UnicodeError as error:  # an empty label, or one of more than 63 characters
            raise Refused(f"{self.host}: no name of a host") from error
        raw.settimeout(self.timeout_s)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is None:
            return raw
        try:
            context, name = self._tls
            return context.wrap_socket(raw, server_hostname=name)
        except ssl.SSLCertVerificationError as error:
            raw.close()
            raise Refused(f"{self.host}: its certificate is not trusted: {error.verify_message}") from error
        except BaseException:
            raw.close()
            raise

    def close(self) -> None:
        """Close the connections that are kept."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()


def request_of(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    """Return a request without a body, as it is sent."""
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1")


def acknowledge_at_once(connection: socket.socket) -> None:
    """Acknowledge what comes next: Ceph's RGW waits up to 40 ms for that of a small object's headers."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def _refuse(response: Response) -> None:
    after = response.headers.get("retry-after", "")
    if response.status >= _LEAST_SERVER_ERROR or response.status in _AGAIN:
        raise Temporary(f"status {response.status}", float(after) if re.fullmatch("[0-9]{1,4}", after) else 0.0)
    text = re.sub(r"\s+", " ", response.content()[:2000].decode("utf-8", "replace"))
    code = re.search(r"<Code>(\w{1,60})</Code>", text)
    raise Refused(f"status {response.status}{f' {code[1]}' if code else ''}", response.status)
