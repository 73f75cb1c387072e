"""Listings that come in pages: each names the next one, and none may come twice."""

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from tessera.clients.store.protocol import Refused, Temporary

__all__ = ["all_pages"]

_ROWS = 1_000_000
_EMPTY_PAGES = 1000
"""In a row; a store that filters what it lists has some."""

_Row = TypeVar("_Row", bound=Hashable)


def all_pages(read: Callable[[str], tuple[Sequence[_Row], str | None]]) -> list[_Row]:
    """Return the rows of all pages.

    Args:
        read: returns the rows of a page by its token, which is empty for the first one, and the token of the next
            page; None after the last one.

    Raises:
        Temporary: the pages repeat, so that there is no last one.
        Refused: there are more than a million rows, or a thousand pages in a row without any.

    """
    found: list[_Row] = []
    token, known, first, empty = "", {""}, set[_Row](), 0
    while True:
        rows, following = read(token)
        if rows and rows[0] in first:
            break
        empty = 0 if rows else empty + 1
        if len(found) + len(rows) > _ROWS or empty > _EMPTY_PAGES:
            problem = f"{_EMPTY_PAGES:,} pages without an object" if empty else f"more than {_ROWS:,} objects"
            raise Refused(f"the listing has {problem}", fix="name a folder of the model")
        first.update(rows[:1])
        found += rows
        if following is None:
            return found
        if following in known:
            break
        known.add(following)
        token = following
    raise Temporary("the listing does not end: its pages repeat")
