"""Tables of MIG placement policies, checked against enumeration and HiGHS on small GPUs."""

import itertools
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.core.gpumodels import GpuModel, Profile
from tessera.core.linear import Program
from tessera.core.mig import Placement
from tessera.core.pack import migscore
from tessera.core.pack.migscore import NEVER, MigPolicy, occupy, release, state_of, states, tables


def _profile(
    name: str, slices: int, size: int, starts: tuple[int, ...], media: Literal["default", "me", "full"] = "default"
) -> Profile:
    return Profile(
        name=name,
        compute_slices=slices,
        size=size,
        starts=starts,
        max_instances=len(starts),
        memory_mib=size * 1024,
        media=media,
        placement="observed",
    )


SEVEN = GpuModel(
    name="seven",
    arch="Hopper",
    memory_mib=8 * 1024,
    units=8,
    compute_slices=7,
    at_most_one=("me",),
    profiles=(
        _profile("1g", 1, 1, (0, 1, 2, 3, 4, 5, 6)),
        _profile("1g+me", 1, 1, (0, 1, 2, 3, 4, 5, 6), "me"),
        _profile("1g2m", 1, 2, (0, 2, 4, 6)),
        _profile("2g", 2, 2, (0, 2, 4)),
        _profile("3g", 3, 4, (0, 4)),
        _profile("4g", 4, 4, (0,)),
        _profile("7g", 7, 8, (0,), "full"),
    ),
)
UNKNOWN = GpuModel(
    name="unknown", arch="", memory_mib=1, at_most_one=("me",), profiles=(_profile("1g", 1, 0, ()),), compute_slices=4
)
COMPUTE = (1, 0, 1, 1, 1, 1, 1)
MIXES = {
    "uniform": COMPUTE,
    "small": (12, 0, 6, 8, 4, 2, 1),
    "large": (1, 0, 1, 2, 4, 3, 2),
    "no double memory": (4, 0, 0, 3, 2, 0, 0),
}
mixes = st.tuples(*(st.integers(0, 20) for _ in SEVEN.profiles))


def _completions(state: int) -> set[tuple[int, ...]]:
    """All instance counts that fit the free units, by brute force over sets of placements."""
    found = set()
    spots = [(p, start) for p, profile in enumerate(SEVEN.profiles) for start in profile.starts]

    def extend(state: int, first: int, counts: tuple[int, ...]) -> None:
        found.add(counts)
        for number in range(first, len(spots)):
            p, start = spots[number]
            if not state & occupy(SEVEN, 0, p, start):
                more = (*counts[:p], counts[p] + 1, *counts[p + 1 :])
                extend(occupy(SEVEN, state, p, start), number + 1, more)

    extend(state, 0, (0,) * len(SEVEN.profiles))
    return found


def test_a_state_has_a_bit_per_unit_and_per_media_kind() -> None:
    assert states(SEVEN) == 512
    assert states(UNKNOWN) == 1
    state = occupy(SEVEN, 0, 4, 4)
    assert state == 0b0_1111_0000
    assert occupy(SEVEN, state, 1, 2) == 0b1_1111_0100
    assert release(SEVEN, 0b1_1111_0100, 1, 2) == state
    layout = (Placement(start=2, size=1, profile="1g+me"), Placement(start=4, size=4, profile="3g"))
    assert state_of(SEVEN, layout) == 0b1_1111_0100


@pytest.mark.parametrize("policy", MigPolicy)
@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES)
def test_a_start_is_given_exactly_where_the_profile_fits(policy: MigPolicy, mix: tuple[int, ...]) -> None:
    got = tables(SEVEN, policy, mix)
    assert got.score.shape == got.start.shape == (7, 512)
    for (p, profile), state in itertools.product(enumerate(SEVEN.profiles), range(512)):
        fits = [start for start in profile.starts if not state & occupy(SEVEN, 0, p, start)]
        start = int(got.start[p, state])
        assert (start in fits) if fits else (start == -1)
        assert (got.score[p, state] > NEVER) == bool(fits)


