"""The interface of a store of objects: list them, read a range of one."""

from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from tessera.core.storage.models.revisions import StoredObject

__all__ = ["SMALL_BYTES", "Body", "Changed", "Contents", "ObjectStore", "Refused", "Retry", "Temporary", "once"]

_T = TypeVar("_T")

SMALL_BYTES = 64 * 1024
"""Of objects whose requests cost more than their bytes."""
Contents = Generator[tuple[StoredObject, memoryview | None], None, None]
"""Objects with their content, or None in place of one."""


class Temporary(Exception):
    """A request failed temporarily: no connection, a broken body, 5xx, 429.

    Args:
        reason: what happened.
        retry_after_s: requested by the store; 0 for none.

    """

    def __init__(self, reason: str, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class Refused(Exception):
    """A request failed for good: no such object, no permission.

    Args:
        reason: what happened.
        status: of HTTP; 0 where there is none.
        fix: what to do about it.

    """

    def __init__(
        self, reason: str, status: int = 0, *, fix: str = "check the address, and your right to read it"
    ) -> None:
        super().__init__(reason)
        self.status = status
        self.fix = fix


class Changed(Exception):
    """The object differs from the listed one."""


class Body(Protocol):
    """The bytes of a range, as they arrive."""

    @property
    def etag_is_checksum(self) -> bool:
        """Whether a checksum derived from the ETag is valid; not if the store encrypts with a key of its own."""

    def readinto(self, view: memoryview) -> int:
        """Fill the view's beginning with available bytes, at least one; return 0 after the last one.

        Raises:
            Temporary: the connection broke, or brought nothing for the store's timeout.

        """


class Retry(Protocol):
    """Returns the answer to a request, which is sent again after a temporary failure."""

    def __call__(self, request: Callable[[], _T], since: float, /) -> _T:
        """Return the answer; `since` is when progress was last made, on the monotonic clock."""


def once(request: Callable[[], _T], _since: float) -> _T:
    """Return the answer to a request that is sent once."""
    return request()


class ObjectStore(Protocol):
    """Objects below one source; thread-safe.

    Each method raises `Temporary`, `Refused` or `Changed`.
    """

    @property
    def source(self) -> str:
        """Its address, without credentials, for errors and manifests."""

    @property
    def requests(self) -> int:
        """Number of requests."""

    @property
    def pipelines(self) -> bool:
        """Whether many small objects arrive faster by `read_small` than by a `read` each."""

    def objects(self, retry: Retry = once, /) -> tuple[StoredObject, ...]:
        """Return all objects, with names below the source; where they come in pages, each page is retried alone."""

    def read_small(self, objects: Iterable[StoredObject]) -> Contents:
        """Yield objects of 1 to `SMALL_BYTES` bytes with their content, in any order.

        A content is valid until the next one is taken. What has to be read alone, by `read`, comes without: nothing is
        raised here.
        """

    def read(self, stored: StoredObject, start: int, stop: int) -> AbstractContextManager[Body]:
        """Open the bytes from `start` to before `stop` of the listed object."""

    def close(self) -> None:
        """Close connections."""
