"""Which MIG placement to cut on which GPU: every policy as exact integer tables over a GPU's states.

The state of a GPU in MIG mode is an int: a bit per placement unit that is taken, and above them a bit per kind of
`GpuModel.at_most_one` whose one instance exists. A policy is a value of states, and a placement scores what the value
changes by. Across a fleet the GPU with the highest score wins, ties to the first in node and GPU order. Equal states
score equally, so a fleet is a histogram of states and a decision is one look-up per state present.
"""

import enum
import math
from fractions import Fraction
from functools import cache, lru_cache
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tessera.core.gpumodels import GpuModel, Profile
from tessera.core.mig import Placement

__all__ = ["NEVER", "MigPolicy", "MigTables", "occupy", "release", "state_of", "states", "tables"]

NEVER = -(1 << 62)
"""The score of a profile in a state where it has no place; below every score that has one."""


class MigPolicy(enum.StrEnum):
    """How the place of an instance is chosen."""

    FIRST_FIT = "first-fit"
    """The first GPU with room."""
    BEST_FIT = "best-fit"
    """The GPU with the fewest free units."""
    MAX_ROOM = "max-room"
    """The place that takes away the fewest placements, every profile counting alike."""
    FRAGMENTATION_MIN = "fragmentation-min"
    """The place that raises least the free units the mix cannot use."""
    PRICE = "price"
    """The place that loses least of what the GPU could still hold, at the mix's cutting-stock prices."""
    TESSERA = "tessera"
    """Tessera's own; see `_tessera`."""


class MigTables(msgspec.Struct, frozen=True, eq=False):
    """One policy's decisions for every profile in every state of one GPU model; read-only arrays."""

    score: NDArray[np.int64]
    """(profiles, states): higher wins, comparable between states for one profile; NEVER where it does not fit."""
    start: NDArray[np.int8]
    """(profiles, states): the best first unit, ties to the lowest; -1 where it does not fit."""


class _Spot(NamedTuple):
    """One legal placement of one kind of profile."""

    kind: int
    start: int
    block: int
    """The state bits it takes."""


class _Shape(NamedTuple):
    """What a model's placements leave to decide."""

    kinds: tuple[int, ...]
    """Kind by profile; profiles that take the same bits at the same starts are of one kind."""
    sizes: tuple[int, ...]
    """Units taken, by kind."""
    spots: tuple[_Spot, ...]
    """By kind, then start."""
    taken: NDArray[np.int64]
    """(spots, states): the state after, or -1 where the spot is not free."""
    free: NDArray[np.int64]
    """(states,): free units."""
    room: NDArray[np.int64]
    """(kinds, states): how many instances of the kind alone still fit."""
    patterns: tuple[tuple[int, ...], ...]
    """Instance counts by kind of the maximal layouts."""


def states(model: GpuModel) -> int:
    """Return how many states a GPU of this model has; 1 where its placements are unknown or it has no MIG."""
    return 1 << (model.units + len(model.at_most_one)) if model.units else 1


def occupy(model: GpuModel, state: int, profile: int, start: int) -> int:
    """Return the state after the model's profile of this index is placed at `start`, which must be free."""
    return state | _block(model, model.profiles[profile], start)


def release(model: GpuModel, state: int, profile: int, start: int) -> int:
    """Return the state after the instance of this profile index at `start` is gone."""
    return state & ~_block(model, model.profiles[profile], start)


def state_of(model: GpuModel, layout: tuple[Placement, ...]) -> int:
    """Return the state of a GPU whose MIG instances are `layout`; the profiles are named as in the catalogue."""
    index = {profile.name: number for number, profile in enumerate(model.profiles)}
    state = 0
    for placement in layout:
        state = occupy(model, state, index[placement.profile], placement.start)
    return state


@lru_cache(maxsize=256)
def tables(model: GpuModel, policy: MigPolicy, mix: tuple[int, ...], *, churn_permille: int = 0) -> MigTables:
    """Return the policy's scores and starts.

    Args:
        model: the GPU model.
        policy: how to choose.
        mix: arrivals seen so far, by profile; all zero stands for one of each that has a known placement.
        churn_permille: departures seen per thousand arrivals; 0 while nothing leaves. Only `tessera` looks at it.

    Ties between starts go to the lowest. Costs a few milliseconds, once: the last 256 answers are kept.

    """
    shape = _shape(model)
    return _expand(shape, *_BY_POLICY[policy](shape, _weights(shape, mix), churn_permille))


def _block(model: GpuModel, profile: Profile, start: int) -> int:
    block = ((1 << profile.size) - 1) << start
    if profile.media in model.at_most_one:
        block |= 1 << (model.units + model.at_most_one.index(profile.media))
    return block


