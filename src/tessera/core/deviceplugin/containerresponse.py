"""A device plugin's answer for one container."""

import msgspec

from tessera.core.deviceplugin.edits import ContainerMount

__all__ = ["ContainerResponse", "DeviceNode"]


class DeviceNode(msgspec.Struct, frozen=True, kw_only=True):
    """A device node of the host in a container."""

    host_path: str
    container_path: str
    permissions: str = "rw"


class ContainerResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Environment, mounts, device nodes, annotations for the runtime, and CDI devices by their full names."""

    env: tuple[tuple[str, str], ...] = ()
    mounts: tuple[ContainerMount, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    cdi_devices: tuple[str, ...] = ()
