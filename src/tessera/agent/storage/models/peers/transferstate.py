"""The state of a shared transfer: its files, and which chunks are missing, read, written or requested."""

import threading
from collections import deque
from collections.abc import Iterable

from tessera.agent.storage.models.peers.sharedfiles import SharedFile
from tessera.core.storage.models.peers.provenance import STORE
from tessera.core.storage.models.peers.repairs import Chunk
from tessera.core.storage.models.revisions import chunk_range

__all__ = ["TransferState"]


class TransferState:
    """The state of one transfer. `changed` guards all of it, and wakes those that wait for any of it."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.files: list[SharedFile] = []
        self.missing: set[Chunk] = set()
        """Chunks that this pass still has to fetch."""
        self.requested: deque[Chunk] = deque()
        """Missing chunks that peers request."""
        self.reading: set[Chunk] = set()
        """Chunks that are being read from the store."""
        self.writing: set[Chunk] = set()
        """Chunks that are being written to the disk."""
        self.is_over = False
        """Whether nothing arrives any more: all objects are verified, or the transfer failed."""
        self.failure: BaseException | None = None

    def end(self) -> None:
        """End the transfer."""
        with self.changed:
            self.is_over = True
            self.changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """End the transfer; the first error stays."""
        with self.changed:
            self.failure = self.failure or error
            self.is_over = True
            self.changed.notify_all()

    def expect(self, tasks: Iterable[Chunk]) -> None:
        """Begin a pass: these chunks are to be fetched."""
        with self.changed:
            self.missing = set(tasks)

    def wait(self) -> bool:
        """Wait until all chunks of the pass are there, or the transfer has failed; return whether they are there."""
        with self.changed:
            self.changed.wait_for(lambda: not self.missing or self.failure is not None)
            return self.failure is None

    def raise_failure(self) -> None:
        """Raise the first error, if there was one."""
        with self.changed:
            if self.failure is not None:
                raise self.failure

    def is_missing(self, task: Chunk) -> bool:
        """Return whether a chunk of this pass is still to be fetched."""
        with self.changed:
            return task in self.missing

    def arrived(self, task: Chunk) -> None:
        """Note that a chunk is on the disk; of an object without peers only the store's counts."""
        provenance = self.files[task[0]].provenance
        with self.changed:
            if not provenance.alone or provenance.origins.get(task[1]) == STORE:
                self.missing.discard(task)
            self.changed.notify_all()

    def span(self, task: Chunk, buffer: memoryview) -> tuple[SharedFile, int, memoryview]:
        """Return a chunk's file, its first byte in there, and as much of a buffer as it takes."""
        file = self.files[task[0]]
        first, last = chunk_range(file.stored.size, task[1])
        return file, first, buffer[: last - first]
