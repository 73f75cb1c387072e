"""gpushare's annotations of a pod: the GPU that its scheduler extender assigned, and whether its device plugin knows.

Source: AliyunContainerService/gpushare-scheduler-extender `pkg/utils/const.go`, `pkg/utils/pod.go`
(`PatchPodAnnotationSpec`); gpushare-device-plugin `cmd/inspect/nodeinfo.go` (`GetAllocation`).
"""

import re
from collections.abc import Mapping
from typing import Annotated

import msgspec

from tessera.api.fields import Field, error_phrase

__all__ = ["ASSIGNED", "ASSUMED", "INDEX", "assigned_mib", "assumed_ns", "binding", "is_assigned"]

INDEX = "ALIYUN_COM_GPU_MEM_IDX"
"""Annotation of a pod that requests `aliyun.com/gpu-mem`: index of its GPU. Set by the server, corrected by the agent;
read by commands and gpushare's programs."""
ASSUMED = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
"""Annotation of a pod that requests `aliyun.com/gpu-mem`: when it was assigned, in nanoseconds since 1970. Set by the
server and the agent; read by the agent and gpushare's programs."""
ASSIGNED = "ALIYUN_COM_GPU_MEM_ASSIGNED"
"""Annotation of a pod that requests `aliyun.com/gpu-mem`: `true` once it has its GPU. Set by the server and the agent;
read by the agent and gpushare's programs."""
_ALLOCATION = "scheduler.framework.gpushare.allocation"
"""JSON of container index, GPU index, units of memory."""

_GPU_INDEX = r"[0-9]{1,3}"
"""No node has a thousand GPUs."""
_MOST_UNITS = 2**20
"""On one GPU: more than any has, in MiB too."""
_TIME_NS = re.compile(r"[0-9]{1,19}")
"""Nanoseconds since 1970, of 64 bits at most."""
_Gpu = Annotated[str, msgspec.Meta(pattern=f"^{_GPU_INDEX}$")]
_Units = Annotated[int, msgspec.Meta(ge=0, le=_MOST_UNITS)]
_DECODER = msgspec.json.Decoder(dict[str, dict[_Gpu, _Units]])


def is_assigned(annotations: Field) -> bool:
    """Return whether a pod's annotations say which GPU it has."""
    return any(annotations.get(key).present for key in (_ALLOCATION, INDEX))


def assigned_mib(annotations: Field, requested_mib: int, unit_mib: int) -> dict[int, int] | None:
    """Return the memory that a pod was assigned of each GPU, by index in order; None for none.

    Containers of one pod have one limit together.

    Args:
        annotations: the pod's.
        requested_mib: the `aliyun.com/gpu-mem` of the pod, which it has of its GPU if only that is recorded.
        unit_mib: MiB in one `aliyun.com/gpu-mem`.

    Raises:
        InvalidInput: an annotation that cannot be read.

    """
    allocation, index = annotations.get(_ALLOCATION), annotations.get(INDEX)
    if allocation.present:
        return _amounts(allocation, unit_mib)
    if not index.present or not requested_mib:
        return None
    text = index.text()
    if not re.fullmatch(_GPU_INDEX, text):
        raise index.refuse("the index of a GPU")
    return {int(text): requested_mib}


def _amounts(allocation: Field, unit_mib: int) -> dict[int, int]:
    try:
        amounts: dict[int, int] = {}
        for by_gpu in _DECODER.decode(allocation.text()).values():
            for gpu, units in by_gpu.items():
                amounts[int(gpu)] = amounts.get(int(gpu), 0) + units * unit_mib
    except (ValueError, RecursionError) as error:
        cause = error_phrase(error, allocation.text().encode(errors="replace"))
        found = f"it is not JSON of container index, GPU index and amount ({cause})"
        raise allocation.refuse(found=found) from error
    return dict(sorted(amounts.items()))


def assumed_ns(annotations: Field) -> int | None:
    """Return when a pod was assigned, in nanoseconds since 1970; None where that is not recorded."""
    assumed = annotations.get(ASSUMED)
    return int(assumed.text()) if assumed.present and _TIME_NS.fullmatch(assumed.text()) else None


def binding(units: Mapping[int, int], gpu: int, gpu_units: int, *, now_ns: int) -> dict[str, str]:
    """Return the annotations with which gpushare's extender binds a pod.

    Args:
        units: what each container requests, by its index.
        gpu: index of the assigned GPU.
        gpu_units: the units that the GPU has.
        now_ns: the time, in nanoseconds since 1970.

    """
    allocation = {str(container): {str(gpu): amount} for container, amount in units.items()}
    return {
        INDEX: str(gpu),
        "ALIYUN_COM_GPU_MEM_DEV": str(gpu_units),
        "ALIYUN_COM_GPU_MEM_POD": str(sum(units.values())),
        ASSIGNED: "false",
        _ALLOCATION: msgspec.json.encode(allocation).decode(),
        ASSUMED: str(now_ns),
    }
