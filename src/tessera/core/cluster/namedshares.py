"""Devices that pods request by name, as shares: decodes the ids in the kubelet's record."""

from collections.abc import Iterable, Iterator, Mapping

from tessera.core.cluster.snapshot import Gpu, Share
from tessera.core.gpu.inventory import GpuFacts, Inventory
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import GPU_RESOURCE, Device, Mode, Sharing, devices, mig_resource

__all__ = ["named_share", "shares_by_id"]


def shares_by_id(gpus: Iterable[Gpu], inventory: Inventory) -> Mapping[str, Share]:
    """Return a pod's share of a GPU by its device id, without resource and container.

    Of a managed GPU the whole and every instance is a device, whatever is advertised now: a pod keeps its device
    when it is no longer desired.
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
    """Return a device that may be requested by name, the whole GPU or a MIG instance, as the share of its only holder.

    Whether the GPU supports the instance is not checked: one of an unknown profile has no memory and no compute.
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
    """Yield the ids of a device, as `core.deviceplugin.offers.advertise` gives them."""
    for uuid, placement in ((facts.uuid, None), *((each.uuid, each.placement) for each in facts.instances)):
        if placement == device.placement:
            yield from [uuid] if device.clients == 1 else [f"{uuid}::{number}" for number in range(device.clients)]
