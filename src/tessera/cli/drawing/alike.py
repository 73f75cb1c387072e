"""Groups nodes and GPUs that look the same, so that a large fleet is drawn once for each kind."""

from collections import defaultdict
from itertools import groupby

import msgspec

from tessera.cli.drawing.views import DrawnFleet, DrawnGpu, DrawnNode, DrawnPod

__all__ = ["EVERY_GPU", "DrawnKind", "GpuRun", "kinds"]

EVERY_GPU = 40
"""Up to this many GPUs each has its own strip; in a larger fleet equal ones are drawn once."""


class GpuRun(msgspec.Struct, frozen=True, kw_only=True):
    """Neighboring GPUs of a node that look the same; the first is drawn."""

    gpus: tuple[DrawnGpu, ...]


class DrawnKind(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that look the same; the first is drawn."""

    nodes: tuple[DrawnNode, ...]
    runs: tuple[GpuRun, ...]
    """GPUs of the first node."""


def kinds(fleet: DrawnFleet) -> tuple[DrawnKind, ...]:
    """Return the nodes to draw, each with those like it.

    Alike are nodes with equal capacity, use and marks, whose GPUs have pods of the same workloads in the same way.
    """
    if len(fleet.gpus) <= EVERY_GPU:
        return tuple(
            DrawnKind(nodes=(node,), runs=tuple(GpuRun(gpus=(gpu,)) for gpu in node.gpus)) for node in fleet.nodes
        )
    groups: defaultdict[object, list[DrawnNode]] = defaultdict(list)
    for node in fleet.nodes:
        groups[_look(node)].append(node)
    return tuple(
        DrawnKind(
            nodes=tuple(nodes),
            runs=tuple(GpuRun(gpus=tuple(run)) for _, run in groupby(nodes[0].gpus, key=_gpu_look)),
        )
        for nodes in groups.values()
    )


def _look(node: DrawnNode) -> object:
    holders = tuple(map(_pod_look, node.others))
    marks = tuple(mark for mark in node.marks if not mark.startswith("zone="))  # irrelevant for its capabilities
    plain = msgspec.structs.replace(node, name="", marks=marks, gpus=(), others=())
    return plain, tuple((gpu.index, _gpu_look(gpu)) for gpu in node.gpus), holders


def _gpu_look(gpu: DrawnGpu) -> object:
    devices = tuple(msgspec.structs.replace(device, pods=tuple(map(_pod_look, device.pods))) for device in gpu.devices)
    return msgspec.structs.replace(gpu, index=0, devices=devices)


def _pod_look(holder: DrawnPod) -> DrawnPod:
    return msgspec.structs.replace(holder, pod="", part=1)
