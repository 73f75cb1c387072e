"""Listings in pages: all rows of those that end, and an error for those that do not."""

from collections.abc import Callable
from itertools import count
from typing import NamedTuple, TypeVar

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tessera.clients.store import Refused, Temporary
from tessera.clients.store.pages import all_pages

T = TypeVar("T")


class Row(NamedTuple):
    path: str


def rows_of(page: str, size: int) -> list[Row]:
    return [Row(f"{page}/{row}") for row in range(size)]


@given(st.lists(st.integers(0, 3), min_size=1))
def test_all_rows_of_all_pages_are_returned_in_their_order(sizes: list[int]) -> None:
    rows = [rows_of(str(number), size) for number, size in enumerate(sizes)]

    def read(token: str) -> tuple[list[Row], str | None]:
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
    def read(token: str) -> tuple[list[Row], str]:
        names, following = ENDLESS[case][token]
        return [Row(each) for each in names], following

    with pytest.raises(Temporary, match="does not end"):
        all_pages(read)


class Listing:
    """A listing of pages of one size, each after the same time.

    Args:
        size: rows of a page.
        page_s: seconds that it takes.
        pages: how many there are; one more is an error of the test.

    """

    def __init__(self, size: int, page_s: float, *, pages: int = 10_000) -> None:
        self.size, self.page_s, self.pages = size, page_s, pages
        self.read = 0

    def page(self, token: str) -> tuple[list[Row], str | None]:
        assert self.read < self.pages, "it is read for ever"
        self.read += 1
        return rows_of(token, self.size), str(self.read) if self.read < self.pages else None

    def now(self) -> float:
        return self.read * self.page_s


SLOW = {
    "of pages without an object": (0, 0.2, 180),
    "of pages with an object": (1, 0.2, 180),
    "of pages that hang": (0, 10.0, 4),
    "of many pages without an object": (0, 0.01, 3600),
    "of 999 objects in the time": (111, 4.0, 9),
}


@pytest.mark.parametrize("case", SLOW)
def test_a_listing_without_progress_is_given_up_in_its_time(case: str) -> None:
    size, page_s, last = SLOW[case]
    listing = Listing(size, page_s)
    with pytest.raises(Temporary, match="the listing brought fewer than 1,000 objects in 36 s"):
        all_pages(listing.page, now=listing.now)
    assert abs(listing.read - last) <= 1


@given(st.integers(0, 300), st.floats(0.5, 40))
def test_a_listing_is_given_up_exactly_where_36_s_pass_before_the_page_with_the_thousandth_object(
    size: int, page_s: float
) -> None:
    listing = Listing(size, page_s, pages=20)
    fewer_s = page_s * min(19, (999 // size if size else 19))
    assume(abs(fewer_s - 36.0) > 0.001)
    if fewer_s > 36.0:
        with pytest.raises(Temporary, match="fewer than 1,000 objects"):
            all_pages(listing.page, now=listing.now)
    else:
        assert len(all_pages(listing.page, now=listing.now)) == 20 * size


@pytest.mark.parametrize(("name_length", "most"), [(40, 2_850_000), (1024, 790_000)])
def test_a_listing_is_refused_where_it_would_take_a_gib_of_memory(name_length: int, most: int) -> None:
    listing = Listing(1, 1.0)
    others = [Row("x" * name_length)] * 49_999  # one name: the memory is not needed to count it

    def read(token: str) -> tuple[list[Row], str | None]:
        rows, following = listing.page(token)
        return rows + others, following

    with pytest.raises(
        Refused, match=r"the listing has [0-9,]+ objects in [0-9,]+ pages, and there are more: too many for a GiB"
    ):
        all_pages(read, now=listing.now)
    assert most - 100_000 < listing.read * 50_000 < most + 100_000


def test_pages_without_an_object_are_no_end_where_one_comes_in_time() -> None:
    sizes = [0] * 1000 + [1000] + [0] * 1000 + [1]

    def read(token: str) -> tuple[list[Row], str | None]:
        number = int(token or 0)
        return rows_of(str(number), sizes[number]), str(number + 1) if number + 1 < len(sizes) else None

    times = count()
    assert len(all_pages(read, now=lambda: next(times) * 0.017)) == 1001


def test_a_listing_of_pages_of_an_object_each_is_refused_at_the_16385th() -> None:
    listing = Listing(1, 0.001, pages=20_000)
    with pytest.raises(Refused, match="the listing has 16,384 objects in 16,384 pages, and there are more"):
        all_pages(listing.page, now=listing.now)
    assert listing.read == 16_385


@given(st.lists(st.tuples(st.integers(0, 1200), st.floats(0, 5)), min_size=1, max_size=7))
def test_each_page_is_retried_alone_with_patience_since_the_last_thousand_rows(pages: list[tuple[int, float]]) -> None:
    now, recent, progress_s, want = 0.0, 0, 0.0, []
    for size, page_s in pages:
        want += [progress_s, progress_s]
        now, recent = now + page_s, recent + size
        if recent >= 1000:
            progress_s, recent = now, 0
    clock, asked, found = [0.0], list[str](), list[float]()

    def read(token: str) -> tuple[list[Row], str | None]:
        asked.append(token)
        number = int(token or 0)
        if asked.count(token) == 1:
            raise Temporary("status 503")
        clock[0] += pages[number][1]
        return rows_of(str(number), pages[number][0]), str(number + 1) if number + 1 < len(pages) else None

    def retry(request: Callable[[], T], since: float) -> T:
        found.append(since)
        try:
            return request()
        except Temporary:
            return retry(request, since)

    assert len(all_pages(read, retry, lambda: clock[0])) == sum(size for size, _ in pages)
    assert found == want
    assert asked == [each for number in range(len(pages)) for each in [str(number or "")] * 2]
