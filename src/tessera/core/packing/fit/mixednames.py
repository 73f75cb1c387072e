"""Nodes whose devices of a name are not all what a pod restricts them to: the kubelet chooses by name alone."""

from collections.abc import Iterable

import msgspec
import numpy as np

from tessera.core.cluster.gputypes import GpuType, Ints
from tessera.core.cluster.snapshot import Gpu
from tessera.core.gpu.sharing import GPU_RESOURCE, mig_resource
from tessera.core.packing.fit.fleet import Fleet
from tessera.core.workload.need import DeviceRequest, Form, Isolation, Need

__all__ = ["is_mixed", "mixtures", "restricts"]


def restricts(request: DeviceRequest, models: tuple[str, ...]) -> bool:
    """Return whether a request is for devices by name of which not any will do.

    Args:
        request: of a container.
        models: the GPU models that may serve the pod; empty for any.

    """
    ours = request.resource.startswith((GPU_RESOURCE, mig_resource("")))
    return request.form is Form.EXACT and ours and (bool(models) or request.isolation is not Isolation.NONE)


def mixtures(need: Need, fleet: Fleet, nodes: Ints) -> dict[int, DeviceRequest]:
    """Return of these nodes, by column, those with other devices too by a name that a pod restricts, with its request.

    A device of an unhealthy GPU counts: the kubelet may choose it once it is healthy. Columns below 0 are no nodes.
    """
    columns, found = nodes[nodes >= 0], dict[int, DeviceRequest]()
    for request in need.requests:
        if restricts(request, need.models):
            others = np.array([_has_others(each, request, need.models) for each in fleet.types])
            unsuited = np.logical_or.reduce(others[fleet.kind.take(columns, 1)])
            found |= dict.fromkeys((each for each in columns[unsuited].tolist() if each not in found), request)
    return found


def is_mixed(need: Need, gpus: Iterable[Gpu]) -> bool:
    """Return whether a node with these GPUs has other devices too by a name that a pod restricts."""
    requests = [request for request in need.requests if restricts(request, need.models)]
    types = [GpuType.of(gpu) for gpu in gpus] if requests else []
    return any(_has_others(each, request, need.models) for request in requests for each in types)


def _has_others(gpu_type: GpuType, request: DeviceRequest, models: tuple[str, ...]) -> bool:
    """Return whether a GPU has devices of the name of a request that may not serve it."""
    gpu_type = gpu_type.healthy or gpu_type
    named = gpu_type.options(msgspec.structs.replace(request, isolation=Isolation.NONE))
    if models and gpu_type.model.name not in models:
        return bool(named)
    return len(gpu_type.options(request)) < len(named)
