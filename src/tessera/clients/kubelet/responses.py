"""A device plugin's answer for one container in the form of the kubelet's API, in which its checkpoint keeps it."""

from google.protobuf.message import DecodeError

from tessera.clients.kubelet.wire import deviceplugin_v1beta1_pb2 as wire
from tessera.core.deviceplugin.containerresponse import ContainerMount, ContainerResponse, DeviceNode

__all__ = ["from_wire", "response_of", "to_wire"]


def to_wire(response: ContainerResponse) -> wire.ContainerAllocateResponse:
    """Return an answer as the kubelet takes it."""
    return wire.ContainerAllocateResponse(
        envs=dict(response.env),
        mounts=[
            wire.Mount(container_path=each.container_path, host_path=each.host_path, read_only=each.read_only)
            for each in response.mounts
        ],
        devices=[
            wire.DeviceSpec(container_path=each.container_path, host_path=each.host_path, permissions=each.permissions)
            for each in response.device_nodes
        ],
        annotations=dict(response.annotations),
        cdi_devices=[wire.CDIDevice(name=each) for each in response.cdi_devices],
    )


def from_wire(answer: wire.ContainerAllocateResponse) -> ContainerResponse:
    """Return an answer as the kubelet has it."""
    return ContainerResponse(
        env=tuple(sorted(answer.envs.items())),
        mounts=tuple(
            ContainerMount(host_path=each.host_path, container_path=each.container_path, read_only=each.read_only)
            for each in answer.mounts
        ),
        device_nodes=tuple(
            DeviceNode(host_path=each.host_path, container_path=each.container_path, permissions=each.permissions)
            for each in answer.devices
        ),
        annotations=tuple(sorted(answer.annotations.items())),
        cdi_devices=tuple(each.name for each in answer.cdi_devices),
    )


def response_of(data: bytes) -> ContainerResponse | None:
    """Return an answer in protobuf, as the kubelet's checkpoint has it; None for what is none."""
    try:
        return from_wire(wire.ContainerAllocateResponse.FromString(data))
    except DecodeError:
        return None
