"""Where a chunk comes from: an earlier attempt, the peer that owns or has it, or the store."""

import time
from collections.abc import Collection

from tessera.agent.storage.models.peers.peerchunks import PeerChunks
from tessera.agent.storage.models.peers.sharedchunks import SharedChunks
from tessera.agent.storage.models.reading import Reader
from tessera.clients.store.peers import Pending
from tessera.core.storage.models.peers.provenance import STORE
from tessera.core.storage.models.peers.repairs import Chunk

__all__ = ["ChunkSources"]


class ChunkSources:
    """Fetches chunks, one at a time in each thread; thread-safe.

    Args:
        chunks: where they are kept.
        reader: of the store.
        peers: the peers.

    """

    def __init__(self, chunks: SharedChunks, reader: Reader, peers: PeerChunks) -> None:
        self._chunks = chunks
        self._state = chunks.state
        self._reader = reader
        self._peers = peers

    def owner(self, task: Chunk) -> str:
        """Return who reads a chunk from the store: this node, a peer, or each node for itself."""
        file = self._state.files[task[0]]
        return STORE if file.provenance.alone else self._peers.owner(file.key, task[1])

    def fetch_own(self, task: Chunk, buffer: memoryview) -> None:
        """Fetch a chunk that this node owns: from a peer that has the object already, or from the store."""
        if not self._chunks.resume(task, buffer) and not self._from_holder(task, buffer):
            self.from_store(task, buffer)

    def fetch_others(self, task: Chunk, since: float, buffer: memoryview) -> float | None:
        """Fetch a chunk from its owner, which may still have to read it; from others or the store on failure.

        Args:
            task: the chunk.
            since: the time of the first request for it that failed, or 0.
            buffer: for its bytes.

        Returns:
            None if the chunk is there; otherwise since when requests to its owner fail.

        """
        if self._chunks.resume(task, buffer):
            return None
        file, _, view = self._state.span(task, buffer)
        tried = sorted(file.provenance.excluded)
        while not file.provenance.alone and (peer := self._peers.peer_for(file.key, task[1], tried)):
            try:
                if self._peers.ask(peer, file.key, task[1], view, lambda: self._is_done(task)):
                    self._chunks.keep(task, view, peer)
                    self._reader.throttle(time.monotonic(), len(view))
                    break
            except Pending:
                now = time.monotonic()
                if not since or now - since < self._peers.patience.chunk_s:
                    return since or now
                self._peers.mark_failed(peer)
            tried.append(peer)
        if not self._is_done(task):
            self.from_store(task, buffer)
        return None

    def from_store(self, task: Chunk, buffer: memoryview) -> None:
        """Read a chunk from the store, unless the store's is here.

        Raises:
            TesseraError: the store does not answer, refuses, or the object has changed; or the transfer ends.

        """
        chunks = self._chunks
        file, first, view = self._state.span(task, buffer)
        if not chunks.begin_reading(task):
            return
        try:
            is_checksum = self._reader.fill(file.stored, first, view)
            if not is_checksum:
                chunks.read_without_peers()
            self._peers.count_store_bytes(len(view))
            chunks.keep(task, view, STORE)
        finally:
            chunks.end_reading(task)

    def from_another(self, task: Chunk, not_from: Collection[str], view: memoryview) -> str:
        """Fill the view with another peer's version of a chunk; return the peer, or nothing if none has it."""
        file = self._state.files[task[0]]
        other = self._peers.peer_for(file.key, task[1], not_from)
        try:
            if other and self._peers.ask(other, file.key, task[1], view, self._reader.stop.is_set):
                return other
        except Pending:
            pass
        return ""

    def _from_holder(self, task: Chunk, buffer: memoryview) -> bool:
        """Fetch an own chunk from a peer that has the object already; return whether there is one."""
        file, _, view = self._state.span(task, buffer)
        if file.provenance.alone or not (peer := self._peers.holder(file.key, task[1])):
            return False
        if not self._peers.ask_holder(peer, file.key, task[1], view, lambda: self._is_done(task)):
            return False
        self._chunks.keep(task, view, peer)
        self._reader.throttle(time.monotonic(), len(view))
        return not file.provenance.alone

    def _is_done(self, task: Chunk) -> bool:
        return self._reader.stop.is_set() or not self._state.is_missing(task)
