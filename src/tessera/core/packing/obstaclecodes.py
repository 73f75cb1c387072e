"""Obstacles of thousands of nodes at once, as one int64 a node: equal obstacles have equal codes.

From the highest bit down, below the sign:

| bits | field | content |
| --- | --- | --- |
| 5 | `rank` | of the cause, so that codes are in the order of causes |
| 8 | `request` | number of the short request in the pod's need |
| 8 | `gpu` | index of the GPU in its node |
| 12 | `rest` | number of the text about the GPUs that the obstacle leaves out; 0 for none |
| 30 | `value` | what the cause counts: devices, MiB, percent; or `counted` GPUs by state; or `used_slices` |

A negative code stands for no obstacle.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tessera.core.cluster.gputypes import Ints

__all__ = [
    "MOST_RESTS",
    "ObstacleCode",
    "counted",
    "counts",
    "pack",
    "rank_above",
    "split_slices",
    "unpack",
    "used_slices",
    "with_rest",
]

_ASK_BITS: Final = 8
_GPU_BITS: Final = 8
_REST_BITS: Final = 12
_VALUE_BITS: Final = 30
_SLICE_BITS: Final = 16
"""Of the value of `used_slices`: the memory slices in use; above them the GPU's type."""
_GPU_AT: Final = _VALUE_BITS + _REST_BITS
_ASK_AT: Final = _GPU_AT + _GPU_BITS
_RANK_AT: Final = _ASK_AT + _ASK_BITS
MOST_RESTS: Final = 1 << _REST_BITS


class ObstacleCode(NamedTuple):
    """The fields of a code, see the table above."""

    rank: int
    request: int
    gpu: int
    rest: int
    value: int


def pack(rank: int, request: int = 0, value: Ints | int = 0, gpu: Ints | int = 0, *, rest: Ints | int = 0) -> Ints:
    """Return the code of each node, or of one; what is larger than its field becomes the largest."""
    index = np.clip(gpu, 0, _most(_GPU_BITS)).astype(np.int64)
    low = np.minimum(value, _most(_VALUE_BITS)).astype(np.int64)
    high = (rank << _RANK_AT) + (min(request, _most(_ASK_BITS)) << _ASK_AT)
    return with_rest(high + (index << _GPU_AT) + low, rest)


def with_rest(codes: Ints, rest: Ints | int) -> Ints:
    """Return codes without a rest, with one."""
    found: Ints = codes + (rest << _VALUE_BITS)
    return found


def unpack(code: int) -> ObstacleCode:
    """Return the fields of a code."""
    return ObstacleCode(
        rank=code >> _RANK_AT,
        request=code >> _ASK_AT & _most(_ASK_BITS),
        gpu=code >> _GPU_AT & _most(_GPU_BITS),
        rest=code >> _VALUE_BITS & _most(_REST_BITS),
        value=code & _most(_VALUE_BITS),
    )


def rank_above(codes: Ints, rank: int) -> NDArray[np.bool_]:
    """Return which codes have a higher rank."""
    return np.asarray(codes >> _RANK_AT > rank)


def used_slices(kinds: Ints, used: Ints) -> Ints:
    """Return the value for GPUs of these types with these memory slices in use, a bit each."""
    found: Ints = (kinds << _SLICE_BITS) + used
    return found


def split_slices(value: int) -> tuple[int, int]:
    """Return the type and the memory slices in use, by what `used_slices` returned."""
    return value >> _SLICE_BITS, value & _most(_SLICE_BITS)


def counted(states: Ints, among: range, bits: int) -> Ints:
    """Return for each node how many of its GPUs are in each of the states `among`, in so many bits each.

    The largest number stands for as many or more.

    Args:
        states: of each GPU, `(gpus, nodes) int64`.
        among: the states that count; the first has the lowest bits.
        bits: of each number.

    """
    found = np.zeros(states.shape[1], dtype=np.int64)
    for place, state in enumerate(among):
        found += np.minimum((states == state).sum(axis=0), _most(bits)) << bits * place
    return found


def counts(value: int, among: range, bits: int) -> dict[int, int]:
    """Return how many GPUs are in each state, by what `counted` returned; without those that have none."""
    found = {state: value >> bits * place & _most(bits) for place, state in enumerate(among)}
    return {state: count for state, count in found.items() if count}


def _most(bits: int) -> int:
    return (1 << bits) - 1
