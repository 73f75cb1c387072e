"""Digests of content: BLAKE3 of chunks, and the stores' checksums of whole objects."""

import hashlib
from collections.abc import Callable
from typing import Protocol

from blake3 import blake3

__all__ = ["Checksum", "chunk_digest", "start_checksum", "start_chunk"]


class Checksum(Protocol):
    """A digest that is fed in order."""

    def update(self, data: memoryview, /) -> object:
        """Take the next bytes."""

    def hexdigest(self) -> str:
        """Return the digest of what was taken."""


def chunk_digest(data: memoryview | bytes) -> str:
    """Return the BLAKE3 of a chunk, as hex."""
    return blake3(data).hexdigest()


def start_chunk() -> Checksum:
    """Return what computes the digest of a chunk that comes in pieces."""
    return blake3()


_KINDS: dict[str, Callable[[], Checksum]] = {
    "md5": lambda: hashlib.md5(usedforsecurity=False),
    "sha1": lambda: hashlib.sha1(usedforsecurity=False),
    "sha256": hashlib.sha256,
}


def start_checksum(checksum: str, size: int) -> Checksum | None:
    """Return what computes a store's checksum of so many bytes; None for none, and for kinds that are not known."""
    kind = checksum.partition(":")[0]
    if kind == "git":  # git's id of a file, which begins with its length
        return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    make = _KINDS.get(kind)
    return make() if make else None
