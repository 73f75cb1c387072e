"""Files are read whole up to what such a file can be, and not at all beyond."""

import os
import socket
import subprocess
from pathlib import Path

import pytest

from tessera.agent.nodefiles import entries, read_file, read_regular, remove_any, require_room
from tessera.errors import InvalidInput

MIB = 1 << 20


@pytest.mark.parametrize(("most", "size"), [(MIB, 0), (MIB, MIB), (8 * MIB, MIB + 1)])
def test_a_file_of_a_sensible_size_is_read(tmp_path: Path, most: int, size: int) -> None:
    (tmp_path / "file").write_bytes(b"x" * size)
    assert read_file(tmp_path / "file", most) == b"x" * size


def test_a_larger_file_is_refused() -> None:
    with pytest.raises(InvalidInput, match="/dev/zero: it has more than 1 MiB: divide it"):
        read_file(Path("/dev/zero"))


def test_a_file_that_is_not_there_is_left_to_the_caller(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "none")


def test_room_is_where_a_file_can_be_written_and_no_file_is_left(tmp_path: Path) -> None:
    require_room(tmp_path, 100_000)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        require_room(tmp_path / "absent", 1)


def test_what_is_no_file_of_our_own_is_not_read_and_whatever_it_is_removed(socket_folder: Path) -> None:
    top = socket_folder
    names = ("file", "pipe", "folder", "device", "nothing", "socket")
    file, pipe, folder, device, nothing, other = (top / name for name in names)
    file.write_bytes(b"content")
    os.mkfifo(pipe)
    (folder / "x").mkdir(parents=True)
    device.symlink_to("/dev/zero")
    nothing.symlink_to("gone")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(other))
    assert read_regular(file) == b"content"
    for path in (pipe, folder, device, nothing, other):
        with pytest.raises(OSError, match="not a regular file"):
            read_regular(path)
    os.truncate(file, (1 << 30) + 1)
    with pytest.raises(OSError, match="more than a GiB"):
        read_regular(file)
    for path in (top / name for name in (*names, "absent")):
        remove_any(path)
    assert list(top.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        read_regular(file)


def test_folders_nested_too_deep_for_recursion_are_removed(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("a", dir_fd=here)
        os.symlink("/etc", "b", dir_fd=here)
        inner = os.open("a", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    try:
        assert sum(1 for _ in entries(top)) == 3000
        remove_any(top)
        assert list(tmp_path.iterdir()) == []
        assert Path("/etc").is_dir()
    finally:  # pytest itself could not remove it, nor whatever comes after it
        subprocess.run(("rm", "-rf", top), check=True)
