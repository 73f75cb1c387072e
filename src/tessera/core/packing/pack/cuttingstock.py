"""Prices of GPU request sizes, by the one-dimensional cutting-stock problem.

The fewest GPUs that serve a mix of sizes, divided freely, are the optimum of a linear program over patterns of sizes
that fit one GPU. Its dual prices are the part of a GPU that one request of a size costs: a set of requests on one GPU
is worth at most 1, and an optimal pattern exactly 1.

Source: Gilmore and Gomory, A Linear Programming Approach to the Cutting-Stock Problem, Operations Research 9 (1961).
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tessera.core.packing.linear import LinearProgram

__all__ = ["CuttingStock", "knapsack"]

FULL: Final = 100
_TOLERANCE: Final = 1e-6
"""HiGHS' tolerance: a pattern is better only by more than this."""


class CuttingStock:
    """Prices of sizes in percent of a GPU; remembers good patterns, so that the next mix is solved in a few rounds."""

    def __init__(self) -> None:
        self._patterns: dict[tuple[int, ...], dict[int, int]] = {}

    def prices(self, demand: Mapping[int, int]) -> dict[int, float]:
        """Return the price of each size, in GPUs, for a demand of requests of each size, 1 to 100 percent.

        Patterns are generated as they are needed; ties between optimal prices go as HiGHS decides, the same each time
        for the same sequence of demands.
        """
        sizes = tuple(sorted(size for size, count in demand.items() if count))
        if not sizes:
            return {}
        total = sum(demand[size] for size in sizes)
        pool = dict(self._patterns)
        for size in sizes:
            pool.setdefault((size,), {size: FULL // size})
        while True:  # ends: every round adds a new pattern, and there are finitely many
            prices = _dual(sizes, [demand[size] / total for size in sizes], pool)
            worth, pattern = _best_pattern(sizes, prices)
            if worth <= 1 + _TOLERANCE:
                return dict(zip(sizes, prices, strict=True))
            key = tuple(size for size, count in sorted(pattern.items()) for _ in range(count))
            pool[key] = self._patterns[key] = pattern


def knapsack(sizes: Sequence[int], prices: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the most worth that fits into the rest of a GPU, `(rows, 101)`, for prices `(rows, len(sizes))`.

    Requests may be repeated; worthless ones are left out. Column c is for c percent left.
    """
    best = np.zeros((len(prices), FULL + 1), dtype=np.int64)
    for size, price in zip(sizes, prices.T, strict=True):
        for room in range(size, FULL + 1, size):  # as much room as the size at once: each with one more request of it
            rest = best[:, room : room + size]
            np.maximum(rest, best[:, room - size :][:, : rest.shape[1]] + price[:, None], out=rest)
    return best


def _dual(
    sizes: Sequence[int], weights: Sequence[float], pool: Mapping[tuple[int, ...], Mapping[int, int]]
) -> list[float]:
    program = LinearProgram()
    price = {size: program.variable(high=1.0) for size in sizes}
    for pattern in pool.values():
        program.row({price[size]: float(count) for size, count in pattern.items() if size in price}, high=1.0)
    objective = {price[size]: weight for size, weight in zip(sizes, weights, strict=True)}
    return [max(value, 0.0) for value in program.maximize(objective).values]


def _best_pattern(sizes: Sequence[int], prices: Sequence[float]) -> tuple[float, dict[int, int]]:
    """Return the most valuable way to fill one GPU and its worth."""
    worth = [0.0] * (FULL + 1)
    last = [0] * (FULL + 1)
    for room in range(1, FULL + 1):
        worth[room] = worth[room - 1]
        for size, price in zip(sizes, prices, strict=True):
            if size <= room and worth[room - size] + price > worth[room] + _TOLERANCE:
                worth[room], last[room] = worth[room - size] + price, size
    pattern: dict[int, int] = {}
    room = FULL
    while room > 0:
        size = last[room]
        if size:
            pattern[size] = pattern.get(size, 0) + 1
        room -= size or 1
    return worth[FULL], pattern
