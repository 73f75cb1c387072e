"""Fragmentation: idle GPU that the expected pods cannot use, in exact integers, and why, node by node.

For a pod that is typical of the mix, the idle part of a node's GPUs is lost when the node lacks the cpu, the model is
not allowed, or fewer GPUs than it needs have enough left; otherwise the idle part of the GPUs with too little left.
The fragmentation of a node is the mean over the mix.

Source: Weng et al., Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent,
USENIX ATC 2023, section 4.
"""

import enum
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from tessera.core.cluster.gputypes import GpuType, Ints
from tessera.core.gpu.sharing import Mode
from tessera.core.packing.fit.fleet import CPU, Fleet
from tessera.core.packing.fit.spread import Spread
from tessera.core.workload.need import DeviceRequest, Need

__all__ = ["FULL", "Fragmentation", "FragmentationState", "Loss", "Lost", "Typical", "percent_of", "typical"]

FULL: Final = 100
"""Percent of a GPU: the unit of `Fleet.remaining` and of all sizes here; 1 percent is 10 milli."""

_NO_CPU: Final = np.zeros((1, 1), dtype=np.int64)


class Typical(NamedTuple):
    """A typical pod of the mix: all that fragmentation depends on, and its weight."""

    cpu_milli: int
    requests: tuple[DeviceRequest, ...]
    models: tuple[str, ...]
    weight: int

    @property
    def gpus(self) -> int:
        """How many GPUs it takes."""
        return sum(request.count for request in self.requests)


def typical(mix: Iterable[tuple[Need, int]], *, cover_percent: int = FULL) -> tuple[Typical, ...]:
    """Return the distinct pods of a mix, most frequent first, until they cover that share of it.

    Needs that differ only in host memory or in where they may run are one typical pod. Ties keep the mix's order.
    """
    counts: dict[tuple[int, tuple[DeviceRequest, ...], tuple[str, ...]], int] = {}
    for need, count in mix:
        key = need.cpu_milli, need.requests, need.models
        counts[key] = counts.get(key, 0) + count
    target = cover_percent * sum(counts.values())
    found: list[Typical] = []
    covered = 0
    for key, weight in sorted(counts.items(), key=lambda item: -item[1]):
        if FULL * covered >= target:
            break
        covered += weight
        found.append(Typical(*key, weight))
    return tuple(found)


