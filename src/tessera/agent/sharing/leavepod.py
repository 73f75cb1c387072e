"""Processes started by an agent in a pod that must outlive the pod.

When a container ends, its runtime kills the processes in its control groups, and the kubelet those of the pod. A
process that should stay is moved beside `kubepods`, in each hierarchy (docs/decisions/0017).
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["leave_pod"]

_POD = re.compile(r"(?P<parent>.*?)/(?:\w+-)*kubepods(?:\.slice)?/")
"""A pod's control group, whatever the kubelet's root and cgroup driver.

`/kubepods/...`, `/kubelet.slice/kubelet-kubepods.slice/...`. Source: the kubelet's pkg/kubelet/cm."""
_VERSION_2 = frozenset({"cgroup2"})
_OWN = "tessera-mps"
_PROC = Path("/proc")


def leave_pod(pid: int, proc: Path = _PROC) -> str:
    """Move a process out of the control groups of the pod it was started in.

    Args:
        pid: the process; not moved if it is in no pod.
        proc: the process table, of the host where the pod has `hostPID`.

    Returns:
        Why it could not be moved, so that it ends with its pod; empty on success.

    """
    try:
        groups = dict(_groups(os.fsdecode((proc / str(pid) / "cgroup").read_bytes())))
        mounts = dict(_mounts(os.fsdecode((proc / "1" / "mountinfo").read_bytes())))
        for controllers, path in groups.items():
            pod = _POD.match(path)
            if pod is None:
                continue
            mount = next((where for names, where in mounts.items() if controllers <= names), None)
            if mount is None:
                return f"the host's control groups ({', '.join(sorted(controllers))}) are not mounted"
            _enter(proc / "1" / "root" / mount.lstrip("/") / pod["parent"].lstrip("/") / _OWN, pid)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return ""


def _groups(text: str) -> Iterator[tuple[frozenset[str], str]]:
    """Yield controllers and path for each line `4:memory:/kubepods/...`; version 2 names none. Source: cgroups(7)."""
    for line in filter(None, text.split("\n")):
        _, names, path = line.split(":", 2)
        yield frozenset(filter(None, names.split(","))) or _VERSION_2, path


def _mounts(text: str) -> Iterator[tuple[frozenset[str], str]]:
    """Yield the controllers and the folder of each hierarchy that is mounted. Source: proc_pid_mountinfo(5)."""
    for line in filter(None, text.split("\n")):  # paths may contain other line separators
        own, _, kind = line.partition(" - ")
        form, _, options = kind.split(" ", 2)
        if form in {"cgroup", "cgroup2"}:
            yield frozenset(options.split(",")) if form == "cgroup" else _VERSION_2, own.split(" ")[4]


def _enter(folder: Path, pid: int) -> None:
    folder.mkdir(exist_ok=True)
    # Version 1's cpuset: no process may enter a folder that has no processors yet.
    for name in ("cpuset.cpus", "cpuset.mems"):
        own = folder / name
        if own.exists() and not own.read_text().strip():
            own.write_text((folder.parent / name).read_text())
    (folder / "cgroup.procs").write_text(str(pid))
