"""Numbers of the device nodes that give access to MIG instances.

Source: NVIDIA MIG User Guide, "Device Nodes and Capabilities": `/proc/driver/nvidia-caps/mig-minors`, with lines as
`gpu0/gi1/access 30` and `gpu0/gi1/ci0/access 31`, where the GPU's number is that of its device node.
"""

import re
from collections.abc import Mapping

from tessera.core.gpu.inventory import Inventory
from tessera.errors import InvalidInput, shown

__all__ = ["capabilities", "read"]

_LINE = re.compile(r"gpu(\d{1,3})/gi(\d{1,3})(?:/ci(\d{1,3}))?/access (\d{1,6})", re.ASCII)
_OTHERS = re.compile(r"(?:config|monitor) \d+", re.ASCII)

Minors = Mapping[tuple[int, int, int | None], int]
"""Minor number by GPU's minor number, GPU instance and compute instance; None for the GPU instance itself."""


def read(source: str, text: str) -> Minors:
    """Return the numbers in a file of minors.

    Raises:
        InvalidInput: a line of another form.

    """
    minors: dict[tuple[int, int, int | None], int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        match = _LINE.fullmatch(line.strip())
        if match is not None:
            gpu, instance, compute, minor = match.groups()
            minors[int(gpu), int(instance), None if compute is None else int(compute)] = int(minor)
        elif line.strip() and not _OTHERS.fullmatch(line.strip()):
            subject = f"{source}, line {number}"
            raise InvalidInput(subject, found=shown(line), expected="an access right such as gpu0/gi1/ci0/access 31")
    return minors


def capabilities(inventory: Inventory, minors: Minors) -> dict[tuple[str, int], tuple[str, ...]]:
    """Return the capability device nodes of each MIG instance by its GPU's UUID and its start."""
    return {
        (gpu.uuid, instance.placement.start): tuple(
            f"/dev/nvidia-caps/nvidia-cap{minors[gpu.minor, instance.gpu_instance, part]}"
            for part in (None, instance.compute_instance)
            if (gpu.minor, instance.gpu_instance, part) in minors
        )
        for gpu in inventory.gpus
        for instance in gpu.instances
    }
