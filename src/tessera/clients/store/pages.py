"""Listings that come in pages: each names the next one, and none may come twice."""

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from tessera.clients.store.protocol import Temporary

__all__ = ["all_pages"]

_PAGES = 100_000

_Row = TypeVar("_Row", bound=Hashable)


def all_pages(read: Callable[[str], tuple[Sequence[_Row], str | None]]) -> list[_Row]:
    """Return the rows of all pages.

    Args:
        read: returns the rows of a page by its token, which is empty for the first one, and the token of the next
            page; None after the last one.

    Raises:
        Temporary: the pages repeat, so that there is no last one.

    """
    found: list[_Row] = []
    token, known, first = "", {""}, set[_Row]()
    for _ in range(_PAGES):
        rows, following = read(token)
        if rows and rows[0] in first:
            break
        first.update(rows[:1])
        found += rows
        if following is None:
            return found
        if following in known:
            break
        known.add(following)
        token = following
    raise Temporary("the listing does not end: its pages repeat")
