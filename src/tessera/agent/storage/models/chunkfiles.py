"""Chunks of files on a disk: written past the page cache where the file system supports it, and read back.

Buffered writes cost three times the time and are charged to the memory of the agent's container
(docs/decisions/0021-models-over-raw-sockets.md).
"""

import contextlib
import ctypes
import errno
import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from tessera.core.storage.models.revisions import CHUNK_BYTES

__all__ = ["ChunkFile", "aligned_buffer", "sync_file_system", "write_small", "writing_back"]

_BLOCK = 4096
_LIBC = ctypes.CDLL(None, use_errno=True)
"""For syncfs, which Python does not have."""
_WRITE_BACK_S = 0.2


def aligned_buffer(size: int = CHUNK_BYTES) -> memoryview:
    """Return memory for one chunk, or for a smaller file, aligned for direct writes."""
    memory = mmap.mmap(-1, max(1, min(size, CHUNK_BYTES)), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if len(memory) == CHUNK_BYTES:
        with contextlib.suppress(OSError):  # kernels without huge pages; with them a direct write pins fewer
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


def write_small(path: str, data: memoryview) -> None:
    """Write a file of one chunk; a former one is replaced, never overwritten: it may have hard links."""
    number = _create(path)
    try:
        _write_all(number, data, 0)
    finally:
        os.close(number)


def sync_file_system(path: Path) -> None:
    """Sync a file system to its disk."""
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _LIBC.syncfs(number) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(path))
    finally:
        os.close(number)


@contextlib.contextmanager
def writing_back(path: Path) -> Iterator[None]:
    """Write small files to their disk while more of them come, so that little is left to wait for at the end.

    Raises:
        OSError: some were not written; the kernel says it once.

    """
    ended = threading.Event()
    problems: list[OSError] = []

    def write_back() -> None:
        while not ended.wait(_WRITE_BACK_S):
            try:
                sync_file_system(path)
            except OSError as error:
                problems.append(error)
                return

    thread = threading.Thread(target=write_back, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if problems:
        raise problems[0]


class ChunkFile:
    """A file of several chunks, written in any order by several threads.

    Args:
        path: created if missing; the content of an earlier attempt is kept.
        size: bytes.

    """

    def __init__(self, path: str, size: int) -> None:
        self._number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        self._direct = -1
        with contextlib.suppress(OSError):  # tmpfs and some network file systems have no direct writes
            self._direct = os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.ftruncate(self._number, size)
        except OSError:
            self.close()
            raise

    def write(self, data: memoryview, offset: int) -> None:
        """Write a chunk; `data` is the beginning of an aligned buffer, `offset` a multiple of the chunk's size."""
        whole = len(data) // _BLOCK * _BLOCK if self._direct >= 0 else 0
        if whole:
            try:
                _write_all(self._direct, data[:whole], offset)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                whole = 0  # blocks of this disk are larger
        if whole < len(data):
            _write_all(self._number, data[whole:], offset + whole)

    def read(self, view: memoryview, offset: int) -> bool:
        """Fill the view; return whether the file is long enough."""
        done = 0
        while done < len(view):
            count = os.preadv(self._number, [view[done:]], offset + done)
            if count == 0:
                return False
            done += count
        return True

    def close(self) -> None:
        """Close the file; idempotent."""
        numbers, self._number, self._direct = (self._number, self._direct), -1, -1
        for number in numbers:
            if number >= 0:
                os.close(number)


def _create(path: str) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o644)
    except FileExistsError:
        os.unlink(path)  # noqa: PTH108 - one of 20,000 files: pathlib costs as much as the call
        return os.open(path, flags, 0o644)


def _write_all(number: int, data: memoryview, offset: int) -> None:
    while data:
        count = os.pwrite(number, data, offset)
        data, offset = data[count:], offset + count
