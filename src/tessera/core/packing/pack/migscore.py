"""Which MIG placement to create on which GPU: every policy as exact integer tables over a GPU's states.

The state of a GPU in MIG mode is an int: a bit per memory slice that is taken, and above them a bit per kind of
`GpuModel.at_most_one` whose one instance exists. A policy is a value of states, and a placement scores what the value
changes by. Across a fleet the GPU with the highest score wins, ties to the first in node and GPU order. Equal states
score equally, so a fleet is a histogram of states and a decision is one look-up per state present.
"""

import enum
import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cache, lru_cache
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tessera.core.gpu.gpumodels import GpuModel, Profile
from tessera.core.gpu.mig import Placement

__all__ = ["NEVER", "MigPolicy", "MigTables", "occupy", "release", "state_of", "states", "tables"]

NEVER = -(1 << 62)
"""The score of a profile in a state where it does not fit. All other scores are below 2 ** 40 in size."""

_Ints = NDArray[np.int64]
_Takes = tuple[tuple[int, int], ...]
"""A profile's starts, each with the state bits it takes."""


class MigPolicy(enum.StrEnum):
    """How the placement of an instance is chosen."""

    FIRST_FIT = "first-fit"
    """The first GPU with room."""
    BEST_FIT = "best-fit"
    """The GPU with the fewest free memory slices."""
    MAX_ROOM = "max-room"
    """The placement that blocks the fewest placements, every profile counting alike."""
    FRAGMENTATION_MIN = "fragmentation-min"
    """The placement that adds least to the free memory slices that the mix cannot use."""
    PRICE = "price"
    """The placement that loses least of the GPU's remaining capacity, at the mix's cutting-stock prices."""
    TESSERA = "tessera"
    """Prices that hold for all mixes near the observed one, then fragmentation and GPUs in use before free ones."""


class MigTables(msgspec.Struct, frozen=True, eq=False):
    """One policy's decisions for every profile in every state of one GPU model; read-only arrays."""

    score: _Ints
    """(profiles, states): higher wins, comparable between states for one profile; NEVER where it does not fit."""
    start: NDArray[np.int8]
    """(profiles, states): the best start, ties to the lowest; -1 where it does not fit."""


class _Spot(NamedTuple):
    """One legal placement of one kind of profile."""

    kind: int
    start: int
    block: int
    """The state bits it takes."""


class _Shape(NamedTuple):
    """The structure of a model's placements.

    States with the same free spots and equally many free memory slices are of one class; everything is computed by
    class. Profiles that take the same bits at the same starts are of one kind.
    """

    kinds: _Ints
    """(profiles,): their kind."""
    sizes: _Ints
    """(kinds,): memory slices of an instance."""
    prior: tuple[int, ...]
    """The prior of the mix, by profile."""
    spots: tuple[_Spot, ...]
    """By kind, then start."""
    class_of: _Ints
    """(states,): their class; that of the empty GPU is `class_of[0]`."""
    after: _Ints
    """(spots, classes): the class after the spot is taken, -1 where it is not free."""
    free: _Ints
    """(classes,): free memory slices."""
    room: _Ints
    """(kinds, classes): how many instances of the kind alone still fit."""
    patterns: tuple[tuple[int, ...], ...]
    """Instance counts by kind of the maximal layouts."""


def states(model: GpuModel) -> int:
    """Return how many states a GPU of this model has; 1 where its placements are unknown or it has no MIG."""
    return 1 << (model.memory_slices + len(model.at_most_one)) if model.memory_slices else 1


def occupy(model: GpuModel, state: int, profile: int, start: int) -> int:
    """Return the state after the model's profile of this index is placed at `start`, which must be free."""
    return state | _block(model, model.profiles[profile], start)


def release(model: GpuModel, state: int, profile: int, start: int) -> int:
    """Return the state after the instance of this profile index at `start` is gone."""
    return state & ~_block(model, model.profiles[profile], start)


def state_of(model: GpuModel, layout: Sequence[Placement]) -> int:
    """Return the state of a GPU whose MIG instances are `layout`; the profiles are named as in the catalog."""
    index = {profile.name: number for number, profile in enumerate(model.profiles)}
    state = 0
    for placement in layout:
        state = occupy(model, state, index[placement.profile], placement.start)
    return state


