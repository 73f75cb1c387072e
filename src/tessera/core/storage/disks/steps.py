"""The steps that prepare disks, one command each."""

from typing import Literal

import msgspec

from tessera.core.storage.disks.blockdevices import Creation

__all__ = [
    "AssembleArray",
    "CreateArray",
    "Filesystem",
    "ForgetCreation",
    "MakeFilesystem",
    "MountFilesystem",
    "RecordCreation",
    "Step",
    "StopArray",
    "WipeSignatures",
]

Filesystem = Literal["ext4", "xfs"]


class RecordCreation(msgspec.Struct, frozen=True, kw_only=True, tag_field="do", tag="record-creation"):
    """Record on the node the UUIDs that are written next."""

    creation: Creation


class ForgetCreation(msgspec.Struct, frozen=True, kw_only=True, tag_field="do", tag="forget-creation"):
    """Remove the record of a creation whose filesystem is in use."""


class StopArray(msgspec.Struct, frozen=True, kw_only=True, tag_field="do", tag="stop-array"):
    """Stop an array that is not active, or was never used."""

    device: str


class WipeSignatures(msgspec.Struct, frozen=True, kw_only=True, tag_field="do", tag="wipe-signatures"):
    """Remove what an interrupted creation left on devices."""

    devices: tuple[str, ...]


class CreateArray(msgspec.Struct, frozen=True, kw_only=True, tag_field="do", tag="create-array"):
    """Create a RAID 0 array."""

    name: str
    uuid: str
    devices: tuple[str, ...]


class AssembleArray(msgspec.Struct, frozen=True, kw_only=True, tag_field="do", tag="assemble-array"):
    """Start an array that exists on disks."""

    name: str
    uuid: str
    devices: tuple[str, ...]


class MakeFilesystem(msgspec.Struct, frozen=True, kw_only=True, tag_field="do", tag="make-filesystem"):
    """Make the filesystem, then remove the record of its creation."""

    device: str
    filesystem: Filesystem
    label: str
    uuid: str
    striped: bool
    """Whether the device is an array."""


class MountFilesystem(msgspec.Struct, frozen=True, kw_only=True, tag_field="do", tag="mount"):
    """Mount a filesystem at a folder, which is created if missing."""

    device: str
    path: str


Step = (
    RecordCreation
    | ForgetCreation
    | StopArray
    | WipeSignatures
    | CreateArray
    | AssembleArray
    | MakeFilesystem
    | MountFilesystem
)
