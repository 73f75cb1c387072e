"""A node among its peers: which peers to request chunks from, what to serve, and what is known about them."""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from tessera.agent.storage.models.peers.servedcontent import ServedContent
from tessera.clients.store import Temporary
from tessera.clients.store.peers import ChunkAbsent, PeerConnections, Pending
from tessera.core.storage.models.peers.multipart import proof_of
from tessera.core.storage.models.peers.owners import (
    LEAST_BYTES,
    ContentChunks,
    Owners,
    PeerPatience,
    Peers,
    content_key,
)
from tessera.core.storage.models.revisions import StoredObject, chunk_count

__all__ = ["PeerChunks"]


class PeerChunks:
    """A node's sharing with its peers; thread-safe.

    Args:
        me: its own address and port.
        connections: to peers.
        patience: with peers.
        report: called once for each peer that served wrong data.

    """

    def __init__(
        self,
        me: str,
        connections: PeerConnections,
        patience: PeerPatience | None = None,
        report: Callable[[str, str], None] = lambda _peer, _what: None,
    ) -> None:
        self.me = me
        self.served = ServedContent()
        self.patience = patience or PeerPatience()
        self._connections = connections
        self._report = report
        self._peers = Peers(me, self.patience)
        self._lock = threading.Lock()
        """Guards all of this; taken by the agent's event loop, so never for long."""
        self._assigning = threading.Lock()
        """Of the thread that computes owners."""
        self._members: tuple[str, ...] = (me,)
        self._owners = Owners(ContentChunks({}), [me])
        self.bytes_from_peers = 0
        self.bytes_from_stores = 0
        self.bytes_served = 0

    def set_peers(self, members: Iterable[str]) -> None:
        """Set the peers; whether the node itself is among them does not matter.

        It computes the owners of all chunks, which takes a second where there are millions: call it in a thread.
        """
        with self._assigning:
            members = tuple(sorted({*members, self.me}))
            if members != self._members:
                owners = Owners(self._owners.chunks, members)
                with self._lock:
                    self._members, self._owners = members, owners

    def begin(self, objects: Iterable[StoredObject]) -> None:
        """Set all objects of a source, so that all nodes compute the same owners, whatever they lack."""
        keys = ((_key(each), each.size) for each in objects)
        contents = {key: chunk_count(size) for key, size in keys if key}
        with self._assigning:
            owners = Owners(ContentChunks(contents), self._members)
            with self._lock:
                self._peers.begin()
                self._owners = owners

    @property
    def members(self) -> int:
        """Number of nodes that share, including this one."""
        return len(self._members)

    @property
    def banned(self) -> Mapping[str, str]:
        """The banned peers, each with the wrong data."""
        with self._lock:
            return dict(self._peers.banned)

    def is_shareable(self, stored: StoredObject) -> bool:
        """Return whether an object comes from peers: the store's checksum can verify it, and it is not small."""
        return bool(_key(stored))

    def owner(self, key: str, chunk: int) -> str:
        """Return the node that reads a chunk from the store for all."""
        with self._lock:
            return self._owners.owner(key, chunk)

    def peer_for(self, key: str, chunk: int, besides: Collection[str]) -> str:
        """Return the peer to request a chunk from; empty for the store."""
        with self._lock:
            return self._peers.peer_for(self._owners, key, chunk, time.monotonic(), besides)

    def holder(self, key: str, chunk: int) -> str:
        """Return a peer that may have a chunk owned by this node; empty for none."""
        with self._lock:
            return self._peers.holder(self._owners, key, chunk, time.monotonic())

    def ask(self, peer: str, key: str, chunk: int, view: memoryview, is_done: Callable[[], bool]) -> bool:
        """Fill the view with a peer's chunk; return whether it came before it was no longer needed.

        Raises:
            Pending: the peer does not have it yet.

        """
        try:
            return self._filled(peer, f"chunks/{key}/{chunk}", view, is_done)
        except ChunkAbsent:
            with self._lock:
                self._peers.mark_absent(peer, key, time.monotonic())
            return False

    def ask_holder(self, peer: str, key: str, chunk: int, view: memoryview, is_done: Callable[[], bool]) -> bool:
        """Fill the view with a chunk that a peer has already; return whether it has it."""
        try:
            return self._filled(peer, f"verified/{key}/{chunk}", view, is_done)
        except (ChunkAbsent, Pending):  # pending: it was just published and is being moved
            with self._lock:
                self._peers.mark_unverified(peer, key, time.monotonic())
            return False

    def _filled(self, peer: str, target: str, view: memoryview, is_done: Callable[[], bool]) -> bool:
        try:
            self._connections.fill(peer, target, view, is_done)
        except Temporary:
            if not is_done():
                self.mark_failed(peer)
            return False
        with self._lock:
            self._peers.mark_served(peer)
            self.bytes_from_peers += len(view)
        return True

    def mark_failed(self, peer: str) -> None:
        """Note that a peer is gone, or slow."""
        with self._lock:
            self._peers.mark_failed(peer, time.monotonic())

    def ban(self, peer: str, what: str) -> None:
        """Ban a peer that served wrong data."""
        with self._lock:
            new = self._peers.ban(peer, what)
        if new:
            self._report(peer, what)

    def count_store_bytes(self, size: int) -> None:
        """Count bytes read from a store."""
        with self._lock:
            self.bytes_from_stores += size

    def count_served(self, size: int) -> None:
        """Count bytes served to peers."""
        with self._lock:
            self.bytes_served += size

    def close(self) -> None:
        """Close connections to peers."""
        self._connections.close()


def _key(stored: StoredObject) -> str:
    """Return the content key of an object that peers share; empty for others."""
    return content_key(proof_of(stored), stored.size) if stored.size > LEAST_BYTES and stored.ranges else ""
