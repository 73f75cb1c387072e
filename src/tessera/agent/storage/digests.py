"""Digests of content: BLAKE3 of chunks, and the stores' checksums of whole objects."""

import hashlib
from collections.abc import Callable
from typing import Protocol

from blake3 import blake3

__all__ = ["Checksum", "chunk_digest", "start_checksum"]


class Checksum(Protocol):
    """A digest that is fed in order."""

    def update(self, data: memoryview, /) -> object:
        """Take the next bytes."""

    def hexdigest(self) -> str:
        """Return the digest of what was taken."""


def chunk_digest(data: memoryview | bytes) -> str:
    """Return the BLAKE3 of a chunk, as hex."""
    return blake3(data).hexdigest()


_KINDS: dict[str, Callable[[], Checksum]] = {
    "md5": lambda: hashlib.md5(usedforsecurity=False),
    "sha1": lambda: hashlib.sha1(usedforsecurity=False),
    "sha256": hashlib.sha256,
}


def start_checksum(checksum: str) -> Checksum | None:
    """Return what computes a store's checksum; None for none, and for kinds that are not known."""
    make = _KINDS.get(checksum.partition(":")[0])
    return make() if make else None
