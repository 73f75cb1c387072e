"""Many small objects, several requested at a time on each of a few connections: pipelining, RFC 9112 section 9.3.2.

A request and its answer cost more in system calls than a small file does; here one call carries several of them
(docs/decisions/0021-models-over-raw-sockets.md).
"""

import contextlib
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable

import msgspec

from tessera.clients.store.http1 import HEAD_BYTES, Endpoint, acknowledge_at_once, read_head
from tessera.clients.store.protocol import SMALL_BYTES, Changed, Contents, Refused, Temporary
from tessera.clients.store.ranges import check_range
from tessera.core.storage.models.revisions import StoredObject

__all__ = ["pipelined"]

_CONNECTIONS = 32
_DEPTH = 8
_REQUESTED_BYTES = 2 * SMALL_BYTES
"""Of one connection: more makes it no faster, and on a slow link the last of it comes too late."""
_CONNECT_S = 2.0
_BUFFER_BYTES = 2 * (HEAD_BYTES + SMALL_BYTES)
_OK = 200


def pipelined(
    endpoint: Endpoint,
    objects: Iterable[StoredObject],
    request: Callable[[StoredObject], bytes],
    *,
    depth: int = _DEPTH,
    checks_etag: bool = True,
) -> Contents:
    """Yield each object with its content, in the order in which they come; without it where it has to be read alone.

    A content is valid until the next one is taken. Whatever goes wrong with an object is found again when it is read
    alone, so nothing is raised here.

    Args:
        endpoint: the server.
        objects: of `SMALL_BYTES` at most, none of them empty.
        request: returns the request for an object, or raises `Temporary`.
        depth: requests on one connection that wait for their answers.
        checks_etag: whether the header ETag is that of the listing; the checksum has to tell otherwise.

    """
    return _Pipelines(endpoint, objects, request, depth, checks_etag=checks_etag).contents()


class _Connection:
    """A connection, and the objects whose content comes on it, in this order."""

    def __init__(self, opened: socket.socket, timeout_s: float) -> None:
        self.socket = opened
        self.requested: deque[StoredObject] = deque()
        self.bytes = 0
        self.answers = 0
        self._timeout_s = timeout_s
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._begin = self._end = 0

    def content(self, *, checks_etag: bool) -> tuple[memoryview, bool]:
        """Return the content of the next object, and whether another can follow.

        Raises:
            Temporary: the connection broke, is too slow, or brought what only a request of its own can tell.
            Changed: it is not the listed object's.
            Refused: it leads elsewhere.
            OSError: the connection broke.

        """
        until = time.monotonic() + self._timeout_s
        while (end := self._buffer.find(b"\r\n\r\n", self._begin, min(self._end, self._begin + HEAD_BYTES))) < 0:
            if self._end - self._begin >= HEAD_BYTES:
                raise Temporary("more than 64 KiB of headers")
            self._receive(until)
        head = read_head(self._view[self._begin : end].tobytes())
        found = self.requested[0]
        if head.status != _OK or head.length is None or not head.etag_is_checksum:
            raise Temporary(f"status {head.status}")
        check_range(head, found if checks_etag else msgspec.structs.replace(found, etag=""), 0, found.size)
        first = end + 4 - self._begin
        while self._end - self._begin < first + found.size:
            self._receive(until)
        begin = self._begin + first
        self._begin = begin + found.size
        self.requested.popleft()
        self.bytes -= found.size
        self.answers += 1
        return self._view[begin : self._begin], head.stays

    def _receive(self, until: float) -> None:
        if time.monotonic() > until:
            raise TimeoutError
        if len(self._buffer) - self._end < SMALL_BYTES or self._begin == self._end:
            rest = self._end - self._begin
            self._view[:rest] = self._view[self._begin : self._end]
            self._begin, self._end = 0, rest
        acknowledge_at_once(self.socket)
        count = self.socket.recv_into(self._view[self._end :])
        if count == 0:
            raise ConnectionResetError
        self._end += count


