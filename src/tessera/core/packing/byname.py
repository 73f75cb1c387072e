"""Nodes whose devices of a name are not all what a pod restricts them to: the kubelet chooses by name alone."""

import msgspec
import numpy as np

from tessera.core.cluster.gputypes import GpuType, Ints
from tessera.core.gpu.sharing import GPU_RESOURCE, mig_resource
from tessera.core.packing.fit import Fleet
from tessera.core.packing.obstacles import Cause, Obstacle
from tessera.core.workload.need import Ask, Form, Isolation, Need

__all__ = ["mixtures", "restricts"]


def restricts(ask: Ask, models: tuple[str, ...]) -> bool:
    """Return whether an ask is for devices by name of which not any will do.

    Args:
        ask: the ask.
        models: the GPU models that may serve the pod; empty for any.

    """
    ours = ask.resource.startswith((GPU_RESOURCE, mig_resource("")))
    return ask.form is Form.EXACT and ours and (bool(models) or ask.isolation is not Isolation.NONE)


def mixtures(need: Need, fleet: Fleet, nodes: Ints) -> dict[int, Obstacle]:
    """Return the obstacle of each of these nodes, by column, that has other devices too by a name that a pod restricts.

    A device of an unhealthy GPU counts: the kubelet may choose it once it is healthy. Columns below 0 are no nodes.
    """
    columns, found = nodes[nodes >= 0], dict[int, Obstacle]()
    for ask in need.asks:
        if restricts(ask, need.models):
            others = np.array([_has_others(each.healthy or each, ask, need.models) for each in fleet.types])
            unsuited = np.logical_or.reduce(others[fleet.kind.take(columns, 1)])
            obstacle = Obstacle(Cause.MIXED, _text(ask, need.models))
            found |= dict.fromkeys((each for each in columns[unsuited].tolist() if each not in found), obstacle)
    return found


def _has_others(gpu_type: GpuType, ask: Ask, models: tuple[str, ...]) -> bool:
    """Return whether a GPU has devices of the name of an ask that may not serve it."""
    named = gpu_type.options(msgspec.structs.replace(ask, isolation=Isolation.NONE))
    if models and gpu_type.model.name not in models:
        return bool(named)
    return len(gpu_type.options(ask)) < len(named)


def _text(ask: Ask, models: tuple[str, ...]) -> str:
    grade = f" with {ask.isolation} isolation" if ask.isolation is not Isolation.NONE else ""
    model = f" of model {' or '.join(models)}" if models else ""
    return (
        f"not every {ask.resource} of the node is one{grade}{model}, and the kubelet chooses by name alone: request "
        "an amount, or give these devices a name of their own in the node's GPUPolicy"
    )