def percent_of(requests: Sequence[DeviceRequest], gpu_type: GpuType) -> int | None:
    """Return the percent of one GPU of this type that one requested device takes, the largest; None if none serves.

    An amount takes the larger of its parts of compute and memory, a MIG instance its part of the memory slices, a
    client its part of the device's; all rounded up.
    """
    sizes = []
    for request in requests:
        options = gpu_type.options(request)
        if not options:
            return None
        option = options[0]
        if option.mode is Mode.WHOLE:
            sizes.append(FULL)
            continue
        memory = -(-FULL * option.memory_mib // gpu_type.memory_mib) if gpu_type.memory_mib else 0
        sizes.append(min(FULL, max(memory, option.compute_percent)))
    return max(sizes, default=0)


class Lost(enum.StrEnum):
    """Why a typical pod cannot use idle GPU of a node."""

    CPU = "cpu"
    MODEL = "model"
    COUNT = "count"
    SIZE = "size"
    NO_GPU = "cpu-only"


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """What one typical pod cannot use of a node's idle GPU."""

    pod: Typical
    milli: int
    """Idle GPU milli it cannot use."""
    why: Lost
    """The cause; for `SIZE` only the GPUs with too little left are lost."""


class FragmentationState(NamedTuple):
    """Where nodes are in the tables of `Fragmentation`."""

    remaining: Ints
    """Percent left of each GPU, `(gpus, nodes)`."""
    free: Ints
    """GPUs entirely free, `(nodes,)`."""
    one: Ints
    """Index into `Fragmentation.one`, `(gpus, cases, nodes)`; falls by 1 for each percent taken."""
    many: Ints
    """Index into `Fragmentation.many`, `(cases, nodes)`; falls by 1 for each free GPU taken."""


class Fragmentation:
    """The fragmentation of nodes under a mix, by table look-ups.

    Pods for one GPU add up over the GPUs of a node, so one table holds what they can use of a GPU. Pods for several
    count the GPUs that are entirely free, whatever part of each they take, and on a node with several GPU types are
    judged by the first GPU's. All sums are weight times percent, in int64.

    Attributes:
        pods: the typical pods.
        weight: their weights together.
        cpus: steps of milli cpu in the tables, ascending.
        one: what pods for one GPU can use of it, `(types, cpu steps, 101)`, flat.
        many: what pods for several can use, `(types, cpu steps, free GPUs)`, flat.

    """

    def __init__(self, fleet: Fleet, pods: Sequence[Typical]) -> None:
        self.pods = tuple(pods)
        self.weight = sum(pod.weight for pod in pods)
        self._types = fleet.types
        self.cpus: Ints = np.unique(np.array([pod.cpu_milli for pod in pods if pod.requests], dtype=np.int64))
        most = len(fleet.kind)
        one = np.zeros((len(fleet.types), len(self.cpus) + 1, FULL + 1), dtype=np.int64)
        many = np.zeros((len(fleet.types), len(self.cpus) + 1, most + 1), dtype=np.int64)
        for kind, gpu_type in enumerate(fleet.types):
            for pod in pods:
                size = _size(pod, gpu_type)
                if size is not None:
                    reach, least = (one, size) if pod.gpus == 1 else (many, pod.gpus)
                    reach[kind, np.searchsorted(self.cpus, pod.cpu_milli) + 1 :, least:] += pod.weight
        self.one: Ints = (one * np.arange(FULL + 1)).ravel()
        self.many: Ints = (many * FULL * np.arange(most + 1)).ravel()
        kinds = np.arange(len(fleet.types))
        self._one_of = Spread(fleet, kinds * one[0].size)
        self._many_of = Spread(fleet, kinds * many[0].size, first=True)
        self._one_row = FULL + 1
        self._many_row = most + 1

    def state(self, fleet: Fleet, nodes: Ints, cpu_milli: Ints) -> FragmentationState:
        """Return where `nodes` are in the tables after `cpu_milli` more is taken, a column of cases."""
        level = self.cpus.searchsorted(fleet.room[CPU].take(nodes) - cpu_milli, side="right")
        remaining = fleet.remaining.take(nodes, 1)
        free: Ints = np.add.reduce(remaining == FULL)
        one = (self._one_of.values.take(nodes, 1) + remaining)[:, None] + level * self._one_row
        many = self._many_of.values.take(nodes) + free + level * self._many_row
        return FragmentationState(remaining, free, one, many)

    def usable_in(self, state: FragmentationState) -> Ints:
        """Return what the typical pods can use of each node, weight times percent, `(cases, nodes)`."""
        usable: Ints = np.add.reduce(self.one.take(state.one)) + self.many.take(state.many)
        return usable

    def usable(self, fleet: Fleet, nodes: Ints) -> Ints:
        """Return what the typical pods can use of each of `nodes`, `(len(nodes),)`, weight times percent."""
        usable: Ints = self.usable_in(self.state(fleet, nodes, _NO_CPU))[0]
        return usable

    def amount(self, fleet: Fleet, nodes: Ints) -> Ints:
        """Return the fragmentation of each of `nodes`, `(len(nodes),)`, weight times percent."""
        idle: Ints = fleet.remaining.take(nodes, 1).sum(0)
        return self.weight * idle - self.usable(fleet, nodes)

    def explain(self, fleet: Fleet, node: int) -> tuple[Loss, ...]:
        """Return what every typical pod cannot use of a node's idle GPU and why, most frequent pods first.

        The losses weighted by the pods add up to `amount`, at 10 milli a percent.
        """
        kinds = fleet.kind[:, node].tolist()
        remaining = fleet.remaining[:, node].tolist()
        cpu = int(fleet.room[CPU, node])
        return tuple(self._loss(pod, kinds, remaining, cpu) for pod in self.pods)

    def _loss(self, pod: Typical, kinds: list[int], remaining: list[int], cpu: int) -> Loss:
        sizes = [_size(pod, self._types[kind]) for kind in kinds]
        lost, why = sum(remaining), Lost.SIZE
        if not pod.requests:
            why = Lost.NO_GPU
        elif pod.cpu_milli > cpu:
            why = Lost.CPU
        elif all(size is None for size in sizes):
            why = Lost.MODEL
        elif pod.gpus == 1:
            lost = sum(own for own, size in zip(remaining, sizes, strict=True) if size is None or own < size)
        elif sizes[0] is None or remaining.count(FULL) < pod.gpus:
            why = Lost.COUNT
        else:
            lost = sum(own for own in remaining if own < FULL)
        return Loss(pod=pod, milli=10 * lost, why=why)


def _size(pod: Typical, gpu_type: GpuType) -> int | None:
    """Return the percent of one GPU that a device of the pod takes; None where there is none."""
    if not pod.requests or (pod.models and gpu_type.model.name not in pod.models):
        return None
    return percent_of(pod.requests, gpu_type)