class _Pipelines:
    """The connections of one `pipelined`; the server decides how many there are, and how much is requested on each.

    Both grow from one with each content: a server may accept few connections, and may close each after one answer.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        objects: Iterable[StoredObject],
        request: Callable[[StoredObject], bytes],
        depth: int,
        *,
        checks_etag: bool,
    ) -> None:
        self._endpoint = endpoint
        self._objects = iter(objects)
        self._request = request
        self._checks_etag = checks_etag
        self._connections: deque[_Connection] = deque()
        self._again: deque[StoredObject] = deque()
        self._alone: deque[StoredObject] = deque()
        self._accepts = True
        self._width, self._widest = 1, _CONNECTIONS
        self._depth, self._most = 1, depth

    def contents(self) -> Contents:
        """Yield all contents."""
        try:
            while True:
                while self._accepts and len(self._connections) < self._width and self._connect():
                    pass
                while self._alone:
                    yield self._alone.popleft(), None
                if not self._connections:
                    break
                yield from self._next(self._connections[0])
            while (found := self._following()) is not None:
                yield found, None
        finally:
            for each in self._connections:
                each.socket.close()

    def _following(self) -> StoredObject | None:
        return self._again.popleft() if self._again else next(self._objects, None)

    def _connect(self) -> bool:
        """Open one more connection, if there is something to request; return whether it is there."""
        found = self._following()
        if found is None:
            return False
        self._again.appendleft(found)
        self._accepts = False  # unless this works: what cannot be reached is waited for once
        try:
            timeout_s = self._endpoint.timeout_s
            opened = _Connection(self._endpoint.connect(min(timeout_s, _CONNECT_S)), timeout_s)
        except (Temporary, Refused, OSError):
            return False
        self._accepts = True
        self._connections.append(opened)
        self._fill(opened)
        return True

    def _fill(self, connection: _Connection) -> None:
        """Request more on a connection; one that has nothing to do any more is kept for other requests."""
        requests = []
        while len(connection.requested) < self._depth and connection.bytes < _REQUESTED_BYTES:
            found = self._following()
            if found is None:
                break
            tells = found.checksum or (found.etag and self._checks_etag)  # whose content has come
            try:
                request = self._request(found) if tells or self._most == 1 else b""
            except Temporary:
                request = b""
            if not request:
                self._alone.append(found)
                continue
            requests.append(request)
            connection.requested.append(found)
            connection.bytes += found.size
        if requests:
            self._endpoint.requests += len(requests)
            with contextlib.suppress(OSError):  # what came before is still there
                connection.socket.sendall(b"".join(requests))
        if not connection.requested:
            self._connections.remove(connection)
            self._endpoint.keep(connection.socket)

    def _next(self, connection: _Connection) -> Contents:
        """Yield half of what was requested on a connection, so that the server is never without a request."""
        for _ in range((len(connection.requested) + 1) // 2):
            found = connection.requested[0]
            try:
                content, stays = connection.content(checks_etag=self._checks_etag)
            except (Temporary, Refused, Changed, OSError) as error:
                if not (isinstance(error, ConnectionError) and connection.answers):
                    connection.requested.popleft()
                    yield found, None
                if isinstance(error, Changed | TimeoutError):
                    self._most = 1  # it may not take several requests at once
                if not connection.answers:  # nor as many connections
                    self._widest = max(1, len(self._connections) - 1)
                    self._width = min(self._width, self._widest)
                self._end(connection)
                return
            yield found, content
            self._width = min(self._width + 1, self._widest)
            if not stays:
                self._end(connection)
                return
            self._depth = min(self._depth + 1, self._most)
        self._connections.rotate(-1)
        self._fill(connection)

    def _end(self, connection: _Connection) -> None:
        """Give up a connection; what was requested on it is requested again."""
        self._again.extendleft(reversed(connection.requested))
        self._connections.remove(connection)
        connection.socket.close()
        self._depth = max(1, min(self._depth // 2, self._most))
