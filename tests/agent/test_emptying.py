"""Folders are emptied whatever is in them, and nothing else is touched."""

import contextlib
import errno
import os
import subprocess
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.agent import emptying
from tessera.agent.emptying import empty_folder
from tessera.agent.nodefiles import remove_folder

MIB = 1 << 20


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


@pytest.fixture(params=[(1, 1, 0), (2, 1, 0), (2, 2, 0), (3, 2, 1), (128, 256, 10)], scope="module")
def few_names_held(request: pytest.FixtureRequest) -> Iterator[None]:
    """Hold so few names of so few levels that small trees have more."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in zip(("_MOST_LEVELS", "_MOST_NAMES", "_NAMED"), request.param, strict=True):
            patch.setattr(emptying, name, value)
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


def refusing(paths: set[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the disk refuse to remove these files, and to open or remove these folders."""
    for call in ("unlink", "rmdir", "open"):
        real = getattr(os, call)

        def refuse(path: Any, *more: Any, real: Any = real, **options: Any) -> Any:
            if "dir_fd" in options and Path(f"/proc/self/fd/{options['dir_fd']}").readlink() / path in paths:
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            return real(path, *more, **options)

        monkeypatch.setattr(os, call, refuse)


@pytest.mark.usefixtures("few_names_held")
@given(st.lists(TREES, max_size=4), st.data())
def test_what_the_disk_refuses_stays_and_all_else_is_removed(inside: list[Any], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as top, pytest.MonkeyPatch.context() as patch:
        folder = Path(top, "folder")
        folder.mkdir()
        build(folder, inside, Path(top))
        there = sorted(folder.rglob("*"))
        bad = set(data.draw(st.lists(st.sampled_from(there), max_size=3))) if there else set[Path]()
        below = {each for path in bad for each in there if path in each.parents}
        refusing(bad, patch)
        if bad:
            with pytest.raises(OSError, match="Input/output"):
                empty_folder(folder)
        else:
            empty_folder(folder)
        patch.undo()
        stay = bad | below
        assert set(folder.rglob("*")) == stay | {
            each for path in stay for each in path.parents if folder in each.parents
        }


def test_the_first_error_is_raised_and_a_disk_that_is_broken_as_a_whole_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in "ab":
        (tmp_path / folder).mkdir()
        for number in range(1000):
            (tmp_path / folder / f"{number}").touch()
    tried: list[str] = []

    def refuse(path: str, **_options: Any) -> None:
        tried.append(path)
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(OSError, match="Input/output") as found:
        empty_folder(tmp_path)
    assert found.value.filename in {str(tmp_path / folder / tried[0]) for folder in "ab"}
    assert len(tried) == 256


def test_a_full_disk_is_no_reason_to_keep_what_is_nested_deep(tmp_path: Path) -> None:
    """A volume that its own files fill, and whose folder has no room for one more name."""
    image, mount = tmp_path / "image", tmp_path / "mount"
    mount.mkdir()
    os.truncate(os.open(image, os.O_CREAT | os.O_WRONLY), 8 * MIB)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", "-b", "1024", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, mount], check=True)
    try:
        volume = mount / "volume"
        volume.mkdir()
        for number in range(3):  # 756 of the 988 bytes that a block has for names
            (volume / f"{number}".ljust(242, "n")).mkdir()
        (volume / "z".ljust(222, "n")).mkdir()
        for each in volume.iterdir():
            nest(each, "d", 140)
        with (mount / "full").open("wb", buffering=0) as full, contextlib.suppress(OSError):
            while True:
                full.write(bytes(512))
        before = volume.stat().st_size
        with pytest.raises(OSError, match="No space"):
            (volume / "another").mkdir()
        assert volume.stat().st_size == before
        empty_folder(volume)
        assert list(volume.iterdir()) == []
    finally:
        subprocess.run(["umount", mount], check=True)


def many_files(folder: Path, count: int) -> None:
    (folder / "0").touch()
    for number in range(1, count):
        os.link(folder / "0", folder / f"{number:08}")


def many_folders(folder: Path, count: int) -> None:
    for number in range(count):
        (folder / f"{number:08}").mkdir()


def nested(folder: Path, count: int) -> None:
    nest(folder, "d", count)


@pytest.mark.parametrize(
    ("fill", "few", "bytes_of_each"), [(many_files, 1000, 0), (many_folders, 1000, 0), (nested, 250, 20)]
)
def test_memory_does_not_bound_what_is_removed(
    tmp_path: Path, fill: Callable[[Path, int], None], few: int, bytes_of_each: int
) -> None:
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
    assert peaks[1] < 1.2 * peaks[0] + 4 * few * bytes_of_each, "it grows with what is in the folder"


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
