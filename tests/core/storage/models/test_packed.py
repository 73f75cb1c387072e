"""Which files are packed into an image."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.storage.models.packed import is_packed

KIB = 1024
CASES = {
    "many small files": ([16 * KIB] * 1000, True),
    "few small files": ([16 * KIB] * 999, False),
    "many files, not small on average": ([256 * KIB] * 1000, False),
    "many small files beside a large one": ([KIB] * 1000 + [200 * 1024 * KIB], True),
    "nothing": ([], False),
    "empty files alone": ([0] * 1000, True),
}


@pytest.mark.parametrize("case", CASES)
def test_many_small_files_are_packed(case: str) -> None:
    sizes, want = CASES[case]
    assert is_packed(sizes, "Auto") == want


@given(st.lists(st.integers(0, 2**40), max_size=50).map(lambda sizes: sizes * 40))
def test_what_is_asked_for_counts_and_a_node_that_mounts_none_packs_none_by_itself(sizes: list[int]) -> None:
    assert is_packed(sizes, "Always", can_mount=False)
    assert not is_packed(sizes, "Never")
    assert not is_packed(sizes, "Auto", can_mount=False)
