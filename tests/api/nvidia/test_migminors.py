"""Capability device nodes of MIG instances, by the driver's list of minors."""

import pytest

from builders.gpunodes import facts, sevenths
from tessera.api.nvidia import migminors
from tessera.core.gpu.inventory import Inventory
from tessera.errors import InvalidInput

MINORS = "config 1\nmonitor 2\ngpu0/gi1/access 30\ngpu0/gi1/ci0/access 31\n\ngpu0/gi2/access 39\n"


def test_device_nodes_of_instances() -> None:
    gpu = facts(0, layout=sevenths()[:3])
    minors = migminors.read("mig-minors", MINORS)
    assert migminors.capabilities(Inventory(gpus=(gpu,)), minors) == {
        (gpu.uuid, 0): ("/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap31"),
        (gpu.uuid, 1): ("/dev/nvidia-caps/nvidia-cap39",),
        (gpu.uuid, 2): (),
    }


@pytest.mark.parametrize("line", ["gpu0/gi1/access", "gpu0/../access 3", "gpu0/gi1/ci0/ci0/access 3", "x", "config x"])
def test_lines_that_are_no_minors(line: str) -> None:
    with pytest.raises(InvalidInput, match="mig-minors, line 2"):
        migminors.read("mig-minors", f"config 1\n{line}\n")
