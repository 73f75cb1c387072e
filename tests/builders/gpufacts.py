"""GPUs and nodes as a driver would show them, built from a model and a layout."""

from collections.abc import Iterable
from typing import Any

from tessera.core.gpu.gpumodels import GpuModel, model
from tessera.core.gpu.inventory import GpuFacts, Instance, MigMode
from tessera.core.gpu.mig import Layout, Placement


def at(gpu: GpuModel | str, *parts: tuple[str, int]) -> Layout:
    """Return the layout of a GPU model that has these profiles at these starts."""
    known = model(gpu) if isinstance(gpu, str) else gpu
    sizes = {each.name: each.size for each in known.profiles}
    return tuple(sorted(Placement(start, sizes[name], name) for name, start in parts))


def gpu_facts(
    name: str = "A100-40GB", *, index: int = 0, layout: Layout | None = None, pending: bool | None = None, **more: Any
) -> GpuFacts:
    """Return a GPU with these instances; None is MIG off, which becomes `pending` with the next reset."""
    gpu = model(name)
    on = layout is not None
    facts: dict[str, Any] = {
        "index": index,
        "uuid": f"GPU-{index}",
        "minor": index,
        "product": f"NVIDIA {name}",
        "model": gpu,
        "memory_total_mib": gpu.memory_mib,
        "memory_mib": gpu.memory_mib,
        "mig": MigMode(current=on, pending=on if pending is None else pending) if gpu.profiles else None,
        "instances": tuple(
            instance(each, f"MIG-{index}-{number}", number + 1) for number, each in enumerate(sorted(layout or ()))
        ),
    }
    return GpuFacts(**(facts | more))


def instance(placement: Placement, uuid: str, number: int) -> Instance:
    """Return a MIG instance."""
    return Instance(placement=placement, uuid=uuid, gpu_instance=number, compute_instance=0, memory_mib=1024)


def names(layout: Iterable[Placement]) -> list[str]:
    """Return placements as people write them."""
    return [f"{each.profile} at {each.start}" for each in layout]
