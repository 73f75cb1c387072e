"""Who reads a revision, from folders that look like /proc, and from the real one."""

import mmap
import os
import subprocess
from pathlib import Path

import pytest

from tessera.agent.storage.models.inuse import revisions_in_use

ONE, TWO = "1" * 64, "2" * 64


@pytest.fixture
def versions(tmp_path: Path) -> Path:
    for name in (ONE, TWO):
        (tmp_path / "model/versions" / name / "sub").mkdir(parents=True)
        (tmp_path / "model/versions" / name / "sub/file").write_bytes(bytes(4096))
    return tmp_path / "model/versions"


def process(
    proc: Path, number: int, *, cwd: str = "/", fds: tuple[str, ...] = (), maps: str = "", mounts: str = ""
) -> None:
    folder = proc / str(number)
    (folder / "fd").mkdir(parents=True)
    (folder / "cwd").symlink_to(cwd)
    (folder / "root").symlink_to("/")
    for index, target in enumerate(fds):
        (folder / "fd" / str(index)).symlink_to(target)
    (folder / "maps").write_text(maps)
    (folder / "mountinfo").write_text(mounts)


def test_each_way_to_read_is_observed(versions: Path, tmp_path: Path) -> None:
    for number, how in enumerate(
        (
            {"cwd": f"{versions}/{ONE}"},
            {"fds": ("/dev/null", f"{versions}/{ONE}/sub/file")},
            {"fds": (f"{versions}/{ONE}/sub/file (deleted)",)},
            {"maps": f"7f00-7f10 r--p 00000000 fe:00 12   {versions}/{ONE}/sub/file\n7f20-7f30 rw-p 0 00:00 0\n"},
            {"mounts": f"36 35 98:0 {versions}/{ONE} /models ro,noatime master:1 - ext4 /dev/vda rw\n"},
        ),
        start=100,
    ):
        proc = tmp_path / f"proc{number}"
        process(proc, number, **how)  # type: ignore[arg-type]
        (proc / "meminfo").write_text("")
        assert revisions_in_use(versions, proc) == {ONE: f"in use by process {number}"}


def test_a_mount_is_observed_by_its_root_on_another_file_system(versions: Path, tmp_path: Path) -> None:
    """A disk that is mounted elsewhere: the root of a bind mount is given from the top of the disk."""
    process(tmp_path / "proc", 7, mounts=f"36 35 98:0 /model/versions/{TWO} /m ro - ext4 /dev/nvme0n1 rw\n")
    assert revisions_in_use(versions, tmp_path / "proc") == {TWO: "in use by process 7"}
    spaced = versions.parent.rename(versions.parents[1] / "a model") / "versions"
    process(tmp_path / "other", 7, mounts=rf"36 35 98:0 /a\040model/versions/{TWO} /m ro - ext4 /dev/nvme0n1 rw")
    assert revisions_in_use(spaced, tmp_path / "other") == {TWO: "in use by process 7"}


def test_odd_names_of_mounted_folders_are_in_nobodys_way(versions: Path, tmp_path: Path) -> None:
    """A pod may name a folder so in its `subPath` or `mountPath`."""
    odd = "36 35 98:0 /a\u2028b /c\u0085d\x0ce rw - ext4 /dev/vda rw\n"
    process(tmp_path / "proc", 7, mounts=f"{odd}37 35 98:0 {versions}/{ONE} /models ro - ext4 /dev/vda rw\n")
    assert revisions_in_use(versions, tmp_path / "proc") == {ONE: "in use by process 7"}


def test_what_lies_elsewhere_is_nobodys(versions: Path, tmp_path: Path) -> None:
    process(
        tmp_path / "proc",
        7,
        cwd=str(versions),
        fds=(f"{versions}-other/{ONE}/file", f"/elsewhere{versions}/{ONE}/file"),
        maps="7f00-7f10 r--p 00000000 fe:00 12 /usr/lib/libc.so\n",
        mounts="22 1 98:0 / / rw - ext4 /dev/vda rw\n",
    )
    process(tmp_path / "proc", os.getpid(), cwd=f"{versions}/{ONE}")
    assert revisions_in_use(versions, tmp_path / "proc") == {}


def test_a_process_that_ends_meanwhile_is_passed_over(versions: Path, tmp_path: Path) -> None:
    (tmp_path / "proc/8").mkdir(parents=True)
    assert revisions_in_use(versions, tmp_path / "proc") == {}


def test_readers_of_this_machine_are_observed(versions: Path) -> None:
    file = versions / TWO / "sub/file"
    with subprocess.Popen(
        ["/bin/sh", "-c", f"exec 3< '{file}'; echo; exec sleep 60"], stdout=subprocess.PIPE
    ) as reader:
        assert reader.stdout is not None
        reader.stdout.readline()
        assert revisions_in_use(versions) == {TWO: f"in use by process {reader.pid}"}
        reader.kill()
    with file.open("rb") as own, mmap.mmap(own.fileno(), 0, prot=mmap.PROT_READ):
        assert revisions_in_use(versions) == {}
