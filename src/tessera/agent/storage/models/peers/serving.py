"""Serves the chunks of a transfer to peers: those that are verified or from the store; the others are read for them."""

import time

from tessera.agent.storage.models.peers.servedcontent import StoredChunk
from tessera.agent.storage.models.peers.transferstate import TransferState
from tessera.clients.store.peers import ChunkAbsent, Pending
from tessera.core.storage.models.peers.provenance import STORE
from tessera.core.storage.models.peers.repairs import Chunk

__all__ = ["ServedObject", "next_requested"]


class ServedObject:
    """An object of a transfer, for peers.

    Args:
        state: of the transfer.
        index: of the object.

    """

    def __init__(self, state: TransferState, index: int) -> None:
        self._state = state
        self._index = index

    def take(self, chunk: int, wait_s: float | None) -> StoredChunk:
        """Return a chunk that is verified or from the store; have it read if it is missing.

        Args:
            chunk: index.
            wait_s: how long to wait for it; None to return it only if the whole object is verified.

        Raises:
            ChunkAbsent: there is no such chunk, or the transfer is over.
            Pending: it is not there after so many seconds.

        """
        state, task = self._state, (self._index, chunk)
        file = state.files[self._index]
        provenance = file.provenance
        if chunk >= len(provenance.digests) or (wait_s is None and not provenance.proven):
            raise ChunkAbsent
        if wait_s is None:
            return file.piece(chunk)
        until = time.monotonic() + wait_s
        with state.changed:
            while True:
                if provenance.proven or (provenance.origins.get(chunk) == STORE and task not in state.writing):
                    return file.piece(chunk)
                if state.is_over:
                    raise ChunkAbsent
                if task not in state.requested and task not in state.reading:
                    state.requested.append(task)
                    state.changed.notify_all()
                left = until - time.monotonic()
                if left <= 0:
                    raise Pending
                state.changed.wait(left)


def next_requested(state: TransferState) -> Chunk | None:
    """Wait for a chunk that peers request and that is missing; None once the transfer is over."""
    with state.changed:
        state.changed.wait_for(lambda: state.requested or state.is_over)
        return None if state.is_over else state.requested.popleft()
