"""Listings in pages: all rows of those that end, and an error for those that do not."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import pytest
from hypothesis import given
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


SILENT = {
    "of pages that come quickly": (0.01, 3600),
    "of pages that take their time": (0.2, 180),
    "of pages that hang": (10.0, 4),
    "of pages that take longer": (40.0, 1),
}


@pytest.mark.parametrize("case", SILENT)
def test_a_listing_that_brings_no_object_is_given_up_in_its_time(case: str) -> None:
    page_s, last = SILENT[case]
    listing = Listing(0, page_s)
    with pytest.raises(Temporary, match="the listing brought no object in 36 s"):
        all_pages(listing.page, now=listing.now)
    assert abs(listing.read - last) <= 1


def paced(pages: list[tuple[int, float]], clock: list[float]) -> Callable[[str], tuple[list[Row], str | None]]:
    """Return a listing of pages of so many rows, each of which takes so many seconds of the clock."""

    def read(token: str) -> tuple[list[Row], str | None]:
        number = int(token or 0)
        clock[0] += pages[number][1]
        return rows_of(str(number), pages[number][0]), str(number + 1) if number + 1 < len(pages) else None

    return read


@given(st.lists(st.tuples(st.sampled_from([0, 0, 1, 1000]), st.sampled_from([1, 20, 35, 36, 40])), min_size=1))
def test_a_listing_is_given_up_exactly_where_36_s_pass_without_an_object_before_its_last_page(
    pages: list[tuple[int, float]],
) -> None:
    silent_s, is_given_up = 0.0, False
    for size, page_s in pages[:-1]:
        silent_s = 0.0 if size else silent_s + page_s
        is_given_up |= silent_s >= 36
    clock = [0.0]
    try:
        rows = len(all_pages(paced(pages, clock), now=lambda: clock[0]))
    except Temporary:
        assert is_given_up
    else:
        assert not is_given_up
        assert rows == sum(size for size, _ in pages)


@pytest.mark.parametrize("page_s", [5.3, 35.0, 3600.0])
def test_a_listing_of_an_object_at_a_time_is_refused_after_a_day(page_s: float) -> None:
    listing = Listing(1, page_s, pages=20_000)
    with pytest.raises(Refused, match="the listing has not ended within a day"):
        all_pages(listing.page, now=listing.now)
    assert 24 * 3600 <= listing.now() < 24 * 3600 + page_s


def test_the_longest_listing_of_pages_of_5_s_takes_less_than_a_day() -> None:
    listing = Listing(1, 5.0, pages=16_384)
    assert len(all_pages(listing.page, now=listing.now)) == 16_384


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


def test_a_listing_of_pages_of_an_object_each_is_refused_at_the_16385th() -> None:
    listing = Listing(1, 0.001, pages=20_000)
    with pytest.raises(Refused, match="the listing has 16,384 objects in 16,384 pages, and there are more"):
        all_pages(listing.page, now=listing.now)
    assert listing.read == 16_385


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 5)), min_size=1, max_size=7))
def test_each_page_is_retried_alone_with_patience_since_the_last_object(pages: list[tuple[int, float]]) -> None:
    now, progress_s, want = 0.0, 0.0, []
    for size, page_s in pages:
        want += [progress_s, progress_s]
        now += page_s
        progress_s = now if size else progress_s
    clock, asked, found = [0.0], list[str](), list[float]()
    page = paced(pages, clock)

    def read(token: str) -> tuple[list[Row], str | None]:
        asked.append(token)
        if asked.count(token) == 1:
            raise Temporary("status 503")
        return page(token)

    def retry(request: Callable[[], T], since: float) -> T:
        found.append(since)
        try:
            return request()
        except Temporary:
            return retry(request, since)

    assert len(all_pages(read, retry, lambda: clock[0])) == sum(size for size, _ in pages)
    assert found == want
    assert asked == [each for number in range(len(pages)) for each in [str(number or "")] * 2]
