"""Current readers of a revision: processes with open files, memory maps or a working folder in it, and mounts."""

import contextlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

__all__ = ["revisions_in_use"]

_ESCAPED = re.compile(r"\\([0-7]{3})")
"""A space in a path of mountinfo is `\\040`."""


def revisions_in_use(versions: Path, proc: Path = Path("/proc")) -> dict[str, str]:
    """Return why each revision in use must stay: `in use by process 17`.

    Processes of other users are visible to root alone. A mount is recognized by its root on the file system, which ends
    with the same folders as `versions`; that of a packed revision by its device, where it is mounted elsewhere as well.
    """
    devices = _devices(versions)
    top = f"{versions.resolve()}/"
    tail = "/".join(("", *versions.resolve().parts[-2:], ""))
    found: dict[str, str] = {}
    for process in proc.iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        for path in _paths(process):
            device, _, target = path.removeprefix("device:").partition(" ")
            if (name := devices.get(device)) is not None and not target.endswith(f"{tail}{name}"):
                found.setdefault(name, f"in use by process {process.name}")
            before, mark, rest = path.partition(top)
            if not (mark and not before):
                before, mark, rest = path.partition(tail) if path.startswith("mount:") else ("", "", "")
            if mark:
                found.setdefault(rest.partition("/")[0].removesuffix(" (deleted)"), f"in use by process {process.name}")
    return found


def _paths(process: Path) -> Iterable[str]:
    """Yield what a process has open, mapped or mounted; nothing of one that has ended or is another user's."""
    for link in (process / "cwd", process / "root"):
        with contextlib.suppress(OSError):
            yield str(link.readlink())
    with contextlib.suppress(OSError):
        for entry in os.scandir(process / "fd"):
            with contextlib.suppress(OSError):
                yield str(Path(entry.path).readlink())
    with contextlib.suppress(OSError):
        for line in _lines(process / "maps"):
            if "/" in line:
                yield line[line.index("/") :]
    with contextlib.suppress(OSError):
        for line in _lines(process / "mountinfo"):
            words = [_ESCAPED.sub(lambda found: chr(int(found[1], 8)), each) for each in line.split(" ")[:5]]
            yield f"mount:{words[3]}/"
            yield f"device:{words[2]} {words[4]}"


def _lines(path: Path) -> Iterable[str]:
    """Return the lines of a kernel file; paths in it may contain other line separators."""
    return filter(None, path.read_bytes().decode(errors="replace").split("\n"))


def _devices(versions: Path) -> dict[str, str]:
    """Return the revisions that are mounted images, by their devices in mountinfo."""
    own, found = versions.stat().st_dev, {}
    for path in versions.iterdir():
        with contextlib.suppress(OSError):
            if (device := path.stat().st_dev) != own:
                found[f"{os.major(device)}:{os.minor(device)}"] = path.name
    return found
