"""The two potentials of a node that Tessera's policy keeps high: usable idle GPU, and completable value."""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from tessera.core.cluster.gputypes import GpuType, Ints
from tessera.core.packing.fit import Fleet
from tessera.core.packing.fit.fragmentation import FULL, Typical, percent_of
from tessera.core.packing.fit.spread import Spread
from tessera.core.packing.pack.cuttingstock import CuttingStock, knapsack

__all__ = ["CPU_PRICES", "UNIT", "NodeValue", "Usable"]

UNIT: Final = 16_000_000
"""One GPU of value."""
CPU_PRICES: Final = np.array([200 * i for i in range(7)], dtype=np.int64)
"""Value of a milli cpu, 0 to 12 / 160 GPU a core; the price with the least value of a node is the one that binds."""
_RESERVE: Final = UNIT // 20
"""Extra value of a GPU whose model pods name, times the load that names it, in proportion to its rest."""
_FREE: Final = UNIT // 20
"""Extra value of a GPU that is entirely free, so that GPUs in use are taken first."""
_RARE: Final = 10
"""Every observed size counts as this part of the mean size more, so that few arrivals do not decide its price."""


class Usable:
    """Idle GPU of nodes that pods of the mix can use, limited by what the node's cpu can feed.

    The GPUs of a node are fed one after the other, the emptiest first: pods for one GPU can use the n-th if its idle
    part holds one of them, and the cpu is enough to fill n GPUs with them. Pods for several use whole groups of free
    GPUs, as many as the cpu is enough for. All sums are weight times percent, in int64. On a node with several GPU
    types, all GPUs count as the first one's.

    Attributes:
        cpus: steps of milli cpu in the tables, ascending.
        one: what pods for one GPU can use of it, `(types, cpu steps, 101)`.
        many: what pods for several can use, `(groups, types, cpu steps, free GPUs)`.

    """

    def __init__(self, fleet: Fleet, pods: Sequence[Typical]) -> None:
        self._fleet = fleet
        types, most = len(fleet.types), len(fleet.kind)
        able = [
            (kind, pod, size) for pod in pods for kind, each in enumerate(fleet.types) if (size := _size(pod, each))
        ]
        # milli cpu that feeds one GPU of idle: enough pods to fill it, or one that takes several
        fed_by = np.array(
            [-(-pod.cpu_milli * FULL // size) if pod.gpus == 1 else pod.cpu_milli for _, pod, size in able]
        )
        self.cpus: Ints = np.unique(fed_by).astype(np.int64)
        self._groups = most // 2
        one = np.zeros((types, len(self.cpus) + 1, FULL + 1), dtype=np.int64)
        many = np.zeros((self._groups, types, len(self.cpus) + 1, most + 1), dtype=np.int64)
        free = np.arange(most + 1)
        for (kind, pod, size), level in zip(able, self.cpus.searchsorted(fed_by) + 1, strict=True):
            if pod.gpus == 1:
                one[kind, level, size] += pod.weight
                continue
            for group in range(self._groups):
                used = np.clip(free - group * pod.gpus, 0, pod.gpus) * (free >= pod.gpus)
                many[group, kind, level] += pod.weight * FULL * used
        self.one: Ints = one.cumsum(axis=1).cumsum(axis=2) * np.arange(FULL + 1)
        self.many: Ints = many.cumsum(axis=2)
        kinds = np.arange(types)
        self._one_of = Spread(fleet, kinds * one[0].size, first=True)
        self._many_of = Spread(fleet, kinds * many[0, 0].size if most > 1 else kinds, first=True)
        self._group_at: Ints = (np.arange(self._groups) * (many[0].size if most > 1 else 0))[:, None]
        self._nth: Ints = np.arange(1, most + 1)[:, None]

    def of(self, nodes: Ints, remaining: Ints, cpu: Ints) -> Ints:
        """Return the usable part of each of `nodes` with this much of its GPUs and cpu left, `(len(nodes),)`.

        Args:
            nodes: node indices.
            remaining: percent left of each GPU, `(gpus, len(nodes))`.
            cpu: milli cpu left, `(len(nodes),)`.

        """
        level = self.cpus.searchsorted(cpu // self._nth, side="right")
        emptiest = np.sort(remaining, axis=0)[::-1]
        usable: Ints = np.add.reduce(self.one.take(self._one_of.values.take(nodes) + level * (FULL + 1) + emptiest))
        if self._groups:
            free = np.add.reduce(remaining == FULL)
            at = self._group_at + self._many_of.values.take(nodes) + level[: self._groups] * (len(self._nth) + 1) + free
            usable = usable + np.add.reduce(self.many.take(at))
        return usable


class NodeValue:
    """How much of an optimal division for the mix a node can complete, in `UNIT` a GPU.

    For each price of cpu, a node is worth its cpu at that price and what its GPUs can still hold, every size costing
    less by the cpu its pods take on the mean; the least over the prices is its value. A GPU of the most memory in the
    fleet is worth `UNIT`, others as much less as they have less memory, so that pods leave large GPUs to those that
    need them.

    Attributes:
        table: the value of the rest of a GPU, `(cpu prices, types x 101)`.

    """

    def __init__(self, fleet: Fleet, pods: Sequence[Typical], stock: CuttingStock) -> None:
        self._fleet = fleet
        tables = [
            (_worth(kind, pods, stock) + free) * size // FULL
            for kind, free, size in zip(fleet.types, _extras(fleet, pods), _sizes(fleet), strict=True)
        ]
        self.table: Ints = np.ascontiguousarray(np.stack(tables, axis=1)).reshape(len(CPU_PRICES), -1)

    def of(self, nodes: Ints, remaining: Ints, cpu: Ints) -> Ints:
        """Return the value of each of `nodes` with this much of its GPUs and cpu left, `(len(nodes),)`."""
        at = self._fleet.kind.take(nodes, 1) * (FULL + 1) + remaining
        worth = np.add.reduce(self.table.take(at, axis=1), axis=1) + CPU_PRICES[:, None] * cpu
        value: Ints = np.minimum.reduce(worth)
        return value

    def lost_by_each(self, nodes: Ints, remaining: Ints, sizes: Ints, cpu: tuple[Ints, Ints]) -> Ints:
        """Return the change of value when one GPU gives `sizes`, for each GPU of `nodes`, `(gpus, len(nodes))`.

        Args:
            nodes: node indices.
            remaining: percent left of each GPU, `(gpus, len(nodes))`.
            sizes: percent taken, `(gpus, len(nodes))`.
            cpu: milli cpu left before and after, `(len(nodes),)` each.

        """
        at = self._fleet.kind.take(nodes, 1) * (FULL + 1) + remaining
        now = self.table.take(at, axis=1)
        all_gpus = np.add.reduce(now, axis=1)
        before = np.minimum.reduce(all_gpus + CPU_PRICES[:, None] * cpu[0])
        without = (all_gpus + CPU_PRICES[:, None] * cpu[1])[:, None] - now
        after = np.minimum.reduce(without + self.table.take(at - np.minimum(sizes, remaining), axis=1))
        lost: Ints = after - before
        return lost


def _size(pod: Typical, kind: GpuType) -> int:
    """Return the percent of one GPU that a device of the pod takes; 0 for none."""
    if pod.models and kind.model.name not in pod.models:
        return 0
    return percent_of(pod.requests, kind) or 0


def _worth(kind: GpuType, pods: Sequence[Typical], stock: CuttingStock) -> Ints:
    """Return the most worth that fits into the rest of a GPU, for every price of cpu, `(cpu prices, 101)`."""
    demand: dict[int, int] = {}
    cpu: dict[int, int] = {}
    for pod in pods:
        size = percent_of(pod.requests, kind)
        if size:
            demand[size] = demand.get(size, 0) + pod.weight * pod.gpus
            cpu[size] = cpu.get(size, 0) + pod.weight * pod.cpu_milli
    rare = sum(demand.values()) // (_RARE * max(len(demand), 1))
    prices = stock.prices({size: count + rare for size, count in demand.items()})
    sizes = tuple(prices)
    worth = np.array([round(price * UNIT) for price in prices.values()], dtype=np.int64)
    mean_cpu = np.array([cpu[size] // demand[size] for size in sizes], dtype=np.int64)
    return knapsack(sizes, worth - CPU_PRICES[:, None] * mean_cpu)


def _sizes(fleet: Fleet) -> list[int]:
    """Return the percent of the largest GPU's memory that each type has; `FULL` for unknown memory."""
    present = fleet.census > 0
    most = max((kind.memory_mib for kind, there in zip(fleet.types, present, strict=True) if there), default=0)
    return [-(-FULL * kind.memory_mib // most) if kind.memory_mib and most else FULL for kind in fleet.types]


def _extras(fleet: Fleet, pods: Sequence[Typical]) -> Iterator[Ints]:
    """Yield for each GPU type the worth of a GPU's rest beyond its capacity, `(101,)`."""
    remaining = np.arange(FULL + 1)
    for reserve in _reserves(fleet, pods):
        yield reserve * remaining // FULL + _FREE * (remaining == FULL)


def _reserves(fleet: Fleet, pods: Sequence[Typical]) -> list[int]:
    """Return the extra value of a free GPU of each type: the part of its model that pods name, at most all of it."""
    kinds = range(len(fleet.types))
    gpus = fleet.census
    total = 0
    named = [0.0 for _ in kinds]
    for pod in pods:
        sizes = [_size(pod, kind) if gpus[k] else 0 for k, kind in enumerate(fleet.types)]
        most = max(sizes) * pod.gpus * pod.weight
        total += most
        able = sum(int(gpus[k]) for k in kinds if sizes[k])
        if pod.models and able:
            for k in kinds:
                named[k] += most * int(gpus[k]) / able if sizes[k] else 0
    all_gpus = int(gpus.sum())
    return [
        int(_RESERVE * min(1.0, named[k] / total * all_gpus / int(gpus[k]))) if total and gpus[k] else 0 for k in kinds
    ]
