"""Listings in pages: all rows of those that end, and an error for those that do not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.clients.store import Refused, Temporary
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


def test_a_listing_without_an_end_is_given_up_in_time() -> None:
    read = list[str]()

    def page(token: str, size: int, last: int) -> tuple[list[str], str | None]:
        read.append(token)
        return [f"{token}/{row}" for row in range(size)], str(len(read)) if len(read) < last else None

    with pytest.raises(Refused, match="the listing has more than 1,000,000 objects"):
        all_pages(lambda token: page(token, 50_000, last=30))
    assert len(read) == 21
    read.clear()
    with pytest.raises(Refused, match="the listing has 1,000 pages without an object"):
        all_pages(lambda token: page(token, 0, last=1100))
    assert len(read) == 1001


def test_pages_without_an_object_are_no_end_where_one_comes_at_last() -> None:
    rows = [0] * 1000 + [2] + [0] * 1000 + [1]
    pages = [[f"{number}/{row}" for row in range(size)] for number, size in enumerate(rows)]

    def read(token: str) -> tuple[list[str], str | None]:
        number = int(token or 0)
        return pages[number], str(number + 1) if number + 1 < len(pages) else None

    assert len(all_pages(read)) == 3
