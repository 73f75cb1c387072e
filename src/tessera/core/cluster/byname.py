"""Devices that pods ask for by name, as shares: what the kubelet's record of their ids means."""

from collections.abc import Iterable, Iterator, Mapping

from tessera.core.cluster.snapshot import Gpu, Share
from tessera.core.gpu.inventory import GpuFacts, Inventory
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import GPU_RESOURCE, Device, Mode, Sharing, devices, mig_resource

__all__ = ["named_share", "shares_by_id"]


def shares_by_id(gpus: Iterable[Gpu], inventory: Inventory) -> Mapping[str, Share]:
    """Return what a pod has of a GPU by the id of the device it holds, without resource and container.

    Of a managed GPU the whole and every instance is a device, whatever is offered now: a pod keeps what it
    holds when nobody wants it any more.
    """
    facts = {each.uuid: each for each in inventory.gpus}
    return {
        name: Share.of_device(gpu.index, device, "")
        for gpu in gpus
        if gpu.uuid in facts
        for device in ((_whole(gpu),) if gpu.sharing.managed and gpu.sharing.layout is None else gpu.devices)
        for name in _ids(device, facts[gpu.uuid])
    }


def named_share(gpu: Gpu, placement: Placement | None) -> Share:
    """Return a device that may be asked for by name, the whole GPU or a MIG instance, as what its only holder has.

    Whether the GPU can have the instance is not asked: one of no profile of its has no memory and no compute.
    """
    if placement is None:
        return Share.of_device(gpu.index, _whole(gpu), GPU_RESOURCE)
    profile = next((each for each in gpu.model.profiles if each.name == placement.profile), None)
    return Share(
        gpu=gpu.index,
        mode=Mode.MIG,
        profile=placement.profile,
        start=placement.start,
        memory_mib=profile.memory_mib if profile else 0,
        compute_percent=100 * profile.compute_slices // gpu.model.compute_slices if profile else 0,
        isolation=Mode.MIG.isolation,
        resource=mig_resource(placement.profile),
    )


def _whole(gpu: Gpu) -> Device:
    (device,) = devices(gpu.model, gpu.memory_mib, Sharing(modes=(Mode.WHOLE,)))
    return device


def _ids(device: Device, facts: GpuFacts) -> Iterator[str]:
    """Yield the ids of a device, as `core.cluster.advertise` gives them."""
    for uuid, placement in ((facts.uuid, None), *((each.uuid, each.placement) for each in facts.instances)):
        if placement == device.placement:
            yield from [uuid] if device.clients == 1 else [f"{uuid}::{number}" for number in range(device.clients)]
