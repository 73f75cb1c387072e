"""Block devices as sysfs lists them, with where they are mounted and whether they are swap; no device is opened."""

import contextlib
import os
import stat
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from tessera.api.linux.blockdevices import MountEntry, read_mounts
from tessera.core.storage.disks.blockdevices import BlockDevice, Mount
from tessera.errors import Unsupported

__all__ = ["DiskPaths", "block_devices", "mounted"]

_SECTOR_BYTES = 512
"""Of sysfs, whatever the device's own are."""
_NOT_DISKS = ("ram", "zram", "sr", "fd")


class DiskPaths(msgspec.Struct, frozen=True, kw_only=True):
    """Paths of the host's files."""

    sys: Path = Path("/sys")
    proc: Path = Path("/proc")
    dev: Path = Path("/dev")
    state: Path = Path("/var/lib/tessera/disks")
    """Tessera's own: the record of a creation, and the lock."""


def mounted(paths: DiskPaths) -> tuple[MountEntry, ...]:
    """Return the mounts of this process."""
    source = paths.proc / "self" / "mountinfo"
    return read_mounts(str(source), source.read_bytes())


def block_devices(paths: DiskPaths, mounts: Iterable[MountEntry]) -> tuple[BlockDevice, ...]:
    """Return all block devices, none of them probed.

    Raises:
        Unsupported: there is no sysfs.

    """
    top = paths.sys / "class" / "block"
    if not top.is_dir():
        raise Unsupported(str(top), found="there is no such folder", hint="mount sysfs of a Linux kernel")
    places: defaultdict[str, list[Mount]] = defaultdict(list)
    for each in mounts:
        place = Mount(path=each.path, read_only=each.read_only)
        # Some filesystems, as btrfs, have a device number of their own; their source is still one of their devices.
        for key in {each.number, str(Path(each.source).resolve()) if each.source.startswith("/") else ""}:
            places[key].append(place)
    links = _links(paths.dev / "disk" / "by-id")
    swaps = _swaps(paths.proc / "swaps")
    loops = _loops(top)
    found = (_device(folder, places, links, swaps) for folder in sorted(top.iterdir()))
    return tuple(_with_loop_devices(each, loops) for each in found if each is not None)


def _with_loop_devices(device: tuple[str, BlockDevice], loops: Mapping[str, list[str]]) -> BlockDevice:
    """Return a device with the loop devices on it among its holders: the kubelet's raw block volumes."""
    number, known = device
    return msgspec.structs.replace(known, holders=(*known.holders, *loops[number])) if number in loops else known


def _loops(top: Path) -> Mapping[str, list[str]]:
    """Return the loop devices by the number of their backing device; sysfs does not list them as holders."""
    loops: defaultdict[str, list[str]] = defaultdict(list)
    for file in top.glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            shown = Path(_read(file)).stat()
            if stat.S_ISBLK(shown.st_mode):
                loops[f"{os.major(shown.st_rdev)}:{os.minor(shown.st_rdev)}"].append(file.parent.parent.name)
    return loops


def _device(
    folder: Path, places: Mapping[str, list[Mount]], links: Mapping[str, list[str]], swaps: frozenset[str]
) -> tuple[str, BlockDevice] | None:
    """Return a device with its number; None if it is hidden, as a path of a multipath NVMe, or has gone."""
    name = folder.name.replace("!", "/")
    number = _read(folder / "dev")
    if not number or _read(folder / "hidden") == "1":
        return None
    path = f"/dev/{name}"
    slaves = _names(folder / "slaves")
    kind: Literal["disk", "partition", "array", "other"] = "disk"
    if (folder / "partition").exists():
        kind = "partition"
    elif (folder / "md").is_dir():
        kind = "array"
    elif slaves or name.startswith(("dm-", *_NOT_DISKS)):
        kind = "other"
    sectors = _read(folder / "size")
    return number, BlockDevice(
        name=name,
        kind=kind,
        size_bytes=int(sectors) * _SECTOR_BYTES if sectors.isdecimal() else 0,
        model=_read(folder / "device" / "model"),
        serial=_read(folder / "device" / "serial"),
        links=tuple(sorted(links.get(name, ()))),
        read_only=_read(folder / "ro") == "1",
        swap=path in swaps,
        partitions=tuple(sorted(each.parent.name for each in folder.glob("*/partition"))),
        holders=_names(folder / "holders"),
        slaves=slaves,
        array_state=_read(folder / "md" / "array_state"),
        mounts=tuple(dict.fromkeys((*places.get(number, ()), *places.get(path, ())))),
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _names(folder: Path) -> tuple[str, ...]:
    try:
        return tuple(sorted(each.name for each in folder.iterdir()))
    except OSError:
        return ()


def _links(folder: Path) -> Mapping[str, list[str]]:
    links: defaultdict[str, list[str]] = defaultdict(list)
    with contextlib.suppress(OSError):
        for each in folder.iterdir():
            links[each.resolve().name].append(each.name)
    return links


def _swaps(path: Path) -> frozenset[str]:
    return frozenset(line.split()[0] for line in _read(path).splitlines()[1:] if line.strip())