@lru_cache(maxsize=64)
def _shape(model: GpuModel) -> _Shape:
    takes = [tuple((start, _block(model, profile, start)) for start in profile.starts) for profile in model.profiles]
    distinct = list(dict.fromkeys(takes))
    spots = tuple(_Spot(kind, *spot) for kind, own in enumerate(distinct) for spot in own)
    every = np.arange(states(model), dtype=np.int64)
    blocks = np.array([spot.block for spot in spots], np.int64)[:, np.newaxis]
    taken = np.where(every & blocks, -1, every | blocks)
    kinds = tuple(map(distinct.index, takes))
    sizes = tuple(model.profiles[kinds.index(kind)].size for kind in range(len(distinct)))
    free = model.units - np.bitwise_count(every & ((1 << model.units) - 1)).astype(np.int64)
    room = np.array([_completion(spots, taken, price) for price in np.eye(len(distinct), dtype=np.int64)], np.int64)
    return _Shape(kinds, sizes, spots, taken, free, room, _patterns(spots, taken, len(distinct)))


def _weights(shape: _Shape, mix: tuple[int, ...]) -> tuple[int, ...]:
    """Return the mix by kind; without any arrival each profile counts once."""
    counts = mix if any(mix) else (1,) * len(shape.kinds)
    totals = [0] * len(shape.sizes)
    for kind, count in zip(shape.kinds, counts, strict=True):
        totals[kind] += count
    return tuple(totals)


