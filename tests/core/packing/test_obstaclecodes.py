"""The codes of obstacles: every field comes back, equal fields alone have equal codes, and causes are in order."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.packing.obstaclecodes import (
    ObstacleCode,
    counted,
    counts,
    pack,
    rank_above,
    split_slices,
    unpack,
    used_slices,
    with_rest,
)
from tessera.core.packing.obstacles import Cause

MOST = ObstacleCode(rank=31, request=255, gpu=255, rest=4095, value=2**30 - 1)
CODES = st.builds(ObstacleCode, *(st.integers(0, most) | st.just(most) for most in MOST))


def packed(code: ObstacleCode) -> int:
    return int(pack(code.rank, code.request, code.value, code.gpu, rest=code.rest))


@given(CODES)
def test_every_field_comes_back(code: ObstacleCode) -> None:
    assert unpack(packed(code)) == code
    bare = pack(code.rank, code.request, np.array([code.value]), np.array([code.gpu]))
    assert [unpack(each) for each in with_rest(bare, np.array([code.rest])).tolist()] == [code]


@given(CODES, CODES)
def test_codes_are_in_the_order_of_causes_and_then_of_the_other_fields(one: ObstacleCode, other: ObstacleCode) -> None:
    assert (packed(one) < packed(other)) == (one < other)
    assert rank_above(np.array([packed(one)]), other.rank).tolist() == [one.rank > other.rank]


def test_a_code_is_positive_and_what_is_too_large_for_it_becomes_the_largest() -> None:
    assert packed(MOST) == 2**63 - 1
    assert int(pack(31, 1000, 2**40, 1000, rest=4095)) == packed(MOST)
    assert unpack(int(pack(0, gpu=-1))).gpu == 0


def test_every_cause_has_a_rank_that_fits() -> None:
    assert [unpack(int(pack(cause.rank))).rank for cause in Cause] == list(range(len(Cause)))
    assert len(Cause) <= MOST.rank + 1


@given(st.lists(st.integers(-1, 6), min_size=1, max_size=40), st.sampled_from([(range(7), 8), (range(1, 7), 5)]))
def test_states_are_counted_up_to_the_largest_number(states: list[int], among: tuple[range, int]) -> None:
    kinds, bits = among
    value = int(counted(np.array(states)[:, np.newaxis], kinds, bits)[0])
    want = {state: min(states.count(state), 2**bits - 1) for state in kinds if state in states}
    assert counts(value, kinds, bits) == want
    assert value <= (MOST.value if bits == 5 else 2**62)


@given(st.integers(0, 2**14 - 1), st.integers(0, 2**16 - 1))
def test_the_slices_in_use_and_the_type_of_their_gpu_come_back(kind: int, used: int) -> None:
    value = int(used_slices(np.array([kind]), np.array([used]))[0])
    assert split_slices(value) == (kind, used)
    assert value <= MOST.value
