"""The annotations of a binding: its assignment, and for gpushare's pods those of gpushare's extender.

Source: AliyunContainerService/gpushare-scheduler-extender `pkg/utils/pod.go` (`PatchPodAnnotationSpec`), `const.go`;
gpushare-device-plugin `cmd/inspect/nodeinfo.go` (`GetAllocation`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tessera.api.kubernetes.podspecs import ASSIGNMENT
from tessera.api.tessera.pods.assignments import write_shares
from tessera.api.tessera.pods.clusterpods import object_field
from tessera.core.cluster.snapshot import Gpu, Share
from tessera.core.workload.need import Form, Need
from tessera.core.workload.resources import SHARE_MEMORY
from tessera.core.workload.units import count

__all__ = ["binding_annotations"]


def binding_annotations(
    pod: Mapping[str, Any],
    need: Need,
    shares: tuple[Share, ...],
    gpus: Sequence[Gpu],
    *,
    share_unit_mib: int,
    now_ns: int,
) -> dict[str, str]:
    """Return the annotations for a pod with these shares.

    Args:
        pod: the object.
        need: its request, as read with `share_unit_mib`.
        shares: one for each device, in the order of its asks.
        gpus: those of its node.
        share_unit_mib: MiB in one `aliyun.com/gpu-mem`.
        now_ns: the time, in nanoseconds since 1970.

    """
    annotations = {ASSIGNMENT: write_shares(shares, need)}
    if any(ask.form is Form.SHARE for ask in need.asks):
        share = next(share for share in shares if share.resource == SHARE_MEMORY)
        annotations |= _gpushare(_units(pod), share, gpus, share_unit_mib)
        annotations["ALIYUN_COM_GPU_MEM_ASSUME_TIME"] = str(now_ns)
    return annotations


def _gpushare(units: Mapping[int, int], share: Share, gpus: Sequence[Gpu], share_unit_mib: int) -> dict[str, str]:
    total_mib = next((gpu.memory_mib for gpu in gpus if gpu.index == share.gpu), 0)
    allocation = {str(container): {str(share.gpu): amount} for container, amount in units.items()}
    return {
        "ALIYUN_COM_GPU_MEM_IDX": str(share.gpu),
        "ALIYUN_COM_GPU_MEM_DEV": str(total_mib // share_unit_mib),
        "ALIYUN_COM_GPU_MEM_POD": str(sum(units.values())),
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
        "scheduler.framework.gpushare.allocation": msgspec.json.encode(allocation).decode(),
    }


def _units(pod: Mapping[str, Any]) -> dict[int, int]:
    """Return each container's ask, by its index."""
    containers = object_field("Pod", pod).get("spec", "containers").elements()
    limits = (container.get("resources", "limits", SHARE_MEMORY) for container in containers)
    return {index: limit.read(count) for index, limit in enumerate(limits) if limit.present}
