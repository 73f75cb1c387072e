"""Verifies shared objects: their checksums are computed as chunks arrive, and compared with the store's."""

from collections.abc import Callable, Iterable
from functools import partial

from tessera.agent.storage.models.chunkfiles import aligned_buffer
from tessera.agent.storage.models.peers.sharedfiles import SharedFile
from tessera.agent.storage.models.peers.transferstate import TransferState
from tessera.core.storage.models.revisions import chunk_range

__all__ = ["SharedChecksums"]


class SharedChecksums:
    """Verifies the objects of a transfer; thread-safe.

    Args:
        state: of the transfer.
        ban: called with a file, one of its chunks, and the peer that served it wrong.

    """

    def __init__(self, state: TransferState, ban: Callable[[SharedFile, int, str], None]) -> None:
        self._state = state
        self._ban = ban

    def add(self, file: SharedFile, buffer: memoryview, in_hand: int = -1) -> None:
        """Add the next chunks to the checksum of a file, in order, as far as they are on the disk.

        Args:
            file: one thread adds to it at a time; the others leave it the rest.
            buffer: for chunks that are read from the disk.
            in_hand: the chunk that is in the buffer already; -1 for none.

        """
        changed, provenance = self._state.changed, file.provenance
        with changed:
            if file.is_summing:
                return  # the thread that adds them checks again at the end
            file.is_summing = True
        while True:
            with changed:
                chunk = provenance.summed
                there = chunk in provenance.origins and (file.index, chunk) not in self._state.writing
                if not there or provenance.is_summed or file.checksum is None:
                    file.is_summing = False
                    changed.notify_all()
                    return
            first, last = chunk_range(file.stored.size, chunk)
            if chunk != in_hand:
                in_hand = -1  # the buffer has another one from now on
                buffer = aligned_buffer() if len(buffer) < last - first else buffer
                if not file.chunks.read(buffer[: last - first], first):
                    raise OSError(f"{file.path}: shorter than what was written")
            file.checksum.update(buffer[: last - first])
            with changed:
                provenance.summed += 1

    def wrong_objects(self, buffer: memoryview) -> list[int]:
        """Return the objects that differ from the store's; all chunks of the others are served to peers."""
        wrong = []
        for file in self._state.files:
            provenance = file.provenance
            while not provenance.proven:
                self.add(file, buffer)
                with self._state.changed:
                    self._state.changed.wait_for(partial(self._rests, file))
                    provenance.proven = file.is_right
                    self._state.changed.notify_all()
                    if provenance.proven:
                        for peer, chunk in provenance.wrong_peers.items():
                            self._ban(file, chunk, peer)
                    elif provenance.is_summed:
                        wrong.append(file.index)
                        break
        return wrong

    def restart(self, files: Iterable[SharedFile]) -> None:
        """Start the checksums of files from their first chunk."""
        with self._state.changed:
            for file in files:
                self._state.changed.wait_for(partial(self._rests, file))
                file.restart()

    def _rests(self, file: SharedFile) -> bool:
        """Return whether no thread works on it."""
        return not file.is_summing and all(index != file.index for index, _ in self._state.writing)
