"""How chunks of files are read to be compared: as fast as possible, or slowly and past the page cache."""

import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable

from tessera.agent.storage.models.chunkfiles import aligned_buffer
from tessera.core.storage.bandwidth import BandwidthLimit
from tessera.core.storage.models.revisions import CHUNK_BYTES

__all__ = ["ChunkReads", "PacedReads", "ReadsEnded"]

_BLOCK = 4096
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class ReadsEnded(Exception):
    """The reader was stopped."""


class ChunkReads:
    """Reads chunks of files through the page cache; not thread-safe.

    Args:
        most: bytes of the largest chunk.
        before: called before each read; what it raises ends the comparison.

    """

    def __init__(self, most: int = CHUNK_BYTES, before: Callable[[], object] = lambda: None) -> None:
        self._buffer = aligned_buffer(most)
        self._before = before

    def open(self, path: str) -> int:
        """Return the descriptor of a file, which the caller closes."""
        return os.open(path, _FLAGS)

    def read(self, number: int, offset: int, size: int) -> memoryview:
        """Return the bytes at an offset, valid until the next read: fewer than `size` at the end of the file."""
        self._before()
        return self._buffer[: self._fill(number, offset, size, size)]

    def _fill(self, number: int, offset: int, size: int, most: int) -> int:
        done = 0
        while done < size and (count := os.preadv(number, [self._buffer[done:most]], offset + done)):
            done += count
        return min(done, size)


class PacedReads(ChunkReads):
    """Reads chunks from the disk itself, past the page cache, at a limited rate; what pods have cached stays cached.

    Args:
        bytes_per_second: positive.
        stop: ends it.

    """

    def __init__(self, bytes_per_second: float, stop: threading.Event) -> None:
        super().__init__()
        self._limit = BandwidthLimit(bytes_per_second, time.monotonic())
        self._stop = stop

    def open(self, path: str) -> int:
        """Return the descriptor of a file, which the caller closes."""
        try:
            return os.open(path, _FLAGS | os.O_DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a file system without direct reads
                raise
            return super().open(path)

    def read(self, number: int, offset: int, size: int) -> memoryview:
        """Return the bytes at an offset; it waits first, as long as the rate demands.

        Raises:
            ReadsEnded: it was stopped.

        """
        self._stop.wait(self._limit.delay(time.monotonic(), size))
        if self._stop.is_set():
            raise ReadsEnded
        whole = -(-size // _BLOCK) * _BLOCK  # direct reads are of whole blocks
        try:
            count = self._fill(number, offset, size, whole)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a disk with larger blocks
                raise
            fcntl.fcntl(number, fcntl.F_SETFL, fcntl.fcntl(number, fcntl.F_GETFL) & ~os.O_DIRECT)
            count = self._fill(number, offset, size, size)
        return self._buffer[:count]
