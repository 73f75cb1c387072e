"""The two potentials of a node that Tessera's policy keeps high: usable idle GPU, and value still completable."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tessera.core.fit import Fleet
from tessera.core.fit.fragmentation import FULL, Typical, percent_of
from tessera.core.fit.gputypes import GpuType, Ints
from tessera.core.pack.cuttingstock import CuttingStock, knapsack

Floats = NDArray[np.float64]

__all__ = ["UNIT", "Usable", "Value"]

UNIT: Final = 16_000_000
"""One GPU of value."""
_CPU_PRICES: Final = np.array([200 * i for i in range(7)], dtype=np.int64)
"""Value of a milli cpu, 0 to 12 / 160 GPU a core; the price that leaves a node least is the one that binds."""
_RESERVE: Final = UNIT // 20
"""Extra value of a free GPU whose model pods name, times the load that names it."""


class Usable:
    """Idle GPU of nodes that pods of the mix can use, no more of it than the node's cpu can feed.

    All sums are weight times percent, in int64. On a node with several GPU types, sizes are those of the first GPU.
    """

    def __init__(self, fleet: Fleet, pods: Sequence[Typical]) -> None:
        self._fleet = fleet
        sizes = np.array([[_size(pod, kind) for kind in fleet.types] for pod in pods], dtype=np.int64)
        sizes = sizes.reshape(len(pods), len(fleet.types))
        gpus = np.array([pod.gpus for pod in pods], dtype=np.int64)
        distinct, self._which = np.unique(np.column_stack((sizes, gpus)), axis=0, return_inverse=True)
        # Floats hold these whole numbers exactly: all sums stay below 2 ** 53.
        self._weight: Floats = np.array([pod.weight for pod in pods], dtype=np.float64)
        self._cpu: Floats = np.array([[max(pod.cpu_milli, 1)] for pod in pods], dtype=np.float64).reshape(-1, 1)
        self._per_pod: Floats = (sizes * gpus[:, None]).astype(np.float64)
        single = distinct[:, -1] == 1
        self._single, self._multi = single.nonzero()[0], (~single).nonzero()[0]
        left = np.arange(FULL + 1)
        least = distinct[:, :-1, None]
        reach = np.where((least > 0) & (left >= least), left, 0).astype(np.float64)
        self._reach: Floats = reach[self._single].reshape(len(self._single), len(fleet.types) * (FULL + 1))
        self._count: Ints = distinct[self._multi, -1:]
        self._serves: Floats = (distinct[self._multi, :-1] > 0).astype(np.float64)

    def of(self, nodes: Ints, left: Ints, cpu: Ints) -> Ints:
        """Return what is usable of each of `nodes` if that much is left of its GPUs and cpu, `(len(nodes),)`.

        Args:
            nodes: node indices.
            left: percent left of each GPU, `(gpus, len(nodes))`.
            cpu: milli cpu left, `(len(nodes),)`.

        """
        kinds = self._fleet.kind.take(nodes, 1)
        first = kinds[0] if len(kinds) else np.zeros_like(nodes)
        idle = np.empty((len(self._single) + len(self._multi), len(nodes)))
        idle[self._single] = np.add.reduce(self._reach.take(kinds * (FULL + 1) + left, axis=1), axis=1)
        if len(self._multi):
            free = np.add.reduce(left == FULL)
            idle[self._multi] = np.where(free >= self._count, free * FULL, 0) * self._serves.take(first, axis=1)
        fed = np.floor(np.maximum(cpu, 0) / self._cpu) * self._per_pod.take(first, axis=1)
        usable: Ints = (self._weight @ np.minimum(idle.take(self._which, axis=0), fed)).astype(np.int64)
        return usable


class Value:
    """How much of an optimal cutting of the mix a node can complete, in `UNIT` a GPU.

    For each price of cpu, a node is worth its cpu at that price and what its GPUs can still hold, every size costing
    less by the cpu its pods take on the mean; the least over the prices is its value.
    """

    def __init__(self, fleet: Fleet, pods: Sequence[Typical], stock: CuttingStock) -> None:
        self._fleet = fleet
        worth = [_worth(kind, pods, stock) for kind in fleet.types]
        extra = _reserves(fleet, pods)
        tables = [table + reserve * np.arange(FULL + 1) // FULL for table, reserve in zip(worth, extra, strict=True)]
        self._table: Ints = np.ascontiguousarray(np.stack(tables, axis=1)).reshape(len(_CPU_PRICES), -1)

    def of(self, nodes: Ints, left: Ints, cpu: Ints) -> Ints:
        """Return the value of each of `nodes` if that much is left of its GPUs and cpu, `(len(nodes),)`."""
        at = self._fleet.kind.take(nodes, 1) * (FULL + 1) + left
        worth = np.add.reduce(self._table.take(at, axis=1), axis=1) + _CPU_PRICES[:, None] * cpu
        value: Ints = np.minimum.reduce(worth)
        return value

    def lost_by_each(self, nodes: Ints, left: Ints, sizes: Ints, cpu: tuple[Ints, Ints]) -> Ints:
        """Return the change of value when one GPU gives `sizes`, for each GPU of `nodes`, `(gpus, len(nodes))`.

        Args:
            nodes: node indices.
            left: percent left of each GPU, `(gpus, len(nodes))`.
            sizes: percent taken, `(gpus, len(nodes))`.
            cpu: milli cpu left before and after, `(len(nodes),)` each.

        """
        at = self._fleet.kind.take(nodes, 1) * (FULL + 1) + left
        now = self._table.take(at, axis=1)
        all_gpus = np.add.reduce(now, axis=1)
        before = np.minimum.reduce(all_gpus + _CPU_PRICES[:, None] * cpu[0])
        without = (all_gpus + _CPU_PRICES[:, None] * cpu[1])[:, None] - now
        after = np.minimum.reduce(without + self._table.take(at - np.minimum(sizes, left), axis=1))
        lost: Ints = after - before
        return lost


def _size(pod: Typical, kind: GpuType) -> int:
    """Return the percent of one GPU that a device of the pod takes; 0 where none can be had."""
    if pod.models and kind.model.name not in pod.models:
        return 0
    return percent_of(pod.asks, kind) or 0


def _worth(kind: GpuType, pods: Sequence[Typical], stock: CuttingStock) -> Ints:
    """Return the most worth that fits what is left of a GPU, for every price of cpu, `(cpu prices, 101)`."""
    demand: dict[int, int] = {}
    cpu: dict[int, int] = {}
    for pod in pods:
        size = percent_of(pod.asks, kind)
        if size:
            demand[size] = demand.get(size, 0) + pod.weight * pod.gpus
            cpu[size] = cpu.get(size, 0) + pod.weight * pod.cpu_milli
    prices = stock.prices(demand)
    sizes = tuple(prices)
    worth = np.array([round(price * UNIT) for price in prices.values()], dtype=np.int64)
    mean_cpu = np.array([cpu[size] // demand[size] for size in sizes], dtype=np.int64)
    return knapsack(sizes, worth - _CPU_PRICES[:, None] * mean_cpu)


def _reserves(fleet: Fleet, pods: Sequence[Typical]) -> list[int]:
    """Return the extra value of a free GPU of each type: the part of its model that pods name, at most all of it."""
    kinds = range(len(fleet.types))
    gpus = np.bincount(fleet.kind.ravel(), minlength=len(fleet.types)).astype(np.int64)
    gpus[0] = 0  # the absent GPU
    total = 0
    named = [0.0 for _ in kinds]
    for pod in pods:
        sizes = [_size(pod, kind) for kind in fleet.types]
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
