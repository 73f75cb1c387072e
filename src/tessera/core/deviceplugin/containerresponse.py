"""A device plugin's answer for one container, and the devices that it names."""

import msgspec

__all__ = ["LIST_FOLDER", "VISIBLE", "ContainerMount", "ContainerResponse", "DeviceNode", "visible_devices"]

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
"""The variable that names a container's devices to NVIDIA's runtime."""
LIST_FOLDER = "/var/run/nvidia-container-devices"
"""Where a container has a mount for each of its devices, by strategy `volume-mounts`."""


class ContainerMount(msgspec.Struct, frozen=True, kw_only=True):
    """A directory of the host in a container."""

    host_path: str
    container_path: str
    read_only: bool = False


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


def visible_devices(answer: ContainerResponse) -> tuple[str, ...]:
    """Return the devices that an answer without CDI names, as UUIDs or indices; none where CDI alone names them."""
    listed = f"{LIST_FOLDER}/"
    mounted = [each.container_path for each in answer.mounts if each.container_path.startswith(listed)]
    named = dict(answer.env).get(VISIBLE, "")
    if mounted:
        return tuple(each.removeprefix(listed) for each in mounted)
    return tuple(filter(None, named.split(",")))
