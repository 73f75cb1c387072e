"""A node with an MPS GPU, one with MIG, one that is managed and one shared by memory."""

from builders.nodefacts import gpu, node_of
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import AUTO, Mode, Sharing
from tessera.core.node.nodesharing import GpuSettings, NodeSharing, SharingEntry, effective

__all__ = ["CUT", "FIRST", "GPUS", "NODE", "SECOND"]

CUT = gpu(1, "A100-40GB", "all-3g.20gb")
NODE = node_of(gpu(0), CUT, gpu(2, "A100-40GB"), gpu(3), memory_limits=True)
FIRST, SECOND = Placement(0, 4, "3g.20gb"), Placement(4, 4, "3g.20gb")
SAID = NodeSharing(
    entries=(
        SharingEntry(resource="nvidia.com/gpu", mode=Mode.MPS, replicas=4, devices=("0",)),
        SharingEntry(resource="nvidia.com/mig-3g.20gb", mode=Mode.MPS, replicas=2, devices=("1:1",)),
    ),
    policies=(
        GpuSettings(uuid="GPU-2", sharing=AUTO),
        GpuSettings(uuid="GPU-3", sharing=Sharing(modes=(Mode.MEMORY_SHARE,))),
    ),
)
GPUS = effective(NODE, SAID)