@pytest.mark.parametrize("policy", MigPolicy)
def test_a_model_without_known_placements_never_fits(policy: MigPolicy) -> None:
    got = tables(UNKNOWN, policy, (3,))
    assert (got.score == NEVER).all()
    assert (got.start == -1).all()


def test_tables_are_kept_and_cannot_be_written() -> None:
    got = tables(SEVEN, MigPolicy.PRICE, COMPUTE)
    assert tables(SEVEN, MigPolicy.PRICE, COMPUTE) is got
    with pytest.raises(ValueError, match="read-only"):
        got.score[0, 0] = 1


def test_without_arrivals_every_profile_counts_once() -> None:
    nothing, once = ((n,) * 7 for n in (0, 1))
    for policy in MigPolicy:
        assert (tables(SEVEN, policy, nothing).score == tables(SEVEN, policy, once).score).all()


@settings(max_examples=30, deadline=None)
@given(mixes)
def test_prices_are_the_optimal_duals_of_cutting_stock(mix: tuple[int, ...]) -> None:
    shape = migscore._shape(SEVEN)
    weights = migscore._weights(shape, mix)
    prices = migscore._prices(shape, weights)
    gpu = max(int(np.dot(prices, pattern)) for pattern in shape.patterns)
    program = Program()
    price = [program.variable() for _ in weights]
    for pattern in shape.patterns:
        program.row(dict(zip(price, pattern, strict=True)), high=1)
    want = program.maximise(dict(zip(price, weights, strict=True)))
    assert (prices >= 0).all()
    assert np.dot(prices, weights) / gpu == pytest.approx(want.objective)
    assert all(weights[kind] or not prices[kind] for kind in range(7))


def test_patterns_are_the_maximal_counts_of_layouts() -> None:
    every = _completions(0)
    want = {c for c in every if not any(c != d and all(map(int.__le__, c, d)) for d in every)}
    assert set(migscore._shape(SEVEN).patterns) == want
    assert len({c for c in want if not c[1]} | {(c[0] + c[1], 0, *c[2:]) for c in want}) >= 28


def test_price_loses_exactly_the_best_completion() -> None:
    mix = MIXES["no double memory"]
    shape = migscore._shape(SEVEN)
    prices = migscore._prices(shape, migscore._weights(shape, mix))
    best = [max(int(np.dot(prices, counts)) for counts in _completions(state)) for state in range(0, 512, 7)]
    got = tables(SEVEN, MigPolicy.PRICE, mix)
    for state, before in zip(range(0, 512, 7), best, strict=True):
        for p, profile in enumerate(SEVEN.profiles):
            after = [occupy(SEVEN, state, p, s) for s in profile.starts if not state & occupy(SEVEN, 0, p, s)]
            want = max((max(int(np.dot(prices, c)) for c in _completions(a)) - before for a in after), default=NEVER)
            assert got.score[p, state] == want


def test_fragmentation_is_what_each_profile_cannot_use() -> None:
    got = tables(SEVEN, MigPolicy.FRAGMENTATION_MIN, (0, 0, 0, 0, 1, 0, 1))
    # empty GPU: 3g strands nothing of itself, 7g loses all 8; a 1g at 0 strands 3 + 7 units, at 4 as many
    assert got.score[0, 0] == -(3 + 7)
    assert got.start[0, 0] == 0
    # beside it the second 1g strands one unit less of both
    assert got.score[0, 1] == 2
    assert got.start[0, 1] == 1


SCORES = {
    "first-fit scores every place alike, lowest start": (MigPolicy.FIRST_FIT, 3, 0b0_0000_0011, 0, 2),
    "best-fit scores the fewest free units before": (MigPolicy.BEST_FIT, 3, 0b0_0000_0011, -6, 2),
    "max-room takes the start that blocks least": (MigPolicy.MAX_ROOM, 0, 0b0_1011_1100, -2, 6),
}


@pytest.mark.parametrize("name", SCORES)
def test_simple_policies(name: str) -> None:
    policy, profile, state, want_score, want_start = SCORES[name]
    got = tables(SEVEN, policy, COMPUTE)
    assert (got.score[profile, state], got.start[profile, state]) == (want_score, want_start)
