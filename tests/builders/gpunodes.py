"""A node's GPUs as the driver reports them and as they are shared, for tests of what the kubelet is offered."""

import uuid

from builders.gpufacts import at
from tessera.core.cluster.snapshot import Gpu
from tessera.core.deviceplugin.offers.advertise import OfferOptions, Resource, offer
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.inventory import GpuFacts, Instance, Inventory, MigMode
from tessera.core.gpu.mig import Layout
from tessera.core.gpu.sharing import AUTO, Sharing


def sevenths(name: str = "A100-40GB", profile: str = "1g.5gb") -> Layout:
    """Return the layout of seven of the smallest instances."""
    return at(name, *((profile, start) for start in range(7)))


def identity(kind: str, *parts: object) -> str:
    """Return a UUID of its own for each thing, the same each time."""
    return f"{kind}-{uuid.uuid5(uuid.NAMESPACE_OID, '/'.join(map(str, parts)))}"


def facts(
    index: int = 0, name: str = "A100-40GB", layout: Layout | None = None, *, numa: int | None = None
) -> GpuFacts:
    """Return a GPU with these MIG instances; MIG is off where `layout` is None."""
    kind = model(name)
    memory = {profile.name: profile.memory_mib for profile in kind.profiles}
    return GpuFacts(
        index=index,
        uuid=identity("GPU", index),
        minor=index,
        product=f"NVIDIA {name}",
        model=kind,
        numa=numa,
        memory_total_mib=kind.memory_mib,
        memory_mib=kind.memory_mib,
        mig=MigMode(current=layout is not None, pending=layout is not None) if kind.profiles else None,
        instances=tuple(
            Instance(
                placement=place,
                uuid=identity("MIG", index, place.start, place.profile),
                gpu_instance=number + 1,
                compute_instance=0,
                memory_mib=memory[place.profile],
            )
            for number, place in enumerate(layout or ())
        ),
    )


def shared(gpu: GpuFacts, sharing: Sharing = AUTO) -> Gpu:
    """Return the GPU as it is shared."""
    return Gpu(index=gpu.index, model=gpu.model, memory_mib=gpu.memory_mib, sharing=sharing, uuid=gpu.uuid)


def offered(*pairs: tuple[GpuFacts, Sharing], options: OfferOptions | None = None) -> dict[str, Resource]:
    """Return what a node of such GPUs offers, by resource name."""
    inventory = Inventory(gpus=tuple(gpu for gpu, _ in pairs))
    found = offer([shared(gpu, sharing) for gpu, sharing in pairs], inventory, options or OfferOptions())
    return {resource.name: resource for resource in found.resources}
