"""HAMi's annotations: the GPUs that its device plugin registers on a node, and the allocations of its scheduler.

A node of HAMi advertises each GPU as `nvidia.com/gpu` as often as pods may share it, ten times by default; the real
GPUs are in its annotation. Source: Project-HAMi/HAMi `pkg/device/devices.go` (`DeviceInfo`,
`DecodeNodeDevices`, `DecodeContainerDevices`), `pkg/device/nvidia/device.go`.
"""

from typing import Annotated

import msgspec

from tessera.api.fields import Field, error_phrase

__all__ = ["ALLOCATED", "REGISTERED", "HamiAllocation", "RegisteredGpu", "read_allocated", "read_registered"]

REGISTERED = "hami.io/node-nvidia-register"
"""Annotation of a node: its GPUs. Set by HAMi; read by the planner."""
ALLOCATED = "hami.io/vgpu-devices-allocated"
"""Annotation of a pod: its allocated GPUs. Set by HAMi; read by the planner."""

_Mib = Annotated[int, msgspec.Meta(ge=0, le=1 << 24)]
_Index = Annotated[int, msgspec.Meta(ge=0, lt=256)]
_FIELDS = (7, 9)
"""Of a GPU in the older form: without and with index and mode."""


class RegisteredGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU as registered by HAMi's device plugin; fields that are zero or false are left out."""

    id: str = ""
    """UUID."""
    index: _Index = 0
    devmem: _Mib = 0
    """Memory to share, in MiB: more than the GPU's if HAMi oversubscribes it."""
    type: str = ""
    """`NVIDIA-` and the driver's product name."""
    health: bool = False
    mode: str = ""
    """`mig` if HAMi partitions it, else `hami-core` or `mps`."""


class HamiAllocation(msgspec.Struct, frozen=True, kw_only=True):
    """A container's allocation on a GPU."""

    uuid: str
    memory_mib: _Mib
    compute_percent: Annotated[int, msgspec.Meta(ge=0, le=100)]


_REGISTER = msgspec.json.Decoder(tuple[RegisteredGpu, ...])


def read_registered(annotation: Field) -> tuple[RegisteredGpu, ...]:
    """Return the GPUs in the annotation `REGISTERED`: JSON, or texts with commas in older releases.

    Raises:
        InvalidInput: it cannot be read, or has a GPU twice.

    """
    text = annotation.text()
    try:
        gpus = _REGISTER.decode(text) if text.lstrip().startswith("[") else _older(text)
    except (ValueError, RecursionError) as error:
        cause = error_phrase(error, text.encode(errors="replace"))
        raise annotation.refuse(found=f"it is not GPUs as HAMi's device plugin registers them ({cause})") from error
    if len({each.id for each in gpus}) < len(gpus) or len({each.index for each in gpus}) < len(gpus):
        raise annotation.refuse(found="a GPU is there twice", hint="list each once")
    return tuple(sorted(gpus, key=lambda each: each.index))


def _older(text: str) -> tuple[RegisteredGpu, ...]:
    found = []
    for position, part in enumerate(filter(None, text.split(":"))):
        words = part.split(",")
        if len(words) not in _FIELDS:
            raise ValueError(part)
        uuid, _, devmem, _, product, _, health, index, mode = (*words, str(position), "")[: max(_FIELDS)]
        given = {"id": uuid, "index": index, "devmem": devmem, "type": product, "mode": mode}
        found.append(msgspec.convert(given | {"health": health == "true"}, RegisteredGpu, strict=False))
    return tuple(found)


def read_allocated(annotation: Field) -> tuple[HamiAllocation, ...]:
    """Return the allocations of a pod's containers, in their order, from the annotation `ALLOCATED`.

    It is written `UUID,NVIDIA,MiB,PERCENT:`, each container's followed by a semicolon.

    Raises:
        InvalidInput: it cannot be read.

    """
    found = []
    for part in filter(None, annotation.text().replace(";", ":").split(":")):
        uuid, *words = part.split(",")
        try:
            _, memory_mib, compute_percent, *_ = words
            given = {"uuid": uuid.partition("[")[0], "memory_mib": memory_mib, "compute_percent": compute_percent}
            found.append(msgspec.convert(given, HamiAllocation, strict=False))
        except ValueError as error:
            raise annotation.refuse("UUID,NVIDIA,MiB,PERCENT of each GPU, as HAMi's scheduler writes it") from error
    return tuple(found)
