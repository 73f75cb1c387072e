"""Builders for what a node's driver shows."""

from typing import Any

from builders.gpufacts import gpu_facts
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.inventory import GpuFacts, Inventory
from tessera.core.gpu.mig import named_layouts, place


def gpu(index: int, name: str = "T4", layout: str | None = None, **more: Any) -> GpuFacts:
    """Return a GPU; `layout` turns MIG on with the configuration mig-parted calls so."""
    known = model(name)
    placements = place(known, dict(named_layouts(known)[layout])) or () if layout else None
    return gpu_facts(name, index=index, layout=placements, **({"product": name} | more))


def node_of(*gpus: GpuFacts, cuda: tuple[int, int] = (13, 0), memory_limits: bool = False) -> Inventory:
    """Return a node with these GPUs."""
    return Inventory(gpus=gpus, driver="580.0", cuda=cuda, memory_limits=memory_limits)
