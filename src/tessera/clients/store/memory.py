"""An in-memory store: for tests, demos and dry runs."""

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping

from tessera.clients.store.protocol import Changed, Contents, Refused, Retry, once
from tessera.core.storage.models.revisions import StoredObject

__all__ = ["MemoryStore"]


class MemoryStore:
    """A store of bytes by path, which may be changed at any time.

    Args:
        contents: the objects.
        source: the name it has.

    """

    pipelines = False

    def __init__(self, contents: Mapping[str, bytes], source: str = "memory://models") -> None:
        self.contents = dict(contents)
        self.source = source
        self.requests = 0

    def objects(self, _retry: Retry = once, /) -> tuple[StoredObject, ...]:
        """Return all objects, each with the MD5 of its content."""
        self.requests += 1
        return tuple(_listed(path, content) for path, content in sorted(self.contents.items()))

    def read_small(self, objects: Iterable[StoredObject]) -> Contents:
        """Yield the objects without their content."""
        return ((each, None) for each in objects)

    @contextlib.contextmanager
    def read(self, stored: StoredObject, start: int, stop: int) -> Iterator["_Bytes"]:
        """Open a range."""
        self.requests += 1
        content = self.contents.get(stored.path)
        if content is None:
            raise Refused("no such object")
        if _listed(stored.path, content).etag != stored.etag:
            raise Changed("another ETag")
        yield _Bytes(content[start:stop])

    def close(self) -> None:
        """Do nothing."""


def _listed(path: str, content: bytes) -> StoredObject:
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    return StoredObject(path, len(content), digest, f"md5:{digest}")


class _Bytes:
    etag_is_checksum = True

    def __init__(self, content: bytes) -> None:
        self._rest = memoryview(content)

    def readinto(self, view: memoryview) -> int:
        """Copy what fits."""
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count
