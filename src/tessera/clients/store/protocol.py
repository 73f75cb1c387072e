"""A store of objects: list them, read a range of one."""

from contextlib import AbstractContextManager
from typing import Protocol

from tessera.core.storage.models.revisions import StoredObject

__all__ = ["Body", "Changed", "Refused", "Store", "Temporary"]


class Temporary(Exception):
    """A request failed in a way that may pass: no connection, a broken body, 5xx, 429.

    Args:
        reason: what happened.
        retry_after_s: what the store asks for; 0 where it does not say.

    """

    def __init__(self, reason: str, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class Refused(Exception):
    """A request fails each time: no such object, no rights.

    Args:
        reason: what happened.
        status: of HTTP; 0 where there is none.

    """

    def __init__(self, reason: str, status: int = 0) -> None:
        super().__init__(reason)
        self.status = status


class Changed(Exception):
    """The object is no longer the one that was listed."""


class Body(Protocol):
    """The bytes of a range, as they come."""

    @property
    def etag_is_checksum(self) -> bool:
        """Whether a checksum that was read off the ETag holds; not where the store encrypts with a key of its own."""

    def readinto(self, view: memoryview) -> int:
        """Fill the view's beginning with what is there, at least a byte; return 0 after the last one.

        Raises:
            Temporary: the connection broke, or brought nothing for the store's timeout.

        """


class Store(Protocol):
    """Objects below one source; used by several threads at once.

    Each method raises `Temporary`, `Refused` or `Changed`.
    """

    @property
    def source(self) -> str:
        """Where it is, without credentials, as errors and manifests name it."""

    @property
    def requests(self) -> int:
        """How many requests were made."""

    @property
    def asks_ahead(self) -> bool:
        """Whether `ask_ahead` does anything: the store is behind a network, and answers while we do other work."""

    def objects(self) -> tuple[StoredObject, ...]:
        """Return all objects, with names below the source."""

    def ask_ahead(self, found: StoredObject) -> None:
        """Ask for a whole object that `read` is called for soon. It never fails: `read` then asks again."""

    def read(self, found: StoredObject, start: int, stop: int) -> AbstractContextManager[Body]:
        """Open the bytes from `start` to before `stop` of the object as it was listed."""

    def close(self) -> None:
        """Close connections."""
