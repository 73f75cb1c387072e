"""The files beside the library that a driver shows: minor numbers of MIG capabilities, device nodes, PCI devices."""

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tessera.errors import InvalidInput

__all__ = ["mig_minors", "write_tree"]

_GPU_INSTANCES, _COMPUTE_INSTANCES = 15, 8
"""Ids of GPU instances (0 to 14), and of compute instances in one, for which a driver keeps numbers."""
_FIRST = 3
"""Numbers 1 and 2 are `config` and `monitor`."""
_CONTROLLER_3D = "0x030200\n"
"""The PCI class of GPUs without a display."""
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


def write_tree(folder: Path, gpus: Iterable[Mapping[str, Any]]) -> None:
    """Write what a driver shows beside the library, for GPUs as `Machine.describe` returns them.

    These are `proc/driver/nvidia-caps/mig-minors`, the nodes below `dev` that CDI specs name, and
    `sys/bus/pci/devices`. The nodes are copies of /dev/null where the user may make device nodes, else empty files.

    Raises:
        InvalidInput: the folder cannot be written.

    """
    gpus = tuple(gpus)
    minors = [gpu["minor"] for gpu in gpus]
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
        for gpu in gpus:
            _pci_device(folder / "sys" / "bus" / "pci" / "devices", gpu)
    except OSError as error:
        raise InvalidInput(
            str(folder), found=error.strerror or str(error), hint="name a folder that can be written to"
        ) from error


def _node(path: Path) -> None:
    if path.exists():
        return
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(*_NULL))
    except PermissionError:
        path.touch()


def _pci_device(devices: Path, gpu: Mapping[str, Any]) -> None:
    """Write a GPU as the kernel shows a PCI device; its folder has a domain of four digits and small letters."""
    folder = devices / gpu["bus"][4:].lower()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vendor").write_text(f"0x{gpu['pci_device_id'] & 0xFFFF:04x}\n")
    (folder / "device").write_text(f"0x{gpu['pci_device_id'] >> 16:04x}\n")
    (folder / "subsystem_vendor").write_text(f"0x{gpu['pci_subsystem_id'] & 0xFFFF:04x}\n")
    (folder / "subsystem_device").write_text(f"0x{gpu['pci_subsystem_id'] >> 16:04x}\n")
    (folder / "class").write_text(_CONTROLLER_3D)
    (folder / "numa_node").write_text("0\n")
    (folder / "resource").write_text("0x0000000000000000 0x0000000000000000 0x0000000000000000\n")
    (folder / "config").write_bytes(bytes(256))
