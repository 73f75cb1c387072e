"""Digests of content: BLAKE3 of chunks, and the stores' checksums of whole objects."""

import hashlib
from collections.abc import Callable
from typing import Protocol

from blake3 import blake3

__all__ = ["Checksum", "chunk_digest", "chunk_mismatch", "matches", "start_checksum", "start_chunk"]

_COPIED = 256 * 1024
"""Bytes that are copied at once for a library that reads no buffer: they stay in the processor's cache."""


class Checksum(Protocol):
    """A digest of bytes in order."""

    def update(self, data: memoryview, /) -> object:
        """Add the next bytes."""

    def hexdigest(self) -> str:
        """Return the digest."""


def chunk_digest(data: memoryview | bytes) -> str:
    """Return the BLAKE3 of a chunk, as hex."""
    return blake3(data).hexdigest()


def chunk_mismatch(first: int, stop: int) -> str:
    """Return the problem of a file with a chunk of another digest than that which was fetched."""
    return f"checksum mismatch in bytes {first}-{stop - 1}"


def start_chunk() -> Checksum:
    """Return the incremental digest of a chunk."""
    return blake3()


class _PartsMd5:
    """The ETag of an object that was uploaded in parts: the MD5 of their MD5s, and the number of parts.

    Args:
        size: bytes of each part but the last.

    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._done = hashlib.md5(usedforsecurity=False)
        self._count = 0
        self._part = hashlib.md5(usedforsecurity=False)
        self._missing = size

    def update(self, data: memoryview) -> None:
        """Add the next bytes."""
        while len(data):
            view = data[: self._missing]
            self._part.update(view)
            data, self._missing = data[len(view) :], self._missing - len(view)
            if not self._missing:
                self._end_part(self._done)
                self._count += 1
                self._part, self._missing = hashlib.md5(usedforsecurity=False), self._size

    def _end_part(self, done: "hashlib._Hash") -> None:
        done.update(self._part.digest())

    def hexdigest(self) -> str:
        """Return the ETag."""
        done, count = self._done.copy(), self._count
        if self._missing < self._size:
            self._end_part(done)
            count += 1
        return f"{done.hexdigest()}-{count}"


class _Crc32c:
    """The CRC32C of an object, as Google Cloud Storage has it, also of objects that were composed of others."""

    def __init__(self) -> None:
        # Imported here because the extra `gs` alone has it.
        from google_crc32c import Checksum  # noqa: PLC0415

        self._done = Checksum()  # type: ignore[no-untyped-call]

    def update(self, data: memoryview) -> None:
        """Add the next bytes."""
        for start in range(0, len(data), _COPIED):
            self._done.update(bytes(data[start : start + _COPIED]))  # type: ignore[no-untyped-call]

    def hexdigest(self) -> str:
        """Return the digest."""
        return str(self._done.hexdigest(), "ascii")  # type: ignore[no-untyped-call]


_KINDS: dict[str, Callable[[], Checksum]] = {
    "crc32c": _Crc32c,
    "md5": lambda: hashlib.md5(usedforsecurity=False),
    "sha1": lambda: hashlib.sha1(usedforsecurity=False),
    "sha256": hashlib.sha256,
}


def start_checksum(checksum: str, size: int) -> Checksum | None:
    """Return the incremental form of a store's checksum of so many bytes; None for none, and for unknown kinds."""
    kind = checksum.partition(":")[0]
    if kind.startswith("md5-"):
        return _PartsMd5(int(kind.removeprefix("md5-")))
    if kind == "git":  # git's id of a file, which begins with its length
        return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    make = _KINDS.get(kind)
    return make() if make else None


def matches(checksum: Checksum, expected: str) -> bool:
    """Return whether a computed checksum is the store's."""
    return checksum.hexdigest() == expected.partition(":")[2]
