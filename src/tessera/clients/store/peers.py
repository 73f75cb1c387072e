"""Chunks of models from agents of other nodes, over mutual TLS."""

import ssl
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from tessera.clients.store.http1 import Endpoint, Response
from tessera.clients.store.protocol import Refused, Temporary
from tessera.core.storage.models.peers.owners import PeerPatience

__all__ = ["PEER_NAME", "ChunkAbsent", "PeerConnections", "Pending"]

PEER_NAME = "tessera-peers.tessera-system.svc"
"""The DNS name in an agent's certificate, for clients and servers: not every certificate of
the CA is an agent's."""
_ABSENT, _PENDING, _OK = 404, 202, 200


class ChunkAbsent(Exception):
    """The peer has nothing of this content, and does not fetch it."""


class Pending(Exception):
    """The peer fetches the chunk, and does not have it yet."""


class PeerConnections:
    """Connections to peers, which are kept; thread-safe.

    Args:
        context: our certificate, and the CA of theirs.
        patience: with them.

    """

    def __init__(self, context: ssl.SSLContext, patience: PeerPatience) -> None:
        self._context = context
        self._patience = patience
        self._lock = threading.Lock()
        self._endpoints: dict[str, Endpoint] = {}

    def fill(self, peer: str, target: str, view: memoryview, is_done: Callable[[], bool]) -> None:
        """Fill the view with a peer's chunk.

        Args:
            peer: address and port.
            target: `chunks/KEY/NUMBER`, or `verified/KEY/NUMBER` for verified content.
            view: as long as the chunk.
            is_done: returns whether it is no longer needed.

        Raises:
            ChunkAbsent: it has nothing of it.
            Pending: it has it not yet.
            Temporary: it is gone, too slow, or answers something else.

        """
        until = time.monotonic() + self._patience.chunk_s
        try:
            with self._endpoint(peer).request("GET", f"/{target}", {"Host": PEER_NAME}, until) as response:
                if response.status == _PENDING and response.complete:
                    raise Pending
                _check(response, len(view))
                done = 0
                while done < len(view):
                    done += _received(response, view[done:])
                    if is_done():
                        raise Temporary(f"{peer}: it is no longer needed")
        except Refused as error:
            if error.status == _ABSENT:
                raise ChunkAbsent from error
            raise Temporary(f"{peer}: {error}") from error
        except ValueError as error:  # what a node says is its address may be none
            raise Temporary(f"{peer}: {error}") from error

    def _endpoint(self, peer: str) -> Endpoint:
        with self._lock:
            if peer not in self._endpoints:
                address = urlsplit(f"https://{peer}")
                self._endpoints[peer] = Endpoint(address, self._patience.silent_s, (self._context, PEER_NAME))
            return self._endpoints[peer]

    def close(self) -> None:
        """Close the connections that are kept."""
        with self._lock:
            for endpoint in self._endpoints.values():
                endpoint.close()
            self._endpoints.clear()


def _check(response: Response, size: int) -> None:
    if response.status != _OK or response.length != size:
        raise Temporary(f"{response.length} bytes with status {response.status} where {size} are expected")


def _received(response: Response, view: memoryview) -> int:
    count = response.readinto(view)
    if count == 0:
        raise Temporary("the body ended too early")
    return count
