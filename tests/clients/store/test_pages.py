"""Listings in pages: all rows of those that end, and an error for those that do not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.clients.store import Temporary
from tessera.clients.store.pages import all_pages


@given(st.lists(st.integers(0, 3), min_size=1))
def test_all_rows_of_all_pages_are_returned_in_their_order(sizes: list[int]) -> None:
    rows = [[f"{number}/{row}" for row in range(size)] for number, size in enumerate(sizes)]

    def read(token: str) -> tuple[list[str], str | None]:
        number = int(token or 0)
        return rows[number], str(number + 1) if number + 1 < len(rows) else None

    assert all_pages(read) == [row for page in rows for row in page]


ENDLESS = {
    "the next page has no name": {"": (["a"], "")},
    "a page names itself": {"": (["a"], "1"), "1": (["b"], "1")},
    "a page names an earlier one": {"": (["a"], "1"), "1": (["b"], "2"), "2": (["c"], "1")},
    "each page has a new name and the same rows": {"": (["a"], "1"), "1": (["a"], "2")},
}


@pytest.mark.parametrize("case", ENDLESS)
def test_a_listing_that_does_not_go_on_is_an_error(case: str) -> None:
    with pytest.raises(Temporary, match="does not end"):
        all_pages(lambda token: ENDLESS[case][token])
