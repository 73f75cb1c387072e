"""Folders of local volumes on a filesystem of their own: made, found and erased, and nothing beside them."""

import os
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tessera.agent.storage.disks.volumefolders import VolumeFolders
from tessera.core.storage.disks.localvolumes import VolumeFolder
from tessera.errors import Conflict, Unavailable


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Path]:
    """Give a folder with a filesystem of its own."""
    path = tmp_path / "disks"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", path], check=True)
    yield path
    subprocess.run(["umount", "--recursive", path], check=True)


def test_a_folder_is_made_found_and_erased_whatever_is_in_it(mount: Path, tmp_path: Path) -> None:
    folders = VolumeFolders(mount)
    assert folders.found() == ()
    folders.make(3)
    assert folders.found() == (VolumeFolder(number=3, empty=True),)
    inside, other = mount / "volumes/3", tmp_path / "other"
    other.mkdir()
    (other / "file").write_text("not ours")
    (inside / "a/b").mkdir(parents=True)
    (inside / "a/b/file").write_text("x")
    (inside / ".hidden").write_text("x")
    (inside / "link").symlink_to(other)
    (inside / "a/link").symlink_to("/")
    (inside / "broken").symlink_to("nowhere")
    assert folders.found() == (VolumeFolder(number=3, empty=False),)
    folders.erase(3)
    assert folders.found() == (VolumeFolder(number=3, empty=True),)
    assert (other / "file").read_text() == "not ours"
    assert inside.stat().st_mode & 0o777 == 0o777


ACL = struct.pack(
    "<I" + 5 * "HHI", 2, *(1, 7, 2**32 - 1), *(2, 7, 1234), *(4, 0, 2**32 - 1), *(16, 7, 2**32 - 1), *(32, 0, 2**32 - 1)
)
CHANGES: dict[str, Callable[[Path], None]] = {
    "mode": lambda folder: folder.chmod(0o2700),
    "owner": lambda folder: os.chown(folder, 1234, 0),
    "group": lambda folder: os.chown(folder, 0, 1234),
    "default ACL": lambda folder: os.setxattr(folder, "system.posix_acl_default", ACL),
    "attribute": lambda folder: os.setxattr(folder, "trusted.note", b"of the last tenant"),
}


