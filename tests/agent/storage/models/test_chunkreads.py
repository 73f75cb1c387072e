"""Chunks that are read to be compared, through the page cache and past it."""

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tessera.agent.storage.models.chunkreads import ChunkReads, PacedReads, ReadsEnded
from tessera.core.storage.models.revisions import CHUNK_BYTES, chunk_count, chunk_range

FAST = 1e12


@contextmanager
def opened(reads: ChunkReads, path: Path) -> Iterator[int]:
    number = reads.open(str(path))
    try:
        yield number
    finally:
        os.close(number)


def all_of(reads: ChunkReads, path: Path, size: int) -> bytes:
    with opened(reads, path) as number:
        ranges = (chunk_range(size, index) for index in range(chunk_count(size)))
        return b"".join(bytes(reads.read(number, first, last - first)) for first, last in ranges)


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES + 12_345])
def test_both_read_the_same(tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    (tmp_path / "f").write_bytes(content)
    for reads in (ChunkReads(), PacedReads(FAST, threading.Event())):
        assert all_of(reads, tmp_path / "f", size) == content
        assert all_of(reads, tmp_path / "f", size + 5) == content, "the file ends sooner"


def test_what_is_read_slowly_stays_out_of_the_page_cache(tmp_path: Path) -> None:
    """What pods have there is not displaced, and it is the disk that is compared."""
    (tmp_path / "f").write_bytes(os.urandom(CHUNK_BYTES))
    with (tmp_path / "f").open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        all_of(PacedReads(FAST, threading.Event()), tmp_path / "f", CHUNK_BYTES)
        with pytest.raises(OSError, match=os.strerror(errno.EAGAIN)):  # nothing of it without the disk
            os.preadv(file.fileno(), [bytearray(4096)], 0, os.RWF_NOWAIT)
        all_of(ChunkReads(), tmp_path / "f", CHUNK_BYTES)
        assert os.preadv(file.fileno(), [bytearray(4096)], 0, os.RWF_NOWAIT) == 4096


def test_a_disk_of_larger_blocks_is_read_through_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_bytes(b"content")
    monkeypatch.setattr("tessera.agent.storage.models.chunkreads._BLOCK", 1)  # no disk has so small ones
    assert all_of(PacedReads(FAST, threading.Event()), tmp_path / "f", 7) == b"content"


def test_a_reader_that_is_stopped_reads_no_more(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"content")
    stop = threading.Event()
    reads = PacedReads(0.001, stop)
    with opened(reads, tmp_path / "f") as number:
        threading.Timer(0.05, stop.set).start()
        with pytest.raises(ReadsEnded):  # it would have waited for two hours
            reads.read(number, 0, 7)


def test_nothing_is_read_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "f").symlink_to("elsewhere")
    for reads in (ChunkReads(), PacedReads(FAST, threading.Event())):
        with pytest.raises(OSError, match="symbolic links"):
            reads.open(str(tmp_path / "f"))
