"""Builders for what a node's driver shows."""

from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.inventory import GpuFacts, Instance, Inventory, MigMode
from tessera.core.gpu.mig import Placement, named_layouts, place

MIB = 1024


def gpu(index: int, name: str = "T4", layout: str | None = None, **more: object) -> GpuFacts:
    """Return a GPU; `layout` turns MIG on with the configuration mig-parted calls so."""
    known = model(name)
    uuid = f"GPU-{index}"
    placements = place(known, dict(named_layouts(known)[layout])) or () if layout else ()
    facts: dict[str, object] = {
        "index": index,
        "uuid": uuid,
        "minor": index,
        "product": name,
        "model": known,
        "memory_total_mib": known.memory_mib,
        "memory_mib": known.memory_mib,
        "mig": MigMode(current=layout is not None, pending=layout is not None) if known.profiles else None,
        "instances": tuple(instance(each, f"MIG-{index}-{number}", number) for number, each in enumerate(placements)),
    }
    return GpuFacts(**(facts | more))  # type: ignore[arg-type]  # fields by name


def instance(placement: Placement, uuid: str, gpu_instance: int) -> Instance:
    """Return a complete instance."""
    return Instance(placement=placement, uuid=uuid, gpu_instance=gpu_instance, compute_instance=0, memory_mib=MIB)


def node(*gpus: GpuFacts, cuda: tuple[int, int] = (13, 0), memory_limits: bool = False) -> Inventory:
    """Return a node with these GPUs."""
    return Inventory(gpus=gpus, driver="580.0", cuda=cuda, memory_limits=memory_limits)
