"""Chunks of files on a disk, in any order, whatever lay there before."""

import errno
import os
import threading
from pathlib import Path

import pytest

from tessera.agent.storage.models.chunkfiles import ChunkFile, aligned_buffer, write_small, writing_back
from tessera.clients.store.folders import FolderStore
from tessera.core.storage.models.revisions import CHUNK_BYTES, chunk_count, chunk_range


def filled(content: bytes) -> memoryview:
    """Return the beginning of an aligned buffer with this content."""
    buffer = aligned_buffer()
    buffer[: len(content)] = content
    return buffer[: len(content)]


@pytest.mark.parametrize("last", [1, 4095, 4096, 4097, 12_345])
def test_chunks_are_written_in_any_order_and_read_back(tmp_path: Path, last: int) -> None:
    chunks = [os.urandom(CHUNK_BYTES), os.urandom(last)]
    file = ChunkFile(str(tmp_path / "f"), CHUNK_BYTES + last)
    for index in (1, 0):
        file.write(filled(chunks[index]), index * CHUNK_BYTES)
    back = memoryview(bytearray(last))
    assert file.read(back, CHUNK_BYTES)
    assert not file.read(memoryview(bytearray(last + 1)), CHUNK_BYTES), "the file is not that long"
    assert (bytes(back), (tmp_path / "f").read_bytes()) == (chunks[1], b"".join(chunks))


def test_the_last_chunk_of_a_file_of_5_tib_is_read_from_a_folder_and_written_where_it_belongs(tmp_path: Path) -> None:
    """Both files are sparse: the largest object of S3 takes a few blocks."""
    size, chunk = 5 * 2**40, os.urandom(12_345)
    first = chunk_range(size, chunk_count(size) - 1)[0]
    (tmp_path / "source").mkdir()
    with (tmp_path / "source" / "a").open("wb") as source:
        source.truncate(size)
        os.pwrite(source.fileno(), chunk, first)
    store, file, view = FolderStore(tmp_path / "source"), ChunkFile(str(tmp_path / "f"), size), aligned_buffer()
    (found,) = store.objects()
    with store.read(found, first, size) as body:
        done = 0
        while count := body.readinto(view[done:]):
            done += count
    assert (done, bytes(view[: len(chunk)])) == (CHUNK_BYTES, chunk)
    file.write(view, first)
    back = memoryview(bytearray(CHUNK_BYTES))
    assert file.read(back, first)
    assert back == view
    status = (tmp_path / "f").stat()
    assert (status.st_size, status.st_blocks * 512 < 2 * CHUNK_BYTES) == (size, True)


def test_a_model_of_more_files_than_a_process_may_open_can_be_written(tmp_path: Path) -> None:
    opened = set(Path("/proc/self/fd").iterdir())
    files = [ChunkFile(str(tmp_path / f"{number:03}"), CHUNK_BYTES + 5) for number in range(50)]
    for file in files:
        file.write(filled(b"these"), CHUNK_BYTES)
        assert file.read(memoryview(bytearray(5)), CHUNK_BYTES)
    assert set(Path("/proc/self/fd").iterdir()) == opened


def test_what_an_earlier_attempt_left_is_kept_and_cut_to_size(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"earlier and longer")
    ChunkFile(str(tmp_path / "f"), 7)
    assert (tmp_path / "f").read_bytes() == b"earlier"


def test_a_small_file_is_replaced_and_its_other_names_keep_the_former(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"former")
    os.link(tmp_path / "f", tmp_path / "other")
    write_small(str(tmp_path / "f"), memoryview(b"new"))
    assert [(tmp_path / name).read_bytes() for name in ("f", "other")] == [b"new", b"former"]


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"theirs")
    for name in ("small", "large"):
        (tmp_path / name).symlink_to("elsewhere")
    write_small(str(tmp_path / "small"), memoryview(b"new"))
    with pytest.raises(OSError, match="symbolic links"):
        ChunkFile(str(tmp_path / "large"), 3)
    assert (tmp_path / "elsewhere").read_bytes() == b"theirs"


class Opens:
    """What files are opened with; direct writes may fail as on other file systems."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, direct: int = 0) -> None:
        self.flags: list[int] = []
        self.folder_opened = threading.Event()
        self._direct = direct
        self._open = os.open
        monkeypatch.setattr(os, "open", self)

    def __call__(self, path: str, flags: int, mode: int = 0o777) -> int:
        self.flags.append(flags)
        if flags & os.O_DIRECTORY:
            self.folder_opened.set()
        if self._direct and flags & os.O_DIRECT:
            raise OSError(self._direct, os.strerror(self._direct))
        return self._open(path, flags, mode)


def write_chunk(path: Path) -> bytes:
    """Write a chunk that ends within a block; return it."""
    content = os.urandom(3 * 4096 + 5)
    ChunkFile(str(path), len(content)).write(filled(content), 0)
    return content


def test_whole_blocks_are_written_past_the_page_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opens = Opens(monkeypatch)
    content = write_chunk(tmp_path / "f")
    assert [bool(flags & os.O_DIRECT) for flags in opens.flags] == [False, True, False], "made, its blocks, the rest"
    assert (tmp_path / "f").read_bytes() == content


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP])
def test_where_the_file_system_has_no_direct_writes_all_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    Opens(monkeypatch, code)
    content = write_chunk(tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == content


def test_a_disk_that_fails_at_a_direct_write_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Opens(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        write_chunk(tmp_path / "f")


def test_what_cannot_be_written_back_is_reported_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opens = Opens(monkeypatch)
    with writing_back(tmp_path):
        assert opens.folder_opened.wait(10), "it syncs meanwhile"
    opens.folder_opened.clear()
    with pytest.raises(FileNotFoundError, match="gone"), writing_back(tmp_path / "gone"):
        assert opens.folder_opened.wait(10)
    with pytest.raises(IsADirectoryError), writing_back(tmp_path / "gone"):
        tmp_path.read_bytes()  # the error raised inside is reported, not what follows
