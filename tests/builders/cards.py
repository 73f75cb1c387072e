"""GPUs and nodes as a driver would show them, built from a model and a layout."""

from collections.abc import Iterable

from tessera.core.gpu.gpumodels import GpuModel, model
from tessera.core.gpu.inventory import GpuFacts, Instance, Inventory, MigMode
from tessera.core.gpu.mig import Layout, Placement


def at(gpu: GpuModel, *parts: tuple[str, int]) -> Layout:
    """Return placements of a model by profile and start."""
    sizes = {each.name: each.size for each in gpu.profiles}
    return tuple(Placement(start, sizes[name], name) for name, start in parts)


def card(  # noqa: PLR0913  # a record's fields, by name
    name: str = "A100-40GB",
    *,
    index: int = 0,
    layout: Layout | None = None,
    pending: bool | None = None,
    incomplete: Layout = (),
    lost: bool = False,
    pci: str = "",
) -> GpuFacts:
    """Return a GPU with these instances; None is MIG off, which becomes `pending` with the next reset."""
    gpu = model(name)
    on = layout is not None
    mode = MigMode(current=on, pending=on if pending is None else pending)
    return GpuFacts(
        index=index,
        uuid=f"GPU-{index}",
        minor=index,
        product=f"NVIDIA {name}",
        model=gpu,
        pci_device_id=pci,
        memory_total_mib=gpu.memory_mib,
        memory_mib=gpu.memory_mib,
        mig=mode if gpu.profiles else None,
        instances=tuple(
            instance(each, f"MIG-{index}-{number}", number + 1) for number, each in enumerate(sorted(layout or ()))
        ),
        incomplete=incomplete,
        lost=lost,
    )


def instance(placement: Placement, uuid: str, number: int) -> Instance:
    """Return a MIG instance."""
    return Instance(placement=placement, uuid=uuid, gpu_instance=number, compute_instance=0, memory_mib=1)


def node(*gpus: GpuFacts) -> Inventory:
    """Return a node with these GPUs."""
    return Inventory(gpus=gpus)


def names(layout: Iterable[Placement]) -> list[str]:
    """Return placements as people write them."""
    return [f"{each.profile} at {each.start}" for each in layout]
