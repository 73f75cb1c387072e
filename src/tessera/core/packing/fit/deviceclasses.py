"""Classes of existing devices: those of one class serve the same, whatever GPU they are on."""

from tessera.core.gpu.sharing import Device, Mode, Option

__all__ = ["DeviceClass", "class_of"]

DeviceClass = tuple[Mode, str | None, str, int, int]
"""Mode, profile, resource, memory (MiB) and compute (percent) of one client."""


def class_of(device: Device | Option) -> DeviceClass:
    """Return the class of a device, or of the devices of an option."""
    return device.mode, _profile(device), device.resource, device.memory_mib, device.compute_percent


def _profile(device: Device | Option) -> str | None:
    if isinstance(device, Option):
        return device.profile
    return device.placement.profile if device.placement else None
