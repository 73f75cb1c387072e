"""The files beside the library that a driver shows: minor numbers of MIG capabilities, and device nodes."""

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from tessera.errors import InvalidInput

__all__ = ["mig_minors", "write_tree"]

_GPU_INSTANCES, _COMPUTE_INSTANCES = 15, 8
"""Ids of GPU instances (0 to 14), and of compute instances in one, for which a driver keeps numbers."""
_FIRST = 3
"""Numbers 1 and 2 are `config` and `monitor`."""
_NULL = (1, 3)
"""Major and minor number of /dev/null, which stands in for the nodes of GPUs."""


def mig_minors(minors: Sequence[int]) -> str:
    """Return the text of /proc/driver/nvidia-caps/mig-minors for GPUs of these minor numbers.

    It names every capability that could be, whether the instance is there or not, so it never changes. The form is the
    driver's, keyed by the GPU's minor number; the numbers are consecutive, as far as is known.
    Source: nvidia-container-toolkit, which maps a line `gpu0/gi1/ci0/access 13` to /dev/nvidia-caps/nvidia-cap13.
    """
    lines = ["config 1", "monitor 2"]
    lines += [f"{name} {number}" for number, name in enumerate(_capabilities(minors), _FIRST)]
    return "\n".join(lines) + "\n"


def _capabilities(minors: Sequence[int]) -> Iterator[str]:
    for minor in range(max(minors, default=-1) + 1):
        for instance in range(_GPU_INSTANCES):
            yield f"gpu{minor}/gi{instance}/access"
            for compute in range(_COMPUTE_INSTANCES):
                yield f"gpu{minor}/gi{instance}/ci{compute}/access"


def write_tree(folder: Path, minors: Sequence[int]) -> None:
    """Write `proc/driver/nvidia-caps/mig-minors` and the nodes below `dev` that CDI specs name, for these GPUs.

    The nodes are copies of /dev/null where the user may make device nodes, else empty files.

    Raises:
        InvalidInput: the folder cannot be written.

    """
    text = mig_minors(minors)
    names = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", *(f"nvidia{minor}" for minor in minors)]
    names += [f"nvidia-caps/nvidia-cap{line.split()[1]}" for line in text.splitlines()]
    try:
        proc = folder / "proc" / "driver" / "nvidia-caps"
        proc.mkdir(parents=True, exist_ok=True)
        (proc / "mig-minors").write_text(text)
        (folder / "dev" / "nvidia-caps").mkdir(parents=True, exist_ok=True)
        for name in names:
            _node(folder / "dev" / name)
    except OSError as error:
        raise InvalidInput(
            str(folder), found=error.strerror or str(error), wanted="a folder that can be written to"
        ) from error


def _node(path: Path) -> None:
    if path.exists():
        return
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(*_NULL))
    except PermissionError:
        path.touch()
