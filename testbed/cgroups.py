"""The control groups of a testbed: one folder in each hierarchy, under which its kubelets make theirs."""

import contextlib
from pathlib import Path

__all__ = ["make_cgroup", "processes_in", "remove_cgroup"]

_ROOT = Path("/sys/fs/cgroup")


def make_cgroup(name: str, root: Path = _ROOT) -> None:
    """Make the folder `name`, which may lead through others, in every hierarchy; what is there is kept."""
    unified = (root / "cgroup.controllers").exists()
    for hierarchy in (root,) if unified else _hierarchies(root):
        parent = hierarchy
        for part in Path(name).parts:
            if unified:
                _delegate(parent)
            parent /= part
            parent.mkdir(exist_ok=True)
            _fill_cpuset(parent)


def processes_in(name: str, root: Path = _ROOT) -> frozenset[int]:
    """Return the processes in the folder `name` of any hierarchy, and below."""
    lists = (path for hierarchy in (root, *_hierarchies(root)) for path in (hierarchy / name).rglob("cgroup.procs"))
    return frozenset(int(pid) for path in lists for pid in _lines(path))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:  # the group went while it was read
        return []


def remove_cgroup(name: str, root: Path = _ROOT) -> tuple[Path, ...]:
    """Remove the folder `name` and what lies below from every hierarchy; return those that would not go."""
    for hierarchy in (root, *_hierarchies(root)):
        top = hierarchy / name
        below = sorted((path for path in top.rglob("*") if path.is_dir()), key=lambda path: -len(path.parts))
        for path in (*below, top):
            with contextlib.suppress(OSError):
                path.rmdir()
    return tuple(top for hierarchy in (root, *_hierarchies(root)) if (top := hierarchy / name).exists())


def _hierarchies(root: Path) -> tuple[Path, ...]:
    # Links such as cpu -> cpu,cpuacct would name a hierarchy twice.
    return tuple(path for path in sorted(root.iterdir()) if path.is_dir() and not path.is_symlink())


def _delegate(parent: Path) -> None:
    """Let the folders below have every controller, which version 2 does not by itself."""
    for controller in (parent / "cgroup.controllers").read_text().split():
        with contextlib.suppress(OSError):
            (parent / "cgroup.subtree_control").write_text(f"+{controller}")


def _fill_cpuset(folder: Path) -> None:
    """Give a folder of version 1's cpuset its parent's processors, without which no process may enter it."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        own = folder / name
        if own.exists() and not own.read_text().strip():
            with contextlib.suppress(OSError):
                own.write_text((folder.parent / name).read_text())
