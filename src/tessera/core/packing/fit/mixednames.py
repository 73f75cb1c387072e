"""Nodes whose devices of a name are not all what a pod restricts them to: the kubelet chooses by name alone."""

from collections.abc import Iterable

import msgspec
import numpy as np

from tessera.core.cluster.gputypes import GpuType, Ints
from tessera.core.cluster.snapshot import Gpu
from tessera.core.gpu.sharing import GPU_RESOURCE, mig_resource
from tessera.core.packing.fit.fleet import Fleet
from tessera.core.workload.need import Ask, Form, Isolation, Need

__all__ = ["is_mixed", "mixtures", "restricts"]


def restricts(ask: Ask, models: tuple[str, ...]) -> bool:
    """Return whether an ask is for devices by name of which not any will do.

    Args:
        ask: the ask.
        models: the GPU models that may serve the pod; empty for any.

    """
    ours = ask.resource.startswith((GPU_RESOURCE, mig_resource("")))
    return ask.form is Form.EXACT and ours and (bool(models) or ask.isolation is not Isolation.NONE)


def mixtures(need: Need, fleet: Fleet, nodes: Ints) -> dict[int, Ask]:
    """Return of these nodes, by column, those that have other devices too by a name that a pod restricts, with its ask.

    A device of an unhealthy GPU counts: the kubelet may choose it once it is healthy. Columns below 0 are no nodes.
    """
    columns, found = nodes[nodes >= 0], dict[int, Ask]()
    for ask in need.asks:
        if restricts(ask, need.models):
            others = np.array([_has_others(each, ask, need.models) for each in fleet.types])
            unsuited = np.logical_or.reduce(others[fleet.kind.take(columns, 1)])
            found |= dict.fromkeys((each for each in columns[unsuited].tolist() if each not in found), ask)
    return found


def is_mixed(need: Need, gpus: Iterable[Gpu]) -> bool:
    """Return whether a node with these GPUs has other devices too by a name that a pod restricts."""
    asks = [ask for ask in need.asks if restricts(ask, need.models)]
    types = [GpuType.of(gpu) for gpu in gpus] if asks else []
    return any(_has_others(each, ask, need.models) for ask in asks for each in types)


def _has_others(gpu_type: GpuType, ask: Ask, models: tuple[str, ...]) -> bool:
    """Return whether a GPU has devices of the name of an ask that may not serve it."""
    gpu_type = gpu_type.healthy or gpu_type
    named = gpu_type.options(msgspec.structs.replace(ask, isolation=Isolation.NONE))
    if models and gpu_type.model.name not in models:
        return bool(named)
    return len(gpu_type.options(ask)) < len(named)
