"""A node's observed block devices, and which of them are selected."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Literal

import msgspec

__all__ = [
    "CLOUD_DISKS",
    "ArrayMember",
    "BlockDevice",
    "Creation",
    "Mount",
    "MountTarget",
    "ObservedDisks",
    "Signature",
    "selected",
]

CLOUD_DISKS = (
    "google-local-nvme-ssd-*",
    "google-local-ssd-*",
    "nvme-Amazon_EC2_NVMe_Instance_Storage_*",
    "nvme-Microsoft_NVMe_Direct_Disk*",
)
"""Names in `/dev/disk/by-id` of disks that are local to the host: Google's NVMe and SCSI, Amazon's, Microsoft's.

Source: guest-configs of Google Cloud (65-gce-disk-naming.rules); amazon-eks-ami (setup-local-disks); azure-vm-utils
(80-azure-disk.rules) for the model, which udev's own rules put in the name.
"""
_BY_ID = "/dev/disk/by-id/"


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """What low-level probing found on a device."""

    kind: str
    """blkid's name: `ext4`, `linux_raid_member`, `LVM2_member`; `gpt partition table`; `several` at once."""
    uuid: str = ""
    label: str = ""


class ArrayMember(msgspec.Struct, frozen=True, kw_only=True):
    """A device's RAID superblock."""

    array: str
    """UUID of the array as mdadm writes it: four groups of eight digits with colons."""
    name: str
    """Without the home host."""
    level: str
    devices: int
    """Of the array, when it is complete."""


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """A mount of a device."""

    path: str
    read_only: bool = False


class BlockDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A block device: the kernel's facts and, if it was probed, its content."""

    name: str
    """The kernel's name: `nvme0n1`, `md127`."""
    kind: Literal["disk", "partition", "array", "other"]
    size_bytes: int
    model: str = ""
    serial: str = ""
    links: tuple[str, ...] = ()
    """Names in `/dev/disk/by-id`."""
    read_only: bool = False
    swap: bool = False
    partitions: tuple[str, ...] = ()
    holders: tuple[str, ...] = ()
    """Devices that are built on it."""
    slaves: tuple[str, ...] = ()
    """Devices that it is built on."""
    array_state: str = ""
    """State of an array, as md calls it: `clean`, `inactive`, `broken`, `clear`."""
    mounts: tuple[Mount, ...] = ()
    probed: bool = False
    """Whether its content was probed; if not, a missing signature means nothing."""
    problem: str = ""
    """Why it could not be read."""
    signature: Signature | None = None
    member: ArrayMember | None = None

    @property
    def path(self) -> str:
        """Its path below `/dev`."""
        return f"/dev/{self.name}"


class MountTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The mount path of the disks, as observed."""

    source: str = ""
    """What is mounted there: the kernel's name of a block device, or of anything else; empty for nothing."""
    empty: bool = True
    """Whether no file is there, or no such folder."""
    read_only: bool = False
    size_bytes: int = 0
    free_bytes: int = 0


class Creation(msgspec.Struct, frozen=True, kw_only=True):
    """The UUIDs that a new array and filesystem get.

    They are recorded on the node before the first of them is written, and the record is removed when the filesystem is
    complete. Devices with these UUIDs were never used while the record exists, so they may be created again.
    """

    array: str
    filesystem: str
    disks: tuple[str, ...] = ()
    """Names of their disks: other disks get other UUIDs, as these may still have them."""


class ObservedDisks(msgspec.Struct, frozen=True, kw_only=True):
    """A node's disks at one moment. Selected disks, and arrays on them, were probed."""

    devices: tuple[BlockDevice, ...]
    target: MountTarget = MountTarget()
    unfinished: Creation | None = None
    """A creation that was started and not completed."""


def selected(devices: Iterable[BlockDevice], patterns: Iterable[str]) -> tuple[BlockDevice, ...]:
    """Return the whole disks that match a pattern, ordered by name, numbers by value.

    A pattern is a path, or a name in `/dev/disk/by-id`; `*`, `?` and `[...]` match as in a shell.
    """
    full = [each if each.startswith("/") else f"{_BY_ID}{each}" for each in patterns]

    def named(device: BlockDevice) -> bool:
        paths = (device.path, *(f"{_BY_ID}{link}" for link in device.links))
        return any(fnmatchcase(path, pattern) for path in paths for pattern in full)

    found = (each for each in devices if each.kind == "disk" and named(each))
    return tuple(sorted(found, key=lambda device: (len(device.name), device.name)))  # nvme10n1 behind nvme9n1
