"""The device files of simulated GPUs on a node: where an agent looks for them, with no driver behind them.

And the CDI specification that NVIDIA's container toolkit would make there, with the driver's libraries left out.

Run on the node with the number of GPUs: `python gpus.py 2`.
"""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

__all__ = ["DRIVER_SPEC", "INSTANCES", "MIG_MINORS", "capability_minors", "make_device_files", "make_driver_spec"]

INSTANCES = 15
"""GPU instances of a GPU that the driver counts capabilities for, and compute instances of each. Source: mig-minors of
driver 470 and later, as `nvidia-modprobe -l` writes it."""
_COMPUTE_INSTANCES = 8
_MAJOR = 120
"""A major number that no driver has: opening the files fails, also on a machine with real GPUs.

Source: Linux, Documentation/admin-guide/devices.txt, 120-127 local or experimental use."""
_CONTROL, _MODESET, _UVM, _UVM_TOOLS, _FIRST_CAPABILITY = 255, 254, 256, 257, 1000
_PROC = Path("/proc/driver")
MIG_MINORS = _PROC / "nvidia-caps" / "mig-minors"
DRIVER_SPEC = Path("/run/cdi/nvidia.yaml")
"""Where the toolkit's service nvidia-cdi-refresh writes it."""


def capability_minors(gpus: int) -> dict[str, int]:
    """Return what `/proc/driver/nvidia-caps/mig-minors` lists: a number for each capability of every instance."""
    names = ["config", "monitor"]
    for gpu in range(gpus):
        for instance in range(INSTANCES):
            top = f"gpu{gpu}/gi{instance}"
            names += [f"{top}/access", *(f"{top}/ci{compute}/access" for compute in range(_COMPUTE_INSTANCES))]
    return {name: number for number, name in enumerate(names, 1)}


def make_device_files(gpus: int, dev: Path = Path("/dev"), proc: Path = _PROC) -> None:
    """Make the files of so many GPUs below `dev`, and the list of capabilities below `proc`."""
    for name, minor in (
        *((f"nvidia{gpu}", gpu) for gpu in range(gpus)),
        ("nvidiactl", _CONTROL),
        ("nvidia-modeset", _MODESET),
        ("nvidia-uvm", _UVM),
        ("nvidia-uvm-tools", _UVM_TOOLS),
    ):
        os.mknod(dev / name, stat.S_IFCHR | 0o666, os.makedev(_MAJOR, minor))
    minors = capability_minors(gpus)
    capabilities = dev / "nvidia-caps"
    capabilities.mkdir()
    for number in minors.values():
        device = os.makedev(_MAJOR, _FIRST_CAPABILITY + number)
        os.mknod(capabilities / f"nvidia-cap{number}", stat.S_IFCHR | 0o444, device)
    (proc / "nvidia-caps").mkdir()
    text = "".join(f"{name} {number}\n" for name, number in minors.items())
    (proc / "nvidia-caps" / MIG_MINORS.name).write_text(text)


def make_driver_spec(gpus: int, path: Path = DRIVER_SPEC) -> None:
    """Write the CDI specification of so many GPUs."""
    nodes = [[{"path": f"/dev/nvidia{gpu}"}] for gpu in range(gpus)]
    spec = {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [{"name": str(gpu), "containerEdits": {"deviceNodes": each}} for gpu, each in enumerate(nodes)],
        "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"], "deviceNodes": [{"path": "/dev/nvidiactl"}]},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(spec, indent=1))


if __name__ == "__main__":
    # /proc takes no files; the node's own, which no other process sees, may have something mounted on it.
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(_PROC)], check=True)
    os.umask(0)
    make_device_files(int(sys.argv[1]))
    make_driver_spec(int(sys.argv[1]))
