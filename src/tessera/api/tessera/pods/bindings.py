"""The annotations of a binding: its assignment, and for gpushare's pods those of gpushare's extender."""

from collections.abc import Mapping, Sequence
from typing import Any

from tessera.api.gpushare.annotations import binding
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
        shares: one for each device, in the order of its requests.
        gpus: those of its node.
        share_unit_mib: MiB in one `aliyun.com/gpu-mem`.
        now_ns: the time, in nanoseconds since 1970.

    """
    annotations = {ASSIGNMENT: write_shares(shares, need)}
    if any(request.form is Form.SHARE for request in need.requests):
        share = next(share for share in shares if share.resource == SHARE_MEMORY)
        total_mib = next((gpu.memory_mib for gpu in gpus if gpu.index == share.gpu), 0)
        annotations |= binding(_units(pod), share.gpu, total_mib // share_unit_mib, now_ns=now_ns)
    return annotations


def _units(pod: Mapping[str, Any]) -> dict[int, int]:
    """Return each container's request, by its index."""
    containers = object_field("Pod", pod).get("spec", "containers").elements()
    limits = (container.get("resources", "limits", SHARE_MEMORY) for container in containers)
    return {index: limit.read(count) for index, limit in enumerate(limits) if limit.present}
