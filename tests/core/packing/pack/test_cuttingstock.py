"""Prices of sizes: published cases, and the linear program over all patterns."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tessera.core.packing.linear import LinearProgram
from tessera.core.packing.pack.cuttingstock import CuttingStock, knapsack

# Keyed by a sentence: the demand in percent of a GPU, the price of each size in GPUs.
PRICES: dict[str, tuple[dict[int, int], dict[int, float]]] = {
    "a whole GPU costs a GPU": ({100: 3}, {100: 1.0}),
    "two halves make a GPU": ({50: 4}, {50: 0.5}),
    "a size that leaves nothing useful costs what it blocks": ({81: 5, 47: 5}, {81: 1.0, 47: 0.5}),
    "a filler of what others leave is free while it is rare": ({81: 9, 19: 3}, {81: 1.0, 19: 0.0}),
    "no demand has no price": ({}, {}),
    "a size that nobody asks has no price": ({30: 0}, {}),
}


@pytest.mark.parametrize("sentence", PRICES)
def test_prices(sentence: str) -> None:
    demand, want = PRICES[sentence]
    assert CuttingStock().prices(demand) == pytest.approx(want)


def patterns(sizes: tuple[int, ...]) -> list[tuple[int, ...]]:
    ranges = [range(100 // size + 1) for size in sizes]
    return [c for c in itertools.product(*ranges) if sum(n * s for n, s in zip(c, sizes, strict=True)) <= 100]


DEMANDS = st.dictionaries(st.integers(15, 100), st.integers(1, 30), min_size=1, max_size=4)


@settings(max_examples=30, deadline=None)
@given(st.lists(DEMANDS, min_size=1, max_size=3))
def test_prices_are_optimal_whatever_was_asked_before(demands: list[dict[int, int]]) -> None:
    stock = CuttingStock()
    for demand in demands:
        prices = stock.prices(demand)
        sizes = tuple(sorted(demand))
        program = LinearProgram()
        used = [(program.variable(), pattern) for pattern in patterns(sizes)]
        for i, size in enumerate(sizes):
            program.row({v: float(pattern[i]) for v, pattern in used}, low=demand[size])
        fewest = program.minimize({v: 1.0 for v, _ in used}).objective
        assert sum(prices[size] * demand[size] for size in sizes) == pytest.approx(fewest, rel=1e-5)
        assert all(sum(n * prices[s] for n, s in zip(p, sizes, strict=True)) <= 1 + 1e-6 for _, p in used)


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.integers(15, 100), st.integers(-50, 90), min_size=1, max_size=4))
@example({50: 40})  # fills the GPU exactly
def test_knapsack_equals_enumeration(worth: dict[int, int]) -> None:
    sizes = tuple(sorted(worth))
    got = knapsack(sizes, np.array([[worth[size] for size in sizes]], dtype=np.int64))
    for room in range(101):
        fitting = (c for c in patterns(sizes) if sum(n * s for n, s in zip(c, sizes, strict=True)) <= room)
        want = max(sum(n * worth[s] for n, s in zip(c, sizes, strict=True)) for c in fitting)
        assert got[0, room] == want
