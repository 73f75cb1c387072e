"""The output of blkid and mdadm about a device, and the kernel's list of mounts.

Labels and names come from the disks, so they are untrusted; nothing in them is taken for another field.
"""

import re
from collections.abc import Mapping

import msgspec

from tessera.core.storage.disks.blockdevices import ArrayMember, Signature
from tessera.errors import InvalidInput, shown

__all__ = ["MountEntry", "read_member", "read_mounts", "read_signature"]

_RAID = "linux_raid_member"
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_OCTAL = re.compile(r"\\([0-3][0-7]{2})")
_HEX_DIGITS = 32
_SHORTEST = 10
"""Fields of a line of mountinfo, at least. Source: proc_pid_mountinfo(5)."""


class MountEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `/proc/PID/mountinfo`."""

    number: str
    """Of the device: `259:0`."""
    root: str
    """Which folder of the filesystem is mounted."""
    path: str
    filesystem: str
    source: str
    read_only: bool
    """Whether the mount is, or the whole filesystem."""


def read_signature(source: str, text: bytes) -> Signature:
    """Return the signature printed by `blkid -p -o export DEVICE`.

    Raises:
        InvalidInput: it is not what blkid prints.

    """
    values = {key: _ESCAPED.sub(r"\1", value) for key, value in _pairs(source, text).items()}
    table = values.get("PTTYPE")
    kind = values.get("TYPE") or (f"{table} partition table" if table else "unknown")
    return Signature(kind=kind, uuid=values.get("UUID", ""), label=values.get("LABEL", ""))


def read_member(source: str, text: bytes, signature: Signature) -> ArrayMember:
    """Return the superblock printed by `mdadm --examine --export DEVICE` for a member of an array.

    Args:
        source: the device, for errors.
        text: what mdadm printed.
        signature: what blkid found on the same device, which has to agree.

    Raises:
        InvalidInput: it is not what mdadm prints, or the two do not agree.

    """
    values = _pairs(source, text)
    uuid = values.get("MD_UUID", "")
    digits = uuid.replace(":", "").lower()
    if len(digits) != _HEX_DIGITS or signature.kind != _RAID or signature.uuid.replace("-", "").lower() != digits:
        raise InvalidInput(source, found=f"array {shown(uuid)}", expected=f"the array {shown(signature.uuid)} of blkid")
    devices = values.get("MD_DEVICES", "")
    if not re.fullmatch(r"[0-9]{1,4}", devices):
        raise InvalidInput(source, found=shown(devices), expected="a number of devices")
    return ArrayMember(
        array=uuid,
        name=values.get("MD_NAME", "").rpartition(":")[2],
        level=values.get("MD_LEVEL", ""),
        devices=int(devices),
    )


def read_mounts(source: str, text: bytes) -> tuple[MountEntry, ...]:
    """Return the mounts in `/proc/PID/mountinfo`, in its order: of several at one path the last is visible.

    Raises:
        InvalidInput: it is not such a file.

    """
    return tuple(_mount(source, line) for line in text.decode("utf-8", "surrogateescape").split("\n") if line)


def _mount(source: str, line: str) -> MountEntry:
    fields = line.split(" ")
    end = fields.index("-", 6) if "-" in fields[6:] else len(fields)
    if len(fields) < _SHORTEST or len(fields) < end + 4:
        raise InvalidInput(source, found=shown(line), expected="a line of mountinfo")
    options = {*fields[5].split(","), *fields[end + 3].split(",")}
    root, path, device = (
        _OCTAL.sub(lambda found: chr(int(found[1], 8)), each) for each in (*fields[3:5], fields[end + 2])
    )
    return MountEntry(
        number=fields[2],
        root=root,
        path=path,
        filesystem=fields[end + 1],
        source=device,
        read_only="ro" in options,
    )


def _pairs(source: str, text: bytes) -> Mapping[str, str]:
    """Return lines `KEY=value`; a key that comes twice is refused, because a name on a disk may hold a line's end."""
    pairs: dict[str, str] = {}
    for line in text.decode("utf-8", "replace").split("\n"):
        key, equals, value = line.partition("=")
        if not equals and not line.strip():
            continue
        if not equals or key in pairs:
            raise InvalidInput(source, found=f"{shown(line)} has not each KEY=value once")
        pairs[key] = value
    return pairs
