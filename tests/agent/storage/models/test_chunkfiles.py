"""Chunks of files on a disk, in any order, whatever lay there before."""

import os
import time
from pathlib import Path

import pytest

from tessera.agent.storage.models.chunkfiles import ChunkFile, aligned_buffer, write_small, writing_back
from tessera.core.storage.models.revisions import CHUNK_BYTES


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


def test_what_cannot_be_written_back_is_reported_at_the_end(tmp_path: Path) -> None:
    with writing_back(tmp_path):
        time.sleep(0.5)  # it syncs meanwhile
    with pytest.raises(FileNotFoundError, match="gone"), writing_back(tmp_path / "gone"):
        time.sleep(0.5)
    with pytest.raises(IsADirectoryError), writing_back(tmp_path / "gone"):
        tmp_path.read_bytes()  # what happens inside is told, not what follows