@lru_cache(maxsize=32)
def tables(model: GpuModel, policy: MigPolicy, mix: tuple[int, ...], *, churn_permille: int = 0) -> MigTables:
    """Return the policy's scores and starts.

    Args:
        model: the GPU model.
        policy: how to choose.
        mix: arrivals so far, by profile. Below 64 in all, one of each profile that a GPU can have without a media
            limit is added, which is all there is at first.
        churn_permille: instances that left per thousand recent arrivals, 0 while the fleet only fills. Only
            `tessera` uses it: up to 500 it turns gradually from keeping all GPUs completable, which pays while
            whatever is missing will still come, to keeping what is free usable at once.

    Costs some milliseconds once, 30 for the first GPU of a model; the last 32 answers are kept.

    """
    shape = _shape(model)
    score, spot = _BY_POLICY[policy](shape, _weights(shape, mix), churn_permille)
    starts = np.array([*(each.start for each in shape.spots), -1], np.int8)
    every = np.ix_(shape.kinds, shape.class_of)
    answer = MigTables(score[every], starts[spot][every])
    answer.score.flags.writeable = answer.start.flags.writeable = False
    return answer


def _block(model: GpuModel, profile: Profile, start: int) -> int:
    block = ((1 << profile.size) - 1) << start
    if profile.media in model.at_most_one:
        block |= 1 << (model.memory_slices + model.at_most_one.index(profile.media))
    return block


def _shape(model: GpuModel) -> _Shape:
    return _shape_of(
        model.memory_slices,
        states(model),
        tuple(tuple((start, _block(model, profile, start)) for start in profile.starts) for profile in model.profiles),
        tuple(profile.size for profile in model.profiles),
        tuple(int(profile.media not in model.at_most_one) for profile in model.profiles),
    )


@lru_cache(maxsize=16)
def _shape_of(
    memory_slices: int, count: int, takes: tuple[_Takes, ...], sizes: tuple[int, ...], prior: tuple[int, ...]
) -> _Shape:
    """Return the shape that all models with these placements share."""
    distinct = list(dict.fromkeys(takes))
    spots = tuple(_Spot(kind, *spot) for kind, own in enumerate(distinct) for spot in own)
    every = np.arange(count, dtype=np.int64)
    blocks = np.array([spot.block for spot in spots], np.int64)[:, np.newaxis]
    free = memory_slices - np.bitwise_count(every & ((1 << memory_slices) - 1)).astype(np.int64)
    bits = 1 << np.arange(len(spots), dtype=np.int64)
    _, first, class_of = np.unique(
        bits @ ((every & blocks) == 0) * (memory_slices + 1) + free, return_index=True, return_inverse=True
    )
    after = np.where(every[first] & blocks, -1, class_of[every[first] | blocks])
    return _Shape(
        kinds=np.array([distinct.index(own) for own in takes], np.int64),
        sizes=np.array([sizes[takes.index(own)] for own in distinct], np.int64),
        prior=prior,
        spots=spots,
        class_of=class_of,
        after=after,
        free=free[first],
        room=_completions(spots, after, np.eye(len(distinct), dtype=np.int64)),
        patterns=_patterns(spots, after, int(class_of[0]), len(distinct)),
    )


