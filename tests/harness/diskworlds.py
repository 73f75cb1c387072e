"""Nodes with four blank disks for the disks' suite: in memory, and those of the machine this runs on."""

import contextlib
import hashlib
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from tessera.clients.disks import DiskPaths, HostDisks, MemoryDisks
from tessera.core.storage.disks.blockdevices import ArrayMember, BlockDevice, Signature

__all__ = ["HostWorld", "MemoryWorld", "attached"]

_DISK_BYTES = 1 << 40
_FINGERPRINT_BYTES = 2 << 20
_IMAGE_BYTES = 64 << 20


@contextlib.contextmanager
def attached(image: Path) -> Iterator[str]:
    """Give the path of a loop device on a new image; it goes when nobody uses it any more."""
    with image.open("wb") as file:
        file.truncate(_IMAGE_BYTES)
    done = subprocess.run(("losetup", "--find", "--show", str(image)), capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no loop device to be had: {done.stderr.strip()}")
    path = done.stdout.strip()
    try:
        yield path
    finally:
        subprocess.run(("losetup", "--detach", path), check=True)


class MemoryWorld:
    """Disks in memory."""

    names = ("nvme1n1", "nvme2n1", "nvme3n1", "nvme4n1")
    mount_point = "/mnt/disks"

    def __init__(self) -> None:
        self._blank = {name: BlockDevice(name=name, kind="disk", size_bytes=_DISK_BYTES) for name in self.names}
        self.disks = MemoryDisks(self._blank.values())

    def make_filesystem(self, name: str, label: str) -> None:
        self._put(name, signature=Signature(kind="ext4", uuid="0-1", label=label))

    def partition(self, name: str) -> None:
        self._put(name, signature=Signature(kind="dos partition table"))

    def make_array(self, names: tuple[str, ...], array: str) -> None:
        member = ArrayMember(array="1:2:3:4", name=array, level="raid1", devices=len(names))
        for name in names:
            self._put(name, signature=Signature(kind="linux_raid_member", uuid="1-2-3-4"), member=member)

    def mount(self, name: str, path: str) -> None:
        self.disks.mount(name, path)

    def use_raw(self, name: str) -> None:
        self._put(name, holders=("loop7",))

    def replace(self, name: str) -> None:
        self._put(name)

    def wipe(self, name: str) -> None:
        self.disks.wipe(name)

    def half_assemble(self, names: tuple[str, ...]) -> None:
        self.disks.half_assemble(names)

    def reboot(self) -> None:
        self.disks.reboot()

    def write(self, text: str) -> None:
        self.disks.write(self.mount_point, text)

    def read(self) -> str:
        return self.disks.read(self.mount_point)

    def content(self, name: str) -> object:
        return self.disks.content(name)

    def _put(self, name: str, **content: object) -> None:
        self.disks.put(msgspec.structs.replace(self._blank[name], **content))


class HostWorld:
    """Disks of this machine, which are erased; run it where nobody minds.

    Args:
        names: the kernel's names of the disks.
        folder: for Tessera's record, and for mounts.

    """

    def __init__(self, names: tuple[str, ...], folder: Path) -> None:
        self.names = names
        self.mount_point = str(folder / "mnt")
        self.disks = HostDisks(DiskPaths(state=folder / "state"))
        self._folder = folder
        self.reboot()
        for name in names:
            self.replace(name)
        if Path("/run/udev/control").exists():
            _run("udevadm", "settle")
            self._stop_arrays()  # which udev assembled while they were not yet erased

    def make_filesystem(self, name: str, label: str) -> None:
        _run("mkfs.ext4", "-q", "-F", "-L", label, f"/dev/{name}")

    def partition(self, name: str) -> None:
        # A table with one partition of Linux; the kernel is not told of it.
        entry = bytes((0, 0, 2, 0, 0x83, 0, 0, 0)) + (2048).to_bytes(4, "little") + (4096).to_bytes(4, "little")
        _write(name, 446, entry + bytes(48) + b"\x55\xaa")

    def make_array(self, names: tuple[str, ...], array: str) -> None:
        devices = [f"/dev/{name}" for name in names]
        options = ("--run", "--quiet", "--homehost=any", "--metadata=1.2", "--level=1", f"--raid-devices={len(names)}")
        _run("mdadm", "--create", "/dev/md/other", f"--name={array}", *options, *devices)
        # While it runs, RAID 1 copies one disk to the other; a content that changes could not be compared.
        self._stop_arrays()

    def mount(self, name: str, path: str) -> None:
        Path(path).mkdir()
        _run("mount", f"/dev/{name}", path)

    def use_raw(self, name: str) -> None:
        _run("losetup", "--find", f"/dev/{name}")

    def replace(self, name: str) -> None:
        size = int(Path(f"/sys/class/block/{name}/size").read_text()) * 512
        for offset in (0, size - _FINGERPRINT_BYTES):
            _write(name, offset, bytes(_FINGERPRINT_BYTES))

    def wipe(self, name: str) -> None:
        _run("wipefs", "--all", "--quiet", f"/dev/{name}")

    def half_assemble(self, names: tuple[str, ...]) -> None:
        for name in names:
            _run("mdadm", "--incremental", f"/dev/{name}", accept=(0, 1))
        assert "inactive" in Path("/proc/mdstat").read_text()

    def reboot(self) -> None:
        for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
            if (path := line.split()[1]).startswith(f"{self._folder}/"):
                _run("umount", path)
        for name in self.names:
            for loop in _said("losetup", "--noheadings", "--output", "NAME", "--associated", f"/dev/{name}").split():
                _run("losetup", "--detach", loop)
        self._stop_arrays()

    def write(self, text: str) -> None:
        folder = Path(self.mount_point)
        folder.mkdir(exist_ok=True)
        (folder / "file").write_text(text)

    def read(self) -> str:
        return (Path(self.mount_point) / "file").read_text()

    def content(self, name: str) -> object:
        digest = hashlib.sha256()
        with Path(f"/dev/{name}").open("rb") as file:
            digest.update(file.read(_FINGERPRINT_BYTES))
            file.seek(-_FINGERPRINT_BYTES, 2)
            digest.update(file.read(_FINGERPRINT_BYTES))
        return digest.hexdigest()

    def _stop_arrays(self) -> None:
        for array in sorted(Path("/sys/class/block").glob("md*")):
            if {each.name for each in (array / "slaves").iterdir()}.intersection(self.names):
                _run("mdadm", "--stop", f"/dev/{array.name}")


def _write(name: str, offset: int, content: bytes) -> None:
    with Path(f"/dev/{name}").open("r+b", buffering=0) as file:
        file.seek(offset)
        file.write(content)


def _run(*command: str, accept: Sequence[int] = (0,)) -> None:
    _said(*command, accept=accept)


def _said(*command: str, accept: Sequence[int] = (0,)) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in accept, (command, done.stderr)
    return done.stdout
