"""Tables of MIG placement policies, checked against enumeration and HiGHS on small GPUs."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.core.gpu import mig
from tessera.core.gpu.gpumodels import GpuModel, model
from tessera.core.gpu.gpumodels.names import CATALOG
from tessera.core.gpu.mig import Placement
from tessera.core.packing.linear import LinearProgram
from tessera.core.packing.pack import migscore
from tessera.core.packing.pack.migscore import NEVER, MigPolicy, occupy, release, state_of, states, tables

SEVEN = model("H100-80GB")
UNKNOWN = model("RTX-PRO-5000-Blackwell-48GB")
COMPUTE = (1, 0, 1, 1, 1, 1, 1)
MIXES = {
    "nothing yet": (0, 0, 0, 0, 0, 0, 0),
    "uniform": tuple(100 * weight for weight in COMPUTE),
    "small": (1200, 0, 600, 800, 400, 200, 100),
    "with media engines": (400, 300, 0, 300, 200, 0, 10),
    "no double memory": (400, 0, 0, 300, 200, 0, 0),
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
    layout = (Placement(start=2, size=1, profile="1g.10gb+me"), Placement(start=4, size=4, profile="3g.40gb"))
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
    got = tables(UNKNOWN, policy, (3,) * len(UNKNOWN.profiles))
    assert (got.score == NEVER).all()
    assert (got.start == -1).all()


def test_tables_are_kept_and_cannot_be_written() -> None:
    got = tables(SEVEN, MigPolicy.PRICE, COMPUTE)
    assert tables(SEVEN, MigPolicy.PRICE, COMPUTE) is got
    with pytest.raises(ValueError, match="read-only"):
        got.score[0, 0] = 1


def test_few_arrivals_are_joined_by_one_of_each_profile() -> None:
    shape = migscore._shape(SEVEN)
    assert migscore._weights(shape, (0, 0, 0, 0, 0, 0, 0)).tolist() == [1, 0, 1, 1, 1, 1, 1]
    assert migscore._weights(shape, (62, 1, 0, 0, 0, 0, 0)).tolist() == [63, 1, 1, 1, 1, 1, 1]
    assert migscore._weights(shape, (63, 1, 0, 0, 0, 0, 0)).tolist() == [63, 1, 0, 0, 0, 0, 0]


def test_large_counts_are_scaled_down() -> None:
    weights = migscore._weights(migscore._shape(SEVEN), (3 << 40, 0, 0, 1 << 40, 0, 0, 0))
    assert weights.tolist() == [3 << 18, 0, 0, 1 << 18, 0, 0, 0]


def test_models_with_equal_placements_share_the_work() -> None:
    assert migscore._shape(model("A100-40GB")) is migscore._shape(SEVEN)


@settings(max_examples=30, deadline=None)
@given(mixes.filter(any))
def test_prices_are_the_optimal_duals_of_cutting_stock(mix: tuple[int, ...]) -> None:
    shape = migscore._shape(SEVEN)
    near = migscore._near(np.array(mix, np.int64))
    for weights, prices, gpu in zip(near, *migscore._prices(shape, near), strict=True):
        program = LinearProgram()
        price = [program.variable() for _ in weights]
        for pattern in shape.patterns:
            program.row({price[kind]: float(count) for kind, count in enumerate(pattern)}, high=1)
        want = program.maximize({price[kind]: float(weight) for kind, weight in enumerate(weights)})
        assert all(np.dot(prices, pattern) <= gpu for pattern in shape.patterns)
        assert np.dot(prices, weights) / gpu == pytest.approx(want.objective)
        assert (prices >= 0).all()
        assert not prices[weights == 0].any()


def test_patterns_are_the_maximal_counts_of_layouts() -> None:
    names = [profile.name for profile in SEVEN.profiles]
    want = {tuple(dict(counts).get(name, 0) for name in names) for counts in mig.maximal_counts(SEVEN)}
    assert set(migscore._shape(SEVEN).patterns) == want
    assert len([counts for counts in want if not counts[1]]) == 28


def test_price_loses_exactly_the_best_completion() -> None:
    mix = MIXES["no double memory"]
    shape = migscore._shape(SEVEN)
    prices = migscore._prices(shape, [migscore._weights(shape, mix)])[0][0]
    best = [max(int(np.dot(prices, counts)) for counts in _completions(state)) for state in range(0, 512, 7)]
    got = tables(SEVEN, MigPolicy.PRICE, mix)
    for state, before in zip(range(0, 512, 7), best, strict=True):
        for p, profile in enumerate(SEVEN.profiles):
            after = [occupy(SEVEN, state, p, s) for s in profile.starts if not state & occupy(SEVEN, 0, p, s)]
            want = max((max(int(np.dot(prices, c)) for c in _completions(a)) - before for a in after), default=NEVER)
            assert got.score[p, state] == want


def test_fragmentation_is_what_each_profile_cannot_use() -> None:
    got = tables(SEVEN, MigPolicy.FRAGMENTATION_MIN, (0, 0, 0, 0, 100, 0, 100))
    # on an empty GPU 3g and 7g can use all; beside a 1g, anywhere, 3g cannot use 3 of the 7 free units and 7g none
    assert got.score[0, 0] == -100 * (3 + 7)
    assert got.start[0, 0] == 0
    # a second 1g beside it takes a unit that neither could use
    assert got.score[0, 1] == 100 * 2
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


def _want_tessera(mix: tuple[int, ...], filling: Fraction) -> dict[tuple[int, int, int], Fraction]:
    """By profile, state and start, what `_tessera` documents, in exact fractions and over enumerated completions."""
    shape = migscore._shape(SEVEN)
    near = migscore._near(np.array(mix, np.int64))
    prices, gpu = migscore._prices(shape, near)

    def value(state: int) -> Fraction:
        counts = np.array(sorted(_completions(state)))
        worth = [Fraction(int((counts @ price).max()), int(whole)) for price, whole in zip(prices, gpu, strict=True)]
        free = 8 - (state & 255).bit_count()
        wasted = [weight * (free - profile.size * counts[:, p].max()) for p, (weight, profile) in terms]
        return (12 + 240 * filling) * sum(worth) / len(worth) - Fraction(int(sum(wasted)), sum(mix))

    terms = list(enumerate(zip(mix, SEVEN.profiles, strict=True)))
    want = {}
    for state in (0, 0b1, 0b1100, 0b1_0000_0001, 0b1111_0000, 0b0101_0110):
        before = value(state) + (Fraction(1, 5) + Fraction(3, 10) * filling) * (8 - (state & 255).bit_count())
        for p, profile in enumerate(SEVEN.profiles):
            for start in profile.starts:
                if not state & occupy(SEVEN, 0, p, start):
                    want[p, state, start] = value(occupy(SEVEN, state, p, start)) - before
    return want


@pytest.mark.parametrize(("churn_permille", "filling"), [(0, Fraction(1)), (250, Fraction(1, 2)), (950, Fraction(0))])
@pytest.mark.parametrize("mix", [MIXES["small"], MIXES["with media engines"]])
def test_tessera_is_what_it_documents(mix: tuple[int, ...], churn_permille: int, filling: Fraction) -> None:
    got = tables(SEVEN, MigPolicy.TESSERA, mix, churn_permille=churn_permille)
    want = _want_tessera(mix, filling)
    for p, state in {key[:2] for key in want}:
        best = max(gain for key, gain in want.items() if key[:2] == (p, state))
        assert got.score[p, state] == pytest.approx(float(best * 1_000_000), rel=1e-4, abs=2)
        assert want[p, state, int(got.start[p, state])] == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize("gpu", [gpu for gpu in CATALOG if gpu.profiles], ids=lambda gpu: gpu.name)
def test_every_model_has_tables_of_small_integers(gpu: GpuModel) -> None:
    mix = tuple(10**9 * (number + 1) for number in range(len(gpu.profiles)))
    for policy in MigPolicy:
        got = tables(gpu, policy, mix)
        assert got.score.shape == (len(gpu.profiles), states(gpu))
        assert (abs(got.score[got.score > NEVER]) < 1 << 40).all()


def _unused(policy: MigPolicy) -> int:
    """Compute slices that 24 GPUs have left after a fixed order of instances, twice what they hold."""
    mix = (400, 0, 0, 300, 200, 0, 0)
    got = tables(SEVEN, policy, mix)
    fleet, used = [0] * 24, 0
    for p in [0, 3, 0, 4, 3, 0, 4, 3, 0] * 24:
        gpu = max(range(24), key=lambda gpu: got.score[p, fleet[gpu]])
        if got.score[p, fleet[gpu]] > NEVER:
            fleet[gpu] = occupy(SEVEN, fleet[gpu], p, int(got.start[p, fleet[gpu]]))
            used += SEVEN.profiles[p].compute_slices
    return 7 * 24 - used


def test_tessera_fills_what_others_leave() -> None:
    assert _unused(MigPolicy.TESSERA) == 0
    assert _unused(MigPolicy.FRAGMENTATION_MIN) > 3
