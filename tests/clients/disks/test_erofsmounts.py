"""What a node says of images that its kernel cannot mount, and mounts in memory. tests/guest has a kernel's mounts."""

import os
import platform
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tessera.clients.disks.erofsmounts import HostErofsMounts, MemoryErofsMounts
from tessera.core.storage.models.erofs import image_layout
from tessera.errors import Unavailable, Unsupported

KERNEL = platform.release()
root_alone = pytest.mark.skipif(os.geteuid() != 0, reason="for root, who alone mounts images")


def host(root: Path, *, filesystems: str = "", modules: str = "", loop: bool = False) -> HostErofsMounts:
    (root / "proc").mkdir()
    (root / "proc/filesystems").write_text(filesystems)
    (root / "lib/modules" / KERNEL).mkdir(parents=True)
    (root / "lib/modules" / KERNEL / "modules.dep").write_text(modules)
    (root / "dev").mkdir()
    if loop:
        (root / "dev/loop-control").touch()
    return HostErofsMounts(root)


@root_alone
@pytest.mark.parametrize(
    ("filesystems", "modules", "loop", "want"),
    [
        ("nodev tmpfs\n\text4\n", "", True, f"the kernel {KERNEL} has no EROFS"),
        ("\terofs\n", "", False, f"the kernel {KERNEL} has no loop devices"),
        ("\terofs\n", "", True, ""),
        ("", "kernel/fs/erofs/erofs.ko.zst:\nkernel/drivers/block/loop.ko.zst:\n", False, ""),
    ],
)
def test_what_a_kernel_lacks_is_named(tmp_path: Path, filesystems: str, modules: str, want: str, *, loop: bool) -> None:
    images = host(tmp_path, filesystems=filesystems, modules=modules, loop=loop)
    assert images.why_not() == want


@root_alone
def test_a_node_that_cannot_reports_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=f"image a.img: the kernel {KERNEL} has no EROFS: use a kernel"):
        host(tmp_path).mount(Path("/nowhere/a.img"), tmp_path / "folder")


def test_a_mount_in_memory_is_kept_while_somebody_reads_it() -> None:
    busy: set[Path] = set()
    images, folder = MemoryErofsMounts(is_busy=busy.__contains__), Path("/models/m")
    images.mount(Path("/a.img"), folder)
    images.mount(Path("/b.img"), folder)
    assert (images.mounts, images.is_mounted(folder)) == ({folder: Path("/a.img")}, True)
    busy.add(folder)
    assert not images.unmount(folder)
    busy.clear()
    assert images.unmount(folder)
    assert images.unmount(folder), "done twice it is done once"
    assert not images.is_mounted(folder)


def test_a_node_in_memory_may_refuse() -> None:
    with pytest.raises(Unsupported, match="no EROFS"):
        MemoryErofsMounts("no EROFS").mount(Path("/a.img"), Path("/f"))
    images = MemoryErofsMounts()
    images.refusal = "bad superblock"
    with pytest.raises(Unavailable, match="bad superblock: sync again"):
        images.mount(Path("/a.img"), Path("/f"))


@pytest.mark.skipif(bool(HostErofsMounts().why_not()), reason="root, EROFS and loop devices")
def test_threads_that_mount_an_image_at_once_mount_it_once(tmp_path: Path) -> None:
    """The agent's fetch mounts what it has published while its loop mounts what it finds, as after a reboot."""
    layout = image_layout([("a", 1)])
    image, folder, mounts = tmp_path / "image", tmp_path / "folder", HostErofsMounts()
    image.write_bytes(layout.head.ljust(layout.size, b"x"))
    folder.mkdir()
    for _ in range(5):
        begin = threading.Barrier(4)

        def mount(begin: threading.Barrier = begin) -> None:
            begin.wait()
            mounts.mount(image, folder)

        try:
            with ThreadPoolExecutor(4) as pool:
                results = [pool.submit(mount) for _ in range(4)]
            assert [each.exception() for each in results] == [None] * 4
            assert (folder / "a").read_bytes() == b"x"
            with Path("/proc/mounts").open() as lines:
                assert sum(f" {folder} " in line for line in lines) == 1
        finally:
            assert mounts.unmount(folder)
