"""Listings that come in pages: each names the next one, and none may come twice."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from tessera.clients.store.protocol import Refused, Retry, Temporary, once
from tessera.core.storage.retries import Patience

__all__ = ["all_pages", "refuse_long"]

_MOST_BYTES = 2**30
"""Of rows: about 2.8 million objects with names of 40 characters, for which a process had 1,052 MiB at its peak."""
_ROW_BYTES = 336
"""What a row takes beside its name, as measured with an ETag that is an MD5."""
_PAGE_BYTES = 64 * 1024
"""What a page counts at least, so that there are at most 16,384 of them."""
_PROGRESS_S = Patience().give_up_s
"""Without a row for so long a listing is given up."""
_LONGEST_S = 24 * 3600.0
"""Of a whole listing: 16,384 pages of a bucket, or 10,000 folders of a web server, take less at 5 s each."""


class _Named(Protocol):
    @property
    def path(self) -> str: ...


_Row = TypeVar("_Row", bound=_Named)


def refuse_long(elapsed_s: float) -> None:
    """Refuse a listing that goes on although it has taken a day: what it brings has no end, or comes too slowly.

    Raises:
        Refused: it has.

    """
    if elapsed_s >= _LONGEST_S:
        raise Refused("the listing has not ended within a day", fix="name a folder of the model, or a faster server")


def all_pages(
    read: Callable[[str], tuple[Sequence[_Row], str | None]],
    retry: Retry = once,
    now: Callable[[], float] = time.monotonic,
) -> list[_Row]:
    """Return the rows of all pages.

    Args:
        read: returns the rows of a page by its token, which is empty for the first one, and the token of the next
            page; None after the last one.
        retry: reads each page; what came before is kept. The last progress is the last page that had rows.
        now: seconds of a monotonic clock.

    Raises:
        Temporary: the pages repeat, so that there is no last one, or no row came in 36 s.
        Refused: the rows take more than a GiB of memory, come in more than 16,384 pages, or take a day.

    """
    found: list[_Row] = []
    token, known, first, row_bytes = "", {""}, set[str](), 0
    begun_s = progress_s = now()
    while True:
        rows, following = retry(partial(read, token), progress_s)
        if rows and rows[0].path in first:
            break
        first.update(each.path for each in rows[:1])
        row_bytes += max(_PAGE_BYTES, sum(_ROW_BYTES + len(each.path) for each in rows))
        if row_bytes > _MOST_BYTES:
            problem = f"{len(found):,} objects in {len(known) - 1:,} pages, and there are more"
            raise Refused(f"the listing has {problem}: too many for a GiB of memory", fix="name a folder of the model")
        found += rows
        if following is None:
            return found
        if following in known:
            break
        known.add(following)
        token = following
        now_s = now()
        if rows:
            progress_s = now_s
        elif now_s - progress_s >= _PROGRESS_S:
            raise Temporary(f"the listing brought no object in {_PROGRESS_S:.0f} s")
        refuse_long(now_s - begun_s)
    raise Temporary("the listing does not end: its pages repeat")