@pytest.mark.parametrize("is_empty", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_the_next_user_finds_a_folder_as_it_was_made(mount: Path, change: str, is_empty: bool) -> None:
    folders, folder = VolumeFolders(mount), mount / "volumes/0"
    folders.make(0)
    CHANGES[change](folder)
    if not is_empty:
        (folder / "file").touch()
    assert folders.found() == (VolumeFolder(number=0, empty=False),)
    folders.erase(0)
    assert folders.found() == (VolumeFolder(number=0, empty=True),)
    status = folder.stat()
    assert (status.st_mode & 0o7777, status.st_uid, status.st_gid) == (0o777, 0, 0)
    assert os.listxattr(folder) == []


@pytest.mark.parametrize("change", CHANGES)
def test_a_folder_takes_nothing_of_the_one_above(mount: Path, change: str) -> None:
    """An administrator may give a group, setgid or a default ACL to all that comes into it."""
    folders, above = VolumeFolders(mount), mount / "volumes"
    above.mkdir()
    CHANGES[change](above)
    above.chmod(above.stat().st_mode | 0o2000)
    folders.make(0)
    assert folders.found() == (VolumeFolder(number=0, empty=True),)
    (above / "0/file").touch()
    folders.erase(0)
    assert folders.found() == (VolumeFolder(number=0, empty=True),)


@pytest.mark.parametrize(
    ("what", "problem"), [("files", "Directory not empty"), ("folders", "not all of it is removed yet")]
)
def test_a_folder_that_is_still_written_to_does_not_keep_the_other_volumes_waiting(
    mount: Path, what: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file or folder that goes comes again."""
    folders, inside = VolumeFolders(mount), mount / "volumes/0"
    folders.make(0)
    for number in range(300):  # more than are read at once
        (inside / str(number)).mkdir() if what == "folders" else (inside / str(number)).touch()
    call, clock = {"files": "unlink", "folders": "rmdir"}[what], [0.0]
    real = getattr(os, call)

    def again(path: Any, **options: Any) -> None:
        real(path, **options)
        if not options:  # the folder itself
            return
        name = str(int(path) + 300)
        if what == "folders":
            os.mkdir(name, dir_fd=options["dir_fd"])
        else:
            os.close(os.open(name, os.O_CREAT, dir_fd=options["dir_fd"]))
        clock[0] += 0.05

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with monkeypatch.context() as patch:
        patch.setattr(os, call, again)
        with pytest.raises(Unavailable, match=rf"volumes/0: {problem}: the rest follows; end what"):
            folders.erase(0)
        assert clock[0] <= 21
    folders.erase(0)
    assert folders.found() == (VolumeFolder(number=0, empty=True),)


def test_what_is_no_volume_is_not_counted_and_a_link_is_no_folder(mount: Path, tmp_path: Path) -> None:
    (mount / "volumes/readme").mkdir(parents=True)
    (mount / "volumes/7").symlink_to(tmp_path)
    (mount / "volumes/8").write_text("")
    for name in ("07", "\u0663"):
        (mount / "volumes" / name).mkdir()
    assert VolumeFolders(mount).found() == ()


def test_nothing_is_removed_where_another_filesystem_is_mounted_inside(mount: Path) -> None:
    folders = VolumeFolders(mount)
    folders.make(0)
    (mount / "volumes/0/file").write_text("x")
    (mount / "volumes/0/deep/er").mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", mount / "volumes/0/deep/er"], check=True)
    with pytest.raises(Conflict, match=r"something is mounted at .*deep/er"):
        folders.erase(0)
    assert (mount / "volumes/0/file").read_text() == "x"


def test_a_file_system_mounted_at_the_folder_is_not_erased(mount: Path) -> None:
    folders = VolumeFolders(mount)
    for number in (1, 10):
        folders.make(number)
        (mount / f"volumes/{number}/file").touch()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", mount / "volumes/10"], check=True)
    (mount / "volumes/10/theirs").touch()
    with pytest.raises(Conflict, match=r"something is mounted at .*volumes/10: unmount"):
        folders.erase(10)
    assert (mount / "volumes/10/theirs").exists()
    folders.erase(1)
    assert list((mount / "volumes/1").iterdir()) == []


@pytest.mark.parametrize("is_same", [False, True], ids=["another", "a folder of the same"])
def test_a_file_system_mounted_between_the_look_and_the_removal_is_not_erased(
    mount: Path, is_same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (mount / "other").mkdir()
    what = ("--bind", mount / "other") if is_same else ("-t", "tmpfs", "tmpfs")
    inside = mount / "volumes/0/in"
    inside.mkdir(parents=True)
    real = os.open

    def mounting(path: Any, *more: Any, **others: Any) -> int:
        if str(path) == "in" and not (inside / "theirs").exists():
            subprocess.run(["mount", *what, inside], check=True)
            (inside / "theirs").touch()
        return real(path, *more, **others)

    monkeypatch.setattr(os, "open", mounting)
    with pytest.raises(Unavailable, match=r"volumes/0/in: another file system is mounted there: unmount it"):
        VolumeFolders(mount).erase(0)
    assert (inside / "theirs").exists()


def test_nothing_is_done_where_the_disks_are_not_mounted(tmp_path: Path) -> None:
    """Below the path is another disk then."""
    folders = VolumeFolders(tmp_path)
    (tmp_path / "volumes/0").mkdir(parents=True)
    (tmp_path / "volumes/0/file").write_text("x")
    for act in (folders.found, lambda: folders.make(1), lambda: folders.erase(0)):
        with pytest.raises(Unavailable, match="nothing is mounted there"):
            act()
    assert [each.name for each in (tmp_path / "volumes").iterdir()] == ["0"]
    assert (tmp_path / "volumes/0/file").exists()


def test_a_disk_that_refuses_is_reported(mount: Path) -> None:
    (mount / "volumes").write_text("")
    folders = VolumeFolders(mount)
    for act in (folders.found, lambda: folders.make(0), lambda: folders.erase(0)):
        with pytest.raises(Unavailable, match=r"local volume .*volumes"):
            act()
