"""What gpushare's programs are told of a node."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.node.gpushare import gpus_to_count

# sentence: (GPU of each unit, GPUs of which pods were allocated memory, the number)
CASES = {
    "no GPU shares its memory": ([], [], 0),
    "memory that is still allocated of a node that offers none": ([], [1], 0),
    "two GPUs of two units each": (["a", "a", "b", "b"], [0, 1], 2),
    "a GPU that does not share its memory is not counted, whatever its index": (["b", "c"], [], 2),
    "nor where the GPUs in use are shown without it": (["b", "c"], [1], 2),
    "it is counted where memory in use would not be shown otherwise": (["b", "c"], [1, 2], 3),
}


@pytest.mark.parametrize(("shared", "used", "want"), CASES.values(), ids=CASES)
def test_gpus_to_count(shared: list[str], used: list[int], want: int) -> None:
    assert gpus_to_count(shared, used) == want


@given(st.sets(st.integers(0, 7), min_size=1), st.data())
def test_all_memory_in_use_is_shown(shared: set[int], data: st.DataObject) -> None:
    used = data.draw(st.sets(st.sampled_from(sorted(shared))))
    count = gpus_to_count(map(str, shared), used)
    assert count >= len(shared)
    assert all(index < count for index in used)
