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
    """A file of several chunks, written in any order by several threads; it is open only while one is read or written.

    Args:
        path: created if missing; the content of an earlier attempt is kept.
        size: bytes.

    """

    def __init__(self, path: str, size: int) -> None:
        self._path = path
        with _opened(path, os.O_WRONLY | os.O_CREAT) as number:
            os.ftruncate(number, size)

    def write(self, data: memoryview, offset: int) -> None:
        """Write a chunk; `data` is the beginning of an aligned buffer, `offset` a multiple of the chunk's size."""
        whole = len(data) // _BLOCK * _BLOCK
        if not (whole and self._write_direct(data[:whole], offset)):
            whole = 0
        if whole < len(data):
            with _opened(self._path, os.O_WRONLY) as number:
                _write_all(number, data[whole:], offset + whole)

    def _write_direct(self, data: memoryview, offset: int) -> bool:
        """Write past the page cache; return whether this disk can."""
        try:
            with _opened(self._path, os.O_WRONLY | os.O_DIRECT) as number:
                _write_all(number, data, offset)
        except OSError as error:
            # EINVAL also where the disk's blocks are larger; others are said of tmpfs and network file systems.
            if error.errno not in {errno.EINVAL, errno.EOPNOTSUPP}:
                raise
            return False
        return True

    def read(self, view: memoryview, offset: int) -> bool:
        """Fill the view; return whether the file is long enough."""
        done = 0
        with _opened(self._path, os.O_RDONLY) as number:
            while done < len(view):
                count = os.preadv(number, [view[done:]], offset + done)
                if count == 0:
                    return False
                done += count
        return True


@contextlib.contextmanager
def _opened(path: str, flags: int) -> Iterator[int]:
    number = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        yield number
    finally:
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
