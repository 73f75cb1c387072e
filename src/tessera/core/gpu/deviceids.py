"""Identity of a GPU or a MIG instance: which of them overlap, and which the kubelet's device ids stand for."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from tessera.core.gpu.gpumodels import GpuModel
from tessera.core.gpu.inventory import Inventory
from tessera.core.gpu.mig import Layout, Placement, placement_at

__all__ = ["DeviceId", "devices_by_uuid", "devices_of_ids", "existing_devices", "overlap"]


class DeviceId(NamedTuple):
    """A GPU, or a MIG instance by its GPU and placement: one that is created again may have another UUID."""

    gpu: str
    """UUID."""
    placement: Placement | None = None
    """The MIG instance; None for the whole GPU."""

    def __str__(self) -> str:
        """Return the device in words."""
        if self.placement is None:
            return f"GPU {self.gpu}"
        return f"{self.placement.profile} at {self.placement.start} of GPU {self.gpu}"

    def order(self) -> tuple[str, Layout]:
        """Return the sort key of devices: each GPU before its instances."""
        return self.gpu, () if self.placement is None else (self.placement,)


def devices_by_uuid(inventory: Inventory) -> Mapping[str, DeviceId]:
    """Return the GPUs and MIG instances in the inventory, by UUID."""
    found = {gpu.uuid: DeviceId(gpu.uuid) for gpu in inventory.gpus}
    return found | {each.uuid: DeviceId(gpu.uuid, each.placement) for gpu in inventory.gpus for each in gpu.instances}


def devices_of_ids(ids: Iterable[str], inventory: Inventory) -> frozenset[DeviceId]:
    """Return the devices of these ids of the kubelet; units of memory stand for none."""
    devices = devices_by_uuid(inventory)
    uuids = (name.partition("::")[0] for name in ids)
    return frozenset(devices[uuid] for uuid in uuids if uuid in devices)


def existing_devices(inventory: Inventory) -> Mapping[DeviceId, str]:
    """Return the GPUs on which MIG is off and the MIG instances that exist, with their UUIDs."""
    partitioned = {gpu.uuid for gpu in inventory.gpus if gpu.layout is not None}
    return {device: uuid for uuid, device in devices_by_uuid(inventory).items() if uuid not in partitioned}


def overlap(a: DeviceId, b: DeviceId, models: Mapping[str, GpuModel] = MappingProxyType({})) -> bool:
    """Return whether two devices overlap, so that no two pods can have them exclusively.

    A whole GPU overlaps everything on it, MIG instances overlap if they share a memory slice. An
    instance without a known size takes what its profile does; if the model does not have the profile, everything.

    Args:
        a: a device.
        b: another, or the same.
        models: models of the GPUs by UUID; others are taken to have no profiles.

    """
    if a.gpu != b.gpu:
        return False
    if a.placement is None or b.placement is None or a.placement == b.placement:
        return True
    first, second = (_mask(models.get(a.gpu), each) for each in (a.placement, b.placement))
    return not first or not second or bool(first & second)


def _mask(model: GpuModel | None, place: Placement) -> int:
    """Return the memory slices of an instance; 0 where unknown."""
    known = place if place.size or model is None else placement_at(model, place.profile, place.start)
    return known.mask
