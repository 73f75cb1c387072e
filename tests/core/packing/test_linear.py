"""Programs with known answers, and integer programs against enumeration."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.core.packing.linear import LinearProgram, TimeBudget


def test_a_textbook_program_with_its_prices() -> None:
    """Dantzig's example: 3x + 5y under x <= 4, 2y <= 12, 3x + 2y <= 18 is 36 at (2, 6), prices 0, 3/2, 1."""
    program = LinearProgram()
    x, y = program.variable(), program.variable()
    rows = [program.row({x: 1}, high=4), program.row({y: 2}, high=12), program.row({x: 3, y: 2}, high=18)]
    got = program.maximize({x: 3, y: 5})
    assert got.optimal
    assert got.feasible
    assert got.values == pytest.approx((2, 6))
    assert got.objective == got.bound == pytest.approx(36)
    assert [got.duals[row] for row in rows] == pytest.approx([0, 1.5, 1])


def test_minimize_respects_lower_rows() -> None:
    program = LinearProgram()
    x = program.variable(high=10)
    program.row({x: 2}, low=5)
    assert program.minimize({x: 1}, limit_s=10).objective == pytest.approx(2.5)


def test_what_cannot_be_is_not_feasible() -> None:
    program = LinearProgram()
    x = program.variable(high=1, integer=True)
    program.row({x: 1}, low=2)
    got = program.maximize({x: 1})
    assert not got.feasible
    assert not got.optimal


def test_what_cannot_be_has_no_bound() -> None:
    program = LinearProgram()
    program.row({program.variable(high=1, integer=True): 1}, low=2)
    assert program.maximize({0: 1}).bound == math.inf
    assert program.minimize({0: 1}).bound == -math.inf


def test_a_start_is_kept_where_no_time_is_left() -> None:
    """One that is not feasible is passed over."""
    program = LinearProgram()
    taken = [program.variable(high=9, integer=True) for _ in range(3)]
    program.row(dict.fromkeys(taken, 7.0), high=30)
    assert set(program.lows) == {0}
    terms = {v: float(1 + v) for v in taken}
    got = program.maximize(terms, limit_s=0, start=(1, 1, 0))
    assert got.feasible
    assert got.objective >= 3
    assert program.maximize(terms, start=(9, 9, 9)).objective == pytest.approx(12)


def test_what_a_part_of_a_budget_spends_the_whole_has_spent() -> None:
    whole = TimeBudget(10)
    first, all_that_is_left = whole.part(4), whole.part(99)
    first.spend(3)
    assert (whole.left_s, first.left_s, all_that_is_left.left_s) == (7, 1, 10)
    assert whole.part(99).left_s == 7
    all_that_is_left.spend(8)
    assert whole.left_s < 0
    assert TimeBudget().left_s == math.inf


def test_an_empty_program_is_met_or_not() -> None:
    program = LinearProgram()
    assert program.maximize({}).optimal
    program.row({}, low=1)
    assert not program.maximize({}).feasible


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=5),
    st.integers(0, 20),
    st.integers(0, 20),
)
def test_knapsacks_equal_enumeration(items: list[tuple[int, int, int]], room: int, weight: int) -> None:
    program = LinearProgram()
    taken = [program.variable(high=2, integer=True) for _ in items]
    program.row({v: float(item[1]) for v, item in zip(taken, items, strict=True)}, high=room)
    program.row({v: float(item[2]) for v, item in zip(taken, items, strict=True)}, high=weight)
    got = program.maximize({v: float(item[0]) for v, item in zip(taken, items, strict=True)})
    choices = itertools.product(range(3), repeat=len(items))
    sums = ([sum(n * item[i] for n, item in zip(c, items, strict=True)) for i in range(3)] for c in choices)
    want = max(value for value, a, b in sums if a <= room and b <= weight)
    assert round(got.objective) == want
    assert got.bound == pytest.approx(want)
