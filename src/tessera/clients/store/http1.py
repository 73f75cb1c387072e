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
from urllib.parse import SplitResult

from tessera.clients.store.protocol import Refused, Temporary

__all__ = ["Endpoint", "Response"]

_HEADER_BYTES = 64 * 1024
_SMALL_BYTES = 64 * 2**20
_STATUS = re.compile(r"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: |$)")
_OK, _LEAST_ERROR, _LEAST_SERVER_ERROR = 200, 400, 500
_AGAIN = frozenset({408, 425, 429})
_AHEAD_CONNECT_S = 2.0
"""A slower server is left to the request itself, whose timeout counts."""
_NO_BODY = frozenset({204, 304})


class Response:
    """A response: status, headers by lower-case name, and the body, read once.

    Args:
        connection: an open socket.
        method: the request's.
        until_s: its deadline, on the monotonic clock, however little is received at a time.

    """

    etag_is_checksum = True

    def __init__(self, connection: socket.socket, method: str, until_s: float = math.inf) -> None:
        self._socket = connection
        self._until_s = until_s
        self._rest = b""
        self._keeps = True
        self.status, self.headers = self._head()
        self._chunked = self.headers.get("transfer-encoding", "").lower() == "chunked"
        length = self.headers.get("content-length")
        if length is not None and not (length.isascii() and length.isdigit()):
            raise Temporary(f"Content-Length {length[:40]!r} is no number")
        if method == "HEAD" or self.status in _NO_BODY:
            self._chunked, length = False, "0"
        self.length = None if self._chunked or length is None else int(length)
        self._left = self.length
        stays = self.headers.get("connection", "" if self._keeps else "close").lower() != "close"
        self.kept = stays and (self._chunked or length is not None)
        self.etag_is_checksum = not (
            self.headers.get("x-amz-server-side-encryption", "").startswith("aws:kms")
            or "x-amz-server-side-encryption-customer-algorithm" in self.headers
        )

    @property
    def complete(self) -> bool:
        """Whether the body was read to its end, so that the connection can be reused."""
        return self._left == 0

    def _check_time(self) -> None:
        if time.monotonic() > self._until_s:
            raise Temporary("it comes too slowly")

    def _receive(self, size: int = _HEADER_BYTES) -> bytes:
        self._check_time()
        data = self._socket.recv(size)
        if not data:
            raise Temporary("the connection ended too early")
        return data

    def _head(self) -> tuple[int, dict[str, str]]:
        data = self._receive()
        while (end := data.find(b"\r\n\r\n")) < 0:
            if len(data) > _HEADER_BYTES:
                raise Temporary("more than 64 KiB of headers")
            data += self._receive()
        self._rest = data[end + 4 :]
        status, *lines = data[:end].decode("latin-1").split("\r\n")
        if (found := _STATUS.match(status)) is None:
            raise Temporary(f"no HTTP status: {status[:40]!r}")
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        self._keeps = found[1] == "1"  # what speaks HTTP/1.0 closes, unless it says otherwise
        return int(found[2]), headers

    def readinto(self, view: memoryview) -> int:
        """Fill the view's beginning; 0 after the last byte. A body of unknown length ends with the connection."""
        if self._chunked:
            raise Temporary("a range came without its length")
        most = len(view) if self._left is None else min(len(view), self._left)
        if most == 0:
            return 0
        if self._rest:
            count = min(most, len(self._rest))
            view[:count] = self._rest[:count]
            self._rest = self._rest[count:]
        else:
            self._check_time()
            count = self._socket.recv_into(view, most)
            if count == 0 and self._left is not None:
                raise Temporary(f"the connection ended {self._left} bytes too early")
        if self._left is not None:
            self._left -= count
        return count

    def content(self) -> bytes:
        """Return a whole small body: a listing, an error."""
        if self._chunked:
            return self._unchunked()
        buffer, done = bytearray(self.length if self.length is not None else 2**20), 0
        if len(buffer) > _SMALL_BYTES:
            raise Temporary("a listing of more than 64 MiB")
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
                self._rest += self._receive()
            line, _, self._rest = self._rest.partition(b"\r\n")
            digits = line.partition(b";")[0].strip()
            if not re.fullmatch(rb"[0-9a-fA-F]{1,8}", digits):
                raise Temporary(f"no length of a chunk: {digits[:20]!r}")
            size = int(digits, 16)
            total += size
            if total > _SMALL_BYTES:
                raise Temporary("a listing of more than 64 MiB")
            while len(self._rest) < size + 2:
                self._rest += self._receive()
            if size == 0:
                self._left = 0 if self._rest.startswith(b"\r\n") else None
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
        self._server = (address.hostname, address.port or (443 if self._tls else 80))
        self.host = address.netloc.rpartition("@")[2]
        self._timeout_s = timeout_s
        self._idle: list[socket.socket] = []
        self._full = False
        self._requested: dict[str, tuple[socket.socket, Mapping[str, str]]] = {}
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
            taken = self._taken(target, headers)
            connection, response = taken or self._exchange(_message(method, target, headers), method, until_s)
            if response.status >= _LEAST_ERROR:
                _refuse(response)
            try:
                yield response
            finally:  # whatever comes of an answer that was read to its end, its connection carries another request
                if response.kept and response.complete:
                    self._idle.append(connection)
                    connection = None
        except (TimeoutError, ssl.SSLError, ConnectionError, socket.gaierror) as error:
            reason = f"nothing came for {self._timeout_s:g} s" if isinstance(error, TimeoutError) else str(error)
            raise Temporary(f"{self.host}: {reason}") from error
        finally:
            if connection is not None:
                connection.close()

    def ask_ahead(self, target: str, headers: Mapping[str, str]) -> None:
        """Send a GET request now; the next `request` for the target takes the response. It never fails."""
        with contextlib.suppress(Temporary, Refused, OSError):
            try:
                connection = self._idle.pop()
            except IndexError:
                if self._full:
                    return
                self._full = True  # unless this works: what cannot be reached is waited for once
                connection = self._connect(min(self._timeout_s, _AHEAD_CONNECT_S))
                self._full = False
            try:
                _send_message(connection, _message("GET", target, headers))
            except BaseException:
                connection.close()
                raise
            self.requests += 1
            self._requested[target] = (connection, headers)

    def requested(self, target: str) -> Mapping[str, str] | None:
        """Return the headers of the request that was sent ahead for a target."""
        return self._requested[target][1] if target in self._requested else None

    def _taken(self, target: str, headers: Mapping[str, str]) -> tuple[socket.socket, Response] | None:
        """Return the response to a request that was sent ahead; None if there is none, or it broke."""
        if target not in self._requested:
            return None
        connection, sent = self._requested.pop(target)
        try:
            if headers is sent:
                return connection, Response(connection, "GET")
        except (Temporary, OSError) as error:
            if isinstance(error, TimeoutError):
                connection.close()
                raise
        except BaseException:
            connection.close()
            raise
        connection.close()
        return None

    def _exchange(self, message: bytes, method: str, until_s: float) -> tuple[socket.socket, Response]:
        """Send on a kept connection, or on a new one if the server has closed that meanwhile."""
        self.requests += 1
        while self._idle:
            with contextlib.suppress(IndexError):
                kept = self._idle.pop()
                try:
                    return kept, self._send(kept, message, method, until_s)
                except (Temporary, OSError) as error:
                    kept.close()
                    if isinstance(error, TimeoutError):
                        raise
        connection = self._connect(self._timeout_s)
        try:
            return connection, self._send(connection, message, method, until_s)
        except BaseException:
            connection.close()
            raise

    def _send(self, connection: socket.socket, message: bytes, method: str, until_s: float) -> Response:
        _send_message(connection, message)
        return Response(connection, method, until_s)

    def _connect(self, timeout_s: float) -> socket.socket:
        try:
            raw = socket.create_connection(self._server, timeout_s)
        except OSError as error:
            raise Temporary(f"{self.host}: {error.strerror or error}") from error
        raw.settimeout(self._timeout_s)
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
        for connection in (*self._idle, *(connection for connection, _ in self._requested.values())):
            connection.close()
        self._idle.clear()
        self._requested.clear()


def _message(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1")


def _send_message(connection: socket.socket, message: bytes) -> None:
    connection.sendall(message)
    # Ceph's RGW waits 40 ms for our acknowledgement of a small object's headers, unless it is sent at once.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def _refuse(response: Response) -> None:
    after = response.headers.get("retry-after", "")
    if response.status >= _LEAST_SERVER_ERROR or response.status in _AGAIN:
        raise Temporary(f"status {response.status}", float(after) if re.fullmatch("[0-9]{1,4}", after) else 0.0)
    text = re.sub(r"\s+", " ", response.content()[:2000].decode("utf-8", "replace"))
    code = re.search(r"<Code>(\w{1,60})</Code>", text)
    raise Refused(f"status {response.status}{f' {code[1]}' if code else ''}", response.status)
