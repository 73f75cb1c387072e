"""Files are read whole up to what such a file can be, and not at all beyond."""

import errno
import os
import socket
import subprocess
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.agent import nodefiles
from tessera.agent.nodefiles import (
    empty_folder,
    entries,
    read_file,
    read_regular,
    remove_any,
    remove_folder,
    require_room,
)
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


def nest(folder: Path, name: str, levels: int) -> None:
    current = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=current)
        below = os.open(name, os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = below
    os.close(current)


TREES = st.recursive(
    st.sampled_from(["file", "link", "pipe"]), lambda inner: st.lists(inner, max_size=4), max_leaves=15
)


def build(folder: Path, inside: list[Any], outside: Path) -> None:
    for number, each in enumerate(inside):
        path = folder / str(number)
        match each:
            case "file":
                path.touch()
            case "link":
                path.symlink_to(outside)
            case "pipe":
                os.mkfifo(path)
            case _:
                path.mkdir()
                build(path, each, outside)


@pytest.fixture(params=[(2, 1), (2, 2), (3, 2), (128, 256)], scope="module")
def few_names_held(request: pytest.FixtureRequest) -> Iterator[None]:
    """Hold so few names of so few levels that small trees have more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nodefiles, "_MOST_LEVELS", request.param[0])
        patch.setattr(nodefiles, "_MOST_NAMES", request.param[1])
        yield


@pytest.mark.usefixtures("few_names_held")
@given(st.lists(TREES, max_size=4))
def test_whatever_is_in_a_folder_is_removed_and_nothing_else(inside: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as top:
        folder, outside = Path(top, "folder"), Path(top, "outside")
        folder.mkdir()
        outside.mkdir()
        (outside / "file").touch()
        build(folder, inside, outside)
        empty_folder(folder)
        assert list(folder.iterdir()) == []
        remove_folder(folder)
        assert [each.name for each in Path(top).iterdir()] == ["outside"]
        assert (outside / "file").exists()


def many_files(folder: Path, count: int) -> None:
    (folder / "0").touch()
    for number in range(1, count):
        os.link(folder / "0", folder / f"{number:08}")


def many_folders(folder: Path, count: int) -> None:
    for number in range(count):
        (folder / f"{number:08}").mkdir()


def nested(folder: Path, count: int) -> None:
    nest(folder, "d", count)


@pytest.mark.parametrize(("fill", "few"), [(many_files, 1000), (many_folders, 1000), (nested, 250)])
def test_memory_does_not_bound_what_is_removed(tmp_path: Path, fill: Callable[[Path, int], None], few: int) -> None:
    """A pod that makes a million files must not end the agent, whose memory is limited."""
    peaks = []
    for count in (few, 5 * few):
        folder = tmp_path / str(count)
        folder.mkdir()
        fill(folder, count)
        tracemalloc.start()
        try:
            empty_folder(folder)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
            subprocess.run(("rm", "-rf", folder), check=True)
    assert peaks[1] < 1.5 * peaks[0], "it grows with what is in the folder"


@pytest.mark.parametrize(("name", "levels"), [("d", 3000), ("d" * 255, 40)])
def test_folders_deeper_than_a_path_is_long_are_removed(tmp_path: Path, name: str, levels: int) -> None:
    for number in range(2):
        (tmp_path / f"folder/{number}").mkdir(parents=True)
        nest(tmp_path / f"folder/{number}", name, levels)
    open_files = len(list(Path("/proc/self/fd").iterdir()))
    remove_folder(tmp_path / "folder")
    assert list(tmp_path.iterdir()) == []
    assert len(list(Path("/proc/self/fd").iterdir())) == open_files


@pytest.mark.parametrize("call", ["unlink", "rmdir", "scandir"])
def test_where_a_broken_disk_fails_is_named_with_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    folder = tmp_path / "folder/a/a"
    folder.mkdir(parents=True)
    (folder / "a").touch()
    real = getattr(os, call)

    def fail(path: Any, **options: Any) -> Any:
        at = path if isinstance(path, int) else options["dir_fd"]
        where = Path(f"/proc/self/fd/{at}").readlink() / ("" if isinstance(path, int) else path)
        if where == (folder / "a" if call == "unlink" else folder):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return real(path, **options)

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="Input/output") as found:
        empty_folder(tmp_path / "folder")
    assert found.value.filename == str(folder / "a" if call == "unlink" else folder)


def test_what_cannot_be_removed_is_named_with_its_path(tmp_path: Path) -> None:
    inner = tmp_path / "folder/a/b"
    inner.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", inner], check=True)
    try:
        with pytest.raises(OSError, match=f"another file system is mounted there.*{inner}"):
            remove_folder(tmp_path / "folder")
    finally:
        subprocess.run(["umount", inner], check=True)
    link = tmp_path / "link"
    link.symlink_to("folder")
    with pytest.raises(OSError, match="link"):
        empty_folder(link)
    assert inner.is_dir()


def test_a_folder_that_is_moved_while_it_is_emptied_takes_nothing_else_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, other = tmp_path / "folder/a", tmp_path / "other"
    inner.mkdir(parents=True)
    (other / "a").mkdir(parents=True)
    (other / "a/file").touch()
    scandir = os.scandir

    def scan(path: Any) -> Any:
        if isinstance(path, int) and Path(f"/proc/self/fd/{path}").readlink() == inner:
            inner.rename(other / "moved")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)
    with pytest.raises(OSError, match="moved meanwhile"):
        remove_folder(tmp_path / "folder")
    assert (other / "a/file").exists()