def _weights(shape: _Shape, mix: tuple[int, ...]) -> _Ints:
    """Return the mix by kind, with the prior while it is small, scaled to a sum of 2 ** 20 where it is larger."""
    totals = [0] * len(shape.sizes)
    for kind, count, prior in zip(shape.kinds, mix, shape.prior, strict=True):
        totals[kind] += count + (prior if sum(mix) < _PRIOR_UNTIL else 0)
    return np.array([total * _WEIGHT // max(_WEIGHT, sum(totals)) for total in totals], np.int64)


_PRIOR_UNTIL = 64
_WEIGHT = 1 << 20


def _completions(spots: tuple[_Spot, ...], after: _Ints, prices: _Ints) -> _Ints:
    """Return the most price that instances in the free memory slices can be worth together.

    Args:
        spots: of the shape.
        after: of the shape.
        prices: (mixes, kinds); the answer is (mixes, classes).

    """
    best = np.zeros((len(prices), after.shape[1]), np.int64)
    moves = [
        (prices[:, [spot.kind]], np.flatnonzero(to >= 0), to[to >= 0]) for spot, to in zip(spots, after, strict=True)
    ]
    while True:
        better = best.copy()
        for price, here, there in moves:
            better[:, here] = np.maximum(better[:, here], best[:, there] + price)
        if np.array_equal(better, best):
            return best
        best = better


def _patterns(spots: tuple[_Spot, ...], after: _Ints, empty: int, kinds: int) -> tuple[tuple[int, ...], ...]:
    """Return the instance counts by kind of all maximal layouts of an empty GPU."""

    @cache
    def of(state: int) -> frozenset[tuple[int, ...]]:
        found = set()
        for number, (kind, _, _) in enumerate(spots):
            if (less := int(after[number, state])) >= 0:
                found |= {(*counts[:kind], counts[kind] + 1, *counts[kind + 1 :]) for counts in of(less)}
        return _maximal(found) if found else frozenset({(0,) * kinds})

    return tuple(sorted(of(empty)))


def _maximal(counts: set[tuple[int, ...]]) -> frozenset[tuple[int, ...]]:
    return frozenset(
        one for one in counts if not any(one != other and all(map(int.__le__, one, other)) for other in counts)
    )


def _prices(shape: _Shape, mixes: Sequence[_Ints]) -> tuple[_Ints, _Ints]:
    """Return, for each mix, the price of each kind, and of a GPU; 0 for kinds without weight.

    Prices are the duals of the fractional cutting-stock program that covers the mix with the fewest GPUs, times their
    common denominator, so they are exact. Of several optimal duals they are the vertex that Bland's rule reaches from
    that of the mix before.
    Source: Gilmore and Gomory, A linear programming approach to the cutting-stock problem, Oper. Res. 9 (1961).

    Args:
        shape: the model's.
        mixes: of (kinds,) weights, all positive for the same kinds.

    """
    active = np.flatnonzero((mixes[0] > 0) & (shape.room[:, shape.class_of[0]] > 0))
    rows = sorted({tuple(pattern[kind] for kind in active) for pattern in shape.patterns})
    prices = np.zeros((len(mixes), len(shape.sizes)), np.int64)
    gpu = np.zeros(len(mixes), np.int64)
    for number, (scale, exact) in enumerate(_maximize([mix[active].tolist() for mix in mixes], rows)):
        common = math.gcd(scale, *exact)
        prices[number, active] = [price // common for price in exact]
        gpu[number] = scale // common
    return prices, gpu


def _maximize(objectives: list[list[int]], rows: list[tuple[int, ...]]) -> list[tuple[int, list[int]]]:
    """Return, for each objective, d and d * x of an x >= 0 that maximizes objective . x with row . x <= 1 for all rows.

    The simplex method in integers: the table holds numerators over the common denominator d. By Bland's rule the
    improving column of lowest name enters and the tight row of lowest name leaves, so it ends.
    Source: Edmonds, Systems of distinct representatives and linear algebra, J. Res. NBS 71B (1967); Bland, New finite
    pivoting rules for the simplex method, Mathematics of Operations Research 2 (1977).
    """
    width, height = len(objectives[0]), len(rows)
    table = np.array([*((*row, 1) for row in rows), *((*objective, 0) for objective in objectives)], np.object_)
    scale, columns, basis, found = 1, list(range(width)), list(range(width, width + height)), []
    for cost in range(height, height + len(objectives)):
        while improving := [(name, place) for place, name in enumerate(columns) if table[cost, place] > 0]:
            enter = min(improving)[1]
            bounds = enumerate(table[:height, [enter, -1]].tolist())
            leave = min((Fraction(limit, slope), basis[i], i) for i, (slope, limit) in bounds if slope > 0)[2]
            table, scale = _pivot(table, scale, leave, enter)
            columns[enter], basis[leave] = basis[leave], columns[enter]
        value = dict(zip(basis, table[:height, -1].tolist(), strict=True))
        found.append((scale, [value.get(name, 0) for name in range(width)]))
    return found


def _pivot(table: NDArray[np.object_], scale: int, leave: int, enter: int) -> tuple[NDArray[np.object_], int]:
    """Return the table and its denominator after the row's variable is exchanged with the column's."""
    row, column, pivot = table[leave].copy(), table[:, enter].copy(), int(table[leave, enter])
    table = (table * pivot - np.outer(column, row)) // scale
    table[leave], table[:, enter] = row, -column
    table[leave, enter] = scale
    return table, pivot


_Choice = tuple[_Ints, _Ints]
"""(kinds, classes) scores, and the numbers of their spots; NEVER and -1 where the kind does not fit."""


def _by_gain(shape: _Shape, gain: _Ints) -> _Choice:
    """Return by kind the spot with the highest gain, given (spots, classes) gains; the lowest start of equals."""
    gain = np.where(shape.after >= 0, gain, NEVER)
    score = np.full((len(shape.sizes), gain.shape[1]), NEVER, np.int64)
    chosen = np.full(score.shape, -1, np.int64)
    for kind in {spot.kind for spot in shape.spots}:
        own = np.array([number for number, spot in enumerate(shape.spots) if spot.kind == kind])
        score[kind] = gain[own].max(axis=0)
        chosen[kind] = np.where(score[kind] > NEVER, own[gain[own].argmax(axis=0)], -1)
    return score, chosen


def _by_value(shape: _Shape, value: _Ints) -> _Choice:
    """Return the choice that loses least of a value of classes."""
    return _by_gain(shape, value[shape.after] - value)


def _first_fit(shape: _Shape, _weights: _Ints, _churn: int) -> _Choice:
    return _by_gain(shape, np.zeros_like(shape.after))


def _best_fit(shape: _Shape, _weights: _Ints, _churn: int) -> _Choice:
    return _by_gain(shape, np.broadcast_to(-shape.free, shape.after.shape))


def _max_room(shape: _Shape, _weights: _Ints, _churn: int) -> _Choice:
    return _by_value(shape, (shape.after >= 0).sum(axis=0, dtype=np.int64))


def _fragmentation(shape: _Shape, weights: _Ints) -> _Ints:
    """Return, by class, the free memory slices that remain when one kind takes all it can, summed over the mix.

    FGD's fragmentation with memory slices for GPU milli.
    Source: Weng et al., Beware of Fragmentation, USENIX ATC 2023.
    """
    return weights @ (shape.free - shape.room * shape.sizes[:, np.newaxis])


def _fragmentation_min(shape: _Shape, weights: _Ints, _churn: int) -> _Choice:
    return _by_value(shape, -_fragmentation(shape, weights))


def _price(shape: _Shape, weights: _Ints, _churn: int) -> _Choice:
    return _by_value(shape, _completions(shape.spots, shape.after, _prices(shape, [weights])[0])[0])


def _tessera(shape: _Shape, weights: _Ints, churn: int) -> _Choice:
    """Return the choice that loses least of P x value - fragmentation, less U x the GPU's free memory slices before.

    The value is what the GPU could still hold, in GPUs, at cutting-stock prices averaged over the mix and each mix with
    one kind half as frequent again or by a third rarer: duals of one mix have ties, and jump when the mix changes a
    little. Fragmentation is the mean over the mix, in slices. U, which opens a new GPU last, leaves room for requests
    of a whole one. P and U go from 252 and 1/2 to 12 and 1/5 with churn: where instances leave, what is missing to
    complete a GPU need not come before something else leaves.
    Source: constants chosen on about a hundred mixes of H100-80GB, checked on others by `bench/mig.py --random 30`.
    """
    near = _near(weights)
    prices, gpu = _prices(shape, near)
    worth = (_completions(shape.spots, shape.after, prices) * _GPU // np.maximum(gpu, 1)[:, np.newaxis]).sum(axis=0)
    total = max(1, int(weights.sum()))
    filling = max(0, 500 - churn) // 5
    unit = len(near) * _GPU * total
    value = (12_000 + 2_400 * filling) * total * worth - 1_000 * len(near) * _GPU * _fragmentation(shape, weights)
    gain = value[shape.after] - value - (200 + 3 * filling) * unit * shape.free
    return _by_gain(shape, gain // max(1, unit // 1_000))


_GPU = 5040
"""A GPU's worth where worths at several prices are added: most denominators of prices divide it."""


def _near(weights: _Ints) -> list[_Ints]:
    """Return the mix and, for each kind in it, the mixes with half as much more and with a third less of it."""
    near = [6 * weights]
    for kind in np.flatnonzero(weights):
        for part in (9, 4):
            changed = 6 * weights
            changed[kind] = part * weights[kind]
            near.append(changed)
    return near


_BY_POLICY = {
    MigPolicy.FIRST_FIT: _first_fit,
    MigPolicy.BEST_FIT: _best_fit,
    MigPolicy.MAX_ROOM: _max_room,
    MigPolicy.FRAGMENTATION_MIN: _fragmentation_min,
    MigPolicy.PRICE: _price,
    MigPolicy.TESSERA: _tessera,
}
