"""Stranded capacity: the free part of each GPU that the pods of the cluster cannot use.

The cluster's pods, running and pending, are the expected ones. Of the devices they request that a GPU
could serve if it were empty, the part that it cannot serve beside its shares in use is its fragmentation: 0 for an
empty GPU, 100 if the rest is of no use to any pod. It is fragmentation as in Weng et al. (see `core.packing.fit.
fragmentation`), for one device at a time, with the exact answer whether a device fits in place of its size.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from tessera.core.cluster.compatibility import faults
from tessera.core.cluster.gputypes import GpuType, Ints
from tessera.core.cluster.snapshot import Assignment, Gpu, Node, NodeName, Running, Share, Snapshot
from tessera.core.packing.fit import Demand, Fleet
from tessera.core.workload.need import DeviceRequest, Need, Pod, PodKey

__all__ = ["Stranded", "stranded"]

_MOST_KINDS = 64
"""Kinds of devices that count, the most frequent first; clusters request a dozen."""
_ENDLESS = 1 << 40


class Stranded(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU's free part."""

    free_percent: int = 0
    """Percent of the GPU that is free; for amounts the scarcer of compute and memory."""
    fragmentation_percent: int | None = None
    """See the module; None where nothing is free, or no pod requests a device that this GPU could serve."""


def stranded(gpus: Sequence[tuple[Gpu, tuple[Share, ...]]], needs: Iterable[Need]) -> tuple[Stranded, ...]:
    """Return the free part of each GPU with this many shares in use, under the mix of these needs.

    GPUs with impossible shares have nothing free. Cost: kinds of devices times GPUs, in numpy.
    """
    nodes = [
        Node(name=NodeName(str(n)), cpu_milli=_ENDLESS, memory_mib=_ENDLESS, gpus=(gpu,), max_pods=_ENDLESS)
        for n, (gpu, _) in enumerate(gpus)
    ]
    pod = Pod(key=PodKey(""), need=Need())
    running = [
        Running(pod=pod, assignment=Assignment(pod=pod.key, node=node.name, shares=shares))
        for node, (_, shares) in zip(nodes, gpus, strict=True)
    ]
    before = Snapshot(nodes=tuple(nodes), running=tuple(running))
    broken = {
        node.name for node, (gpu, shares) in zip(nodes, gpus, strict=True) if any(faults(GpuType.of(gpu), {"": shares}))
    }
    sound = tuple(each for each in running if each.assignment.node not in broken)
    now = Fleet.of(msgspec.structs.replace(before, running=sound))
    could, lost = _weights(_kinds(needs), nodes, now)
    free = now.remaining[0] if len(now.remaining) else np.zeros(len(nodes), dtype=np.int64)
    return tuple(
        Stranded()
        if node.name in broken
        else Stranded(
            free_percent=int(free[n]),
            fragmentation_percent=round(100 * int(lost[n]) / int(could[n])) if free[n] > 0 and could[n] else None,
        )
        for n, node in enumerate(nodes)
    )


def _kinds(needs: Iterable[Need]) -> list[tuple[Need, int]]:
    """Return one device of each requested kind, with its number, most frequent first."""
    counts: Counter[tuple[DeviceRequest, tuple[str, ...]]] = Counter()
    for need in needs:
        for request in need.requests:
            counts[msgspec.structs.replace(request, count=1, container=""), need.models] += request.count
    return [
        (Need(requests=(request,), models=models), count)
        for (request, models), count in counts.most_common(_MOST_KINDS)
    ]


def _weights(kinds: Iterable[tuple[Need, int]], nodes: Sequence[Node], now: Fleet) -> tuple[Ints, Ints]:
    """Return for each GPU how many of the requested devices it could serve if empty, and how many of them not now."""
    empty = Fleet(nodes)
    every = np.arange(len(nodes), dtype=np.int64)
    could, lost = np.zeros_like(every), np.zeros_like(every)
    for need, count in kinds:
        able = Demand(need, empty).fits(empty, every)
        could += count * able
        lost += count * (able & ~Demand(need, now).fits(now, every))
    return could, lost
