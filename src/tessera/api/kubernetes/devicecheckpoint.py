"""The kubelet's device checkpoint: the device ids allocated to each container, by UID of the pod.

The kubelet writes the file when `Allocate` has been answered and before the container is created. Unlike its
PodResources API it names pods by UID, shows init containers, has no limit on how often it is read, and reading it
changes nothing in the kubelet (docs/kubelet-races.md). It may still show pods that have ended.

Source: kubernetes v1.36 `pkg/kubelet/cm/devicemanager/checkpoint/checkpoint.go`; the format is that of 1.20 and later.
"""

import contextlib

import msgspec

from tessera.api.fields import refused_form
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation
from tessera.errors import UNDECODABLE

__all__ = ["DEVICE_CHECKPOINT", "known_resources", "read_checkpoint", "read_responses"]

DEVICE_CHECKPOINT = "kubelet_internal_checkpoint"
"""Name of the file in the kubelet's folder of device plugins."""


class _Entry(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    pod_uid: str = msgspec.field(name="PodUID")
    container_name: str
    resource_name: str
    device_ids: dict[str, tuple[str, ...] | None] | None = msgspec.field(name="DeviceIDs", default=None)
    """By NUMA node."""


class _AnsweredEntry(_Entry, frozen=True, kw_only=True, rename="pascal"):
    alloc_resp: bytes | None = None
    """A `ContainerAllocateResponse` of the device plugin API, in protobuf."""


class _Data(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    pod_device_entries: tuple[_Entry, ...] | None = None
    registered_devices: dict[str, object] | None = None
    """By resource."""


class _File(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    data: _Data


class _AnsweredData(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    pod_device_entries: tuple[msgspec.Raw, ...] | None = None


class _AnsweredFile(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    data: _AnsweredData


_DECODER = msgspec.json.Decoder(_File)
_ANSWERED = msgspec.json.Decoder(_AnsweredFile)
_ANSWERED_ENTRY = msgspec.json.Decoder(_AnsweredEntry)


def read_checkpoint(source: str, content: bytes) -> tuple[KubeletAllocation, ...]:
    """Return the allocations in the kubelet's device checkpoint, in its order.

    Raises:
        InvalidInput: the file is not a device checkpoint of a known form.

    """
    try:
        file = _DECODER.decode(content)
    except UNDECODABLE as error:
        hint = "only checkpoints that kubelets 1.20 and later write are read"
        raise refused_form(error, content, source, hint) from error
    return tuple(
        KubeletAllocation(
            uid=each.pod_uid,
            container=each.container_name,
            resource=each.resource_name,
            device_ids=tuple(sorted({name for ids in (each.device_ids or {}).values() for name in ids or ()})),
        )
        for each in file.data.pod_device_entries or ()
    )


def known_resources(content: bytes) -> frozenset[str]:
    """Return the resources that a kubelet with this checkpoint admits no pod without; none of an unknown form.

    Their plugins registered, or containers were allocated some of them. Source: kubernetes
    `pkg/kubelet/cm/devicemanager/manager.go`, `isDevicePluginResource`.
    """
    try:
        data = _DECODER.decode(content).data
    except UNDECODABLE:
        return frozenset()
    allocated = (each.resource_name for each in data.pod_device_entries or ())
    return frozenset(data.registered_devices or ()).union(allocated)


def read_responses(content: bytes) -> dict[tuple[str, str, str], bytes]:
    """Return what plugins answered for containers, in protobuf, by UID of the pod, container and resource.

    The kubelet hands these answers to the runtime at each start of a container. None of a file of an unknown form; an
    entry that cannot be read, as of another plugin, keeps no other from being read.
    """
    try:
        file = _ANSWERED.decode(content)
    except UNDECODABLE:
        return {}
    found: dict[tuple[str, str, str], bytes] = {}
    for entry in file.data.pod_device_entries or ():
        with contextlib.suppress(*UNDECODABLE):
            each = _ANSWERED_ENTRY.decode(entry)
            found[each.pod_uid, each.container_name, each.resource_name] = each.alloc_resp or b""
    return found