def _completion(spots: tuple[_Spot, ...], taken: NDArray[np.int64], price: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return, by state, the most price that instances in its free units can be worth together."""
    best = np.zeros(taken.shape[-1], np.int64)
    while True:
        after = best
        for spot, state in zip(spots, taken, strict=True):
            after = np.maximum(after, np.where(state >= 0, best[state] + price[spot.kind], 0))
        if np.array_equal(after, best):
            return best
        best = after


def _patterns(spots: tuple[_Spot, ...], taken: NDArray[np.int64], kinds: int) -> tuple[tuple[int, ...], ...]:
    """Return the instance counts by kind of all maximal layouts of an empty GPU."""

    @cache
    def of(state: int) -> frozenset[tuple[int, ...]]:
        found = set()
        for number, spot in enumerate(spots):
            if (after := int(taken[number, state])) >= 0:
                found |= {
                    (*counts[: spot.kind], counts[spot.kind] + 1, *counts[spot.kind + 1 :]) for counts in of(after)
                }
        return _maximal(found) if found else frozenset({(0,) * kinds})

    return tuple(sorted(of(0)))


def _maximal(counts: set[tuple[int, ...]]) -> frozenset[tuple[int, ...]]:
    return frozenset(
        one for one in counts if not any(one != other and all(map(int.__le__, one, other)) for other in counts)
    )


def _prices(shape: _Shape, weights: tuple[int, ...]) -> NDArray[np.int64]:
    """Return what an instance of each kind is worth, in whole parts of one GPU, 0 for kinds without weight.

    They are the duals of the fractional cutting-stock program that covers the mix with the fewest GPUs, in exact
    arithmetic, times their common denominator. Of several optimal duals it is the vertex Bland's rule reaches.
    Source: Gilmore and Gomory, A linear programming approach to the cutting-stock problem, Oper. Res. 9 (1961).
    """
    active = [kind for kind, weight in enumerate(weights) if weight and shape.room[kind, 0]]
    rows = sorted({tuple(pattern[kind] for kind in active) for pattern in shape.patterns})
    scale, exact = _maximise([weights[kind] for kind in active], rows)
    prices = np.zeros(len(weights), np.int64)
    prices[active] = [price // math.gcd(scale, *exact) for price in exact]
    return prices


def _maximise(objective: list[int], rows: list[tuple[int, ...]]) -> tuple[int, list[int]]:
    """Return d and d * x of the x >= 0 that maximises objective . x with row . x <= 1 for all rows.

    The simplex method in integers: the table holds numerators over the common denominator d. By Bland's rule the
    improving column of lowest name enters and the tight row of lowest name leaves, so it ends.
    Source: Edmonds, Systems of distinct representatives and linear algebra, J. Res. NBS 71B (1967); Bland, New finite
    pivoting rules for the simplex method, Mathematics of Operations Research 2 (1977).
    """
    width = len(objective)
    table = np.array([[*row, 1] for row in rows] + [[*objective, 0]], np.object_)
    scale, columns, basis = 1, list(range(width)), list(range(width, width + len(rows)))
    while improving := [(name, place) for place, name in enumerate(columns) if table[-1, place] > 0]:
        enter = min(improving)[1]
        tight = [(Fraction(row[-1], row[enter]), basis[i], i) for i, row in enumerate(table[:-1]) if row[enter] > 0]
        leave = min(tight)[2]
        table, scale = _pivot(table, scale, leave, enter)
        columns[enter], basis[leave] = basis[leave], columns[enter]
    value = dict(zip(basis, table[:-1, -1], strict=True))
    return scale, [int(value.get(name, 0)) for name in range(width)]


def _pivot(table: NDArray[np.object_], scale: int, leave: int, enter: int) -> tuple[NDArray[np.object_], int]:
    """Return the table and its denominator after the row's variable is exchanged with the column's."""
    row, column, pivot = table[leave].copy(), table[:, enter].copy(), int(table[leave, enter])
    table = (table * pivot - np.outer(column, row)) // scale
    table[leave], table[:, enter] = row, -column
    table[leave, enter] = scale
    return table, pivot


_Score = tuple[NDArray[np.int64], NDArray[np.int64]]
"""(kinds, states) scores, and the numbers of the spots they are for; NEVER and -1 where the kind does not fit."""


def _by_gain(shape: _Shape, gain: NDArray[np.int64]) -> _Score:
    """Return by kind the spot with the highest gain, given (spots, states) gains; the lowest start of equals."""
    gain = np.where(shape.taken >= 0, gain, NEVER)
    score = np.full((len(shape.sizes), gain.shape[1]), NEVER, np.int64)
    chosen = np.full(score.shape, -1, np.int64)
    for kind in {spot.kind for spot in shape.spots}:
        own = [number for number, spot in enumerate(shape.spots) if spot.kind == kind]
        best = gain[own].argmax(axis=0)
        score[kind] = gain[own].max(axis=0)
        chosen[kind] = np.where(score[kind] > NEVER, np.array(own)[best], -1)
    return score, chosen


def _by_value(shape: _Shape, value: NDArray[np.int64]) -> _Score:
    """Return the choice that loses least of a value of states."""
    return _by_gain(shape, value[shape.taken] - value)


def _first_fit(shape: _Shape, _weights: tuple[int, ...], _churn: int) -> _Score:
    return _by_gain(shape, np.zeros(shape.taken.shape, np.int64))


def _best_fit(shape: _Shape, _weights: tuple[int, ...], _churn: int) -> _Score:
    return _by_gain(shape, np.broadcast_to(-shape.free, shape.taken.shape))


def _max_room(shape: _Shape, _weights: tuple[int, ...], _churn: int) -> _Score:
    return _by_value(shape, (shape.taken >= 0).sum(axis=0, dtype=np.int64))


def _fragmentation(shape: _Shape, weights: tuple[int, ...]) -> NDArray[np.int64]:
    """Return, by state, the free units that remain when one kind takes all it can, summed over the mix.

    FGD's fragmentation with placement units for GPU milli.
    Source: Weng et al., Beware of Fragmentation, USENIX ATC 2023.
    """
    left = shape.free - shape.room * np.array(shape.sizes, np.int64)[:, np.newaxis]
    return np.array(weights, np.int64) @ left


def _fragmentation_min(shape: _Shape, weights: tuple[int, ...], _churn: int) -> _Score:
    return _by_value(shape, -_fragmentation(shape, weights))


def _price(shape: _Shape, weights: tuple[int, ...], _churn: int) -> _Score:
    return _by_value(shape, _completion(shape.spots, shape.taken, _prices(shape, weights)))


def _tessera(shape: _Shape, weights: tuple[int, ...], _churn: int) -> _Score:
    value = _completion(shape.spots, shape.taken, _prices(shape, weights))
    return _by_value(shape, value * (32 * sum(weights)) - _fragmentation(shape, weights))


_BY_POLICY = {
    MigPolicy.FIRST_FIT: _first_fit,
    MigPolicy.BEST_FIT: _best_fit,
    MigPolicy.MAX_ROOM: _max_room,
    MigPolicy.FRAGMENTATION_MIN: _fragmentation_min,
    MigPolicy.PRICE: _price,
    MigPolicy.TESSERA: _tessera,
}


def _expand(shape: _Shape, score: NDArray[np.int64], chosen: NDArray[np.int64]) -> MigTables:
    """Return the tables by profile, from those by kind."""
    starts = np.array([*(spot.start for spot in shape.spots), -1], np.int8)
    kinds = list(shape.kinds)
    tables = MigTables(score[kinds], starts[chosen[kinds]])
    tables.score.flags.writeable = tables.start.flags.writeable = False
    return tables
