"""Listings that come in pages: each names the next one, and none may come twice."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from tessera.clients.store.protocol import Refused, Temporary
from tessera.core.storage.retries import Attempts, Patience

__all__ = ["all_pages"]

_MOST_BYTES = 2**30
"""Of rows: about 2.8 million objects with names of 40 characters, for which a process had 1,052 MiB at its peak."""
_ROW_BYTES = 336
"""What a row takes beside its name, as measured with an ETag that is an MD5."""
_PACE = Patience(stall_s=Patience().give_up_s, progress_bytes=1000)
"""A listing goes on while so many rows come in this time: a page of S3, which usually takes less than a second."""


class _Named(Protocol):
    @property
    def path(self) -> str: ...


_Row = TypeVar("_Row", bound=_Named)


def all_pages(
    read: Callable[[str], tuple[Sequence[_Row], str | None]], now: Callable[[], float] = time.monotonic
) -> list[_Row]:
    """Return the rows of all pages.

    Args:
        read: returns the rows of a page by its token, which is empty for the first one, and the token of the next
            page; None after the last one.
        now: seconds of a monotonic clock.

    Raises:
        Temporary: the pages repeat, so that there is no last one, or fewer than a thousand rows came in 36 s.
        Refused: the rows take more than a GiB of memory.

    """
    found: list[_Row] = []
    token, known, first, row_bytes = "", {""}, set[str](), 0
    pace = Attempts(_PACE, now())
    while True:
        rows, following = read(token)
        if rows and rows[0].path in first:
            break
        first.update(each.path for each in rows[:1])
        row_bytes += sum(_ROW_BYTES + len(each.path) for each in rows)
        if row_bytes > _MOST_BYTES:
            problem = f"{len(found):,} objects, and there are more: a list of over a GiB"
            raise Refused(f"the listing has {problem}", fix="name a folder of the model")
        found += rows
        if following is None:
            return found
        if following in known:
            break
        known.add(following)
        token = following
        pace.progress(now(), len(rows))
        if pace.has_stalled(now()):
            raise Temporary(f"the listing brought fewer than {_PACE.progress_bytes:,} objects in {_PACE.stall_s:.0f} s")
    raise Temporary("the listing does not end: its pages repeat")
