"""Listings that come in pages: each names the next one, and none may come twice."""

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from tessera.clients.store.protocol import Refused, Retry, Temporary, once
from tessera.core.storage.retries import Patience

__all__ = ["ListingPace", "all_pages"]

_MOST_BYTES = 2**30
"""Of rows: about 2.8 million objects with names of 40 characters, for which a process had 1,052 MiB at its peak."""
_ROW_BYTES = 336
"""What a row takes beside its name, as measured with an ETag that is an MD5."""
_PAGE_BYTES = 64 * 1024
"""What a page counts at least, so that there are at most 16,384 of them."""
_PACE_ROWS, _PACE_S = 1000, Patience().give_up_s
"""At least so many rows in this time: one page of S3, which usually takes less than a second."""


class _Named(Protocol):
    @property
    def path(self) -> str: ...


_Row = TypeVar("_Row", bound=_Named)


class ListingPace:
    """Refuses a listing that is too slow: fewer than `rows` in 36 s. Thread-safe.

    Args:
        rows: how many count as progress.
        of: what the rows are, for the error.
        now: seconds of a monotonic clock.

    """

    def __init__(self, rows: int, of: str, now: Callable[[], float]) -> None:
        self._rows, self._of, self._now = rows, of, now
        self._lock = threading.Lock()
        self._recent = 0
        self.progress_s = now()
        """When so many rows had come last."""

    def count(self, rows: int) -> None:
        """Note that rows came, and that there are more.

        Raises:
            Temporary: it is too slow.

        """
        with self._lock:
            self._recent += rows
            now_s = self._now()
            if self._recent >= self._rows:
                self.progress_s, self._recent = now_s, 0
            elif now_s - self.progress_s >= _PACE_S:
                raise Temporary(f"the listing brought fewer than {self._rows:,} {self._of} in {_PACE_S:.0f} s")


def all_pages(
    read: Callable[[str], tuple[Sequence[_Row], str | None]],
    retry: Retry = once,
    now: Callable[[], float] = time.monotonic,
) -> list[_Row]:
    """Return the rows of all pages.

    Args:
        read: returns the rows of a page by its token, which is empty for the first one, and the token of the next
            page; None after the last one.
        retry: reads each page; what came before is kept. The last progress is when a thousand rows had come.
        now: seconds of a monotonic clock.

    Raises:
        Temporary: the pages repeat, so that there is no last one, or fewer than a thousand rows came in 36 s.
        Refused: the rows take more than a GiB of memory, or come in more than 16,384 pages.

    """
    found: list[_Row] = []
    token, known, first, row_bytes = "", {""}, set[str](), 0
    pace = ListingPace(_PACE_ROWS, "objects", now)
    while True:
        rows, following = retry(partial(read, token), pace.progress_s)
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
        pace.count(len(rows))
    raise Temporary("the listing does not end: its pages repeat")
