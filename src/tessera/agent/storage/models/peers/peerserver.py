"""Serves chunks to agents of other nodes: over TLS, to clients with an agent's certificate, from the served only.

A request is `GET /chunks/KEY/NUMBER`, where KEY is the `content_key` of the content: no path leads anywhere. Answers
are 200 with the chunk, 202 where it is not there yet, 404 where it is not fetched here, and a closed connection
for anything else. `GET /verified/KEY/NUMBER` does not start a fetch.
"""

import contextlib
import os
import re
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable

from tessera.agent.storage.models.digests import start_chunk
from tessera.agent.storage.models.peers.servedcontent import ServedContent, StoredChunk
from tessera.clients.store.peers import PEER_NAME, ChunkAbsent, Pending
from tessera.core.storage.models.peers.owners import PeerPatience

__all__ = ["PeerServer"]

_REQUEST = re.compile(rb"GET /(chunks|verified)/([0-9a-f]{64})/([0-9]{1,9}) HTTP/1\.1\r\n")
_HEAD_BYTES = 4096
_PIECE_BYTES = 256 * 1024
_CONNECTIONS, _OF_ONE_ADDRESS = 96, 16
_HANDSHAKE_S, _IDLE_S, _PAUSE_S = 3.0, 15.0, 0.1


class PeerServer:
    """Serves until it is closed: a thread for each connection, at most 96, of one address at most 16.

    Args:
        listener: a listening socket; closed at the end.
        context: requires certificates of the cluster's CA.
        served: the content to serve.
        patience: how long a request waits for a chunk that is not there yet.
        count: called with the bytes of each served chunk.

    """

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        served: ServedContent,
        patience: PeerPatience,
        count: Callable[[int], None] = lambda _bytes: None,
    ) -> None:
        self._listener = listener
        self._context = context
        self._served = served
        self._pending_s = patience.pending_s
        self._count = count
        self._lock = threading.Lock()
        self._open: dict[socket.socket, str] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._accept, name="peers", daemon=True)

    def start(self) -> None:
        """Start serving."""
        self._thread.start()

    def close(self) -> None:
        """Close all connections."""
        self._closed.set()
        with self._lock:
            ending = [self._listener, *self._open]
        for each in ending:
            with contextlib.suppress(OSError):  # the other side closed it first
                each.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                connection, address = self._listener.accept()
            except OSError:
                if self._listener.fileno() < 0:
                    return
                self._closed.wait(_PAUSE_S)  # the client has left again, or there are too many open files for now
                continue
            connection.settimeout(_HANDSHAKE_S)
            with self._lock:
                count = Counter(self._open.values())
                full = count.total() >= _CONNECTIONS or count[address[0]] >= _OF_ONE_ADDRESS
                if not full:
                    self._open[connection] = address[0]
            if full:
                connection.close()
                continue
            try:
                threading.Thread(target=self._serve, args=(connection,), name="peer", daemon=True).start()
            except RuntimeError:  # there are too many threads for now
                with self._lock:
                    self._open.pop(connection, None)
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        open_one = connection
        try:
            tls = self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
            open_one = tls
            self._move(connection, tls)
            tls.do_handshake()
            tls.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if _is_agent(tls):
                tls.settimeout(_IDLE_S)
                self._answer(tls)
        except (OSError, ValueError):  # ssl.SSLError is an OSError; a connection closed meanwhile is a ValueError
            return
        finally:
            open_one.close()
            with self._lock:
                self._open.pop(open_one, None)

    def _move(self, before: socket.socket, after: socket.socket) -> None:
        with self._lock:
            self._open[after] = self._open.pop(before)

    def _answer(self, tls: ssl.SSLSocket) -> None:
        head = b""
        buffer = memoryview(bytearray(_PIECE_BYTES))
        while not self._closed.is_set():
            while (end := head.find(b"\r\n\r\n")) < 0:
                data = tls.recv(_HEAD_BYTES) if len(head) < _HEAD_BYTES else b""
                if not data:
                    return
                head += data
            found = _REQUEST.match(head)
            if found is None:
                return
            head = head[end + 4 :]
            try:
                number, piece = self._served.open(
                    found[2].decode(), int(found[3]), self._pending_s if found[1] == b"chunks" else None
                )
            except ChunkAbsent:
                tls.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                continue
            except Pending:
                tls.sendall(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
                continue
            try:
                _send(tls, number, piece, buffer)
            finally:
                os.close(number)
            self._count(piece.size)


def _send(tls: ssl.SSLSocket, number: int, piece: StoredChunk, buffer: memoryview) -> None:
    """Send a chunk; the last bytes of a chunk damaged on disk are not sent."""
    tls.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % piece.size)
    digest, done = start_chunk(), 0
    while done < piece.size:
        count = os.preadv(number, [buffer[: piece.size - done]], piece.offset + done)
        digest.update(buffer[:count])
        done += count
        if count == 0 or (done == piece.size and digest.hexdigest() != piece.digest):
            raise OSError(f"{piece.path}: not what was written")
        tls.sendall(buffer[:count])


def _is_agent(tls: ssl.SSLSocket) -> bool:
    """Return whether the client's certificate, signed by the CA, is an agent's."""
    names = (tls.getpeercert() or {}).get("subjectAltName", ())
    return ("DNS", PEER_NAME) in names
