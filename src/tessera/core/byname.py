"""Devices that pods ask for by name, as shares: what the kubelet's record of their ids means."""

from collections.abc import Iterable, Iterator, Mapping

from tessera.core.inventory import GpuFacts, Inventory
from tessera.core.sharing import Device, Mode, Sharing, devices
from tessera.core.snapshot import Gpu, Share

__all__ = ["shares_by_id"]


def shares_by_id(gpus: Iterable[Gpu], inventory: Inventory) -> Mapping[str, Share]:
    """Return what a pod has of a GPU by the id of the device it holds, without resource and container.

    Of a GPU left to Tessera the whole and every instance is a device, whatever is offered now: a pod keeps what it
    holds when nobody wants it any more.
    """
    facts = {each.uuid: each for each in inventory.gpus}
    return {
        name: _share(gpu, device)
        for gpu in gpus
        if gpu.uuid in facts
        for device in _devices(gpu)
        for name in _ids(device, facts[gpu.uuid])
    }


def _devices(gpu: Gpu) -> tuple[Device, ...]:
    if gpu.sharing.undecided and gpu.sharing.layout is None:
        return devices(gpu.model, gpu.memory_mib, Sharing(modes=(Mode.WHOLE,)))
    return gpu.devices


def _ids(device: Device, facts: GpuFacts) -> Iterator[str]:
    """Yield the ids of a device, as `core.advertise` gives them."""
    for uuid, placement in ((facts.uuid, None), *((each.uuid, each.placement) for each in facts.instances)):
        if placement == device.placement:
            yield from [uuid] if device.clients == 1 else [f"{uuid}::{number}" for number in range(device.clients)]


def _share(gpu: Gpu, device: Device) -> Share:
    return Share(
        gpu=gpu.index,
        mode=device.mode,
        profile=device.placement.profile if device.placement else None,
        start=device.placement.start if device.placement else None,
        memory_mib=device.memory_mib,
        compute_percent=device.compute_percent,
        isolation=device.isolation,
        resource="",
    )
