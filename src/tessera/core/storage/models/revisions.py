"""A revision of a model: its files with their digests, and the name derived from them."""

import hashlib

import msgspec

__all__ = ["CHUNK_BYTES", "Manifest", "ModelFile", "StoredObject", "chunk_count", "chunk_range", "revision_of"]

CHUNK_BYTES = 8 * 2**20
"""The unit of fetching, verifying and resuming; a multiple of every disk's block size."""


class StoredObject(msgspec.Struct, frozen=True):
    """An object in its store's listing.

    Args:
        path: its name below the source, with `/` between folders.
        size: bytes.
        etag: changes when the object changes, as the store sends it; empty for none.
        checksum: of the whole content, `md5:<hex>`, `sha1:<hex>`, `sha256:<hex>`, `crc32c:<hex>` or `git:<hex>`, git's
            id of it; empty for none.
        ranges: whether the store serves parts of it.

    """

    path: str
    size: int
    etag: str = ""
    checksum: str = ""
    ranges: bool = True

    @property
    def has_validator(self) -> bool:
        """Whether a change is noticed; if not, the object is read by one request."""
        return bool(self.etag or self.checksum)


class ModelFile(msgspec.Struct, frozen=True):
    """A file of a revision.

    Args:
        path: below the revision's folder.
        size: bytes.
        chunks: the BLAKE3 digests of its chunks of `CHUNK_BYTES`, as hex; one for a file without content.
        etag: the object's when it was fetched.
        checksum: the store's, against which it was verified; empty where there was none.

    """

    path: str
    size: int
    chunks: tuple[str, ...]
    etag: str = ""
    checksum: str = ""


class Manifest(msgspec.Struct, frozen=True):
    """The files of a revision, in the order of their paths, and the source they came from."""

    source: str
    files: tuple[ModelFile, ...]

    @property
    def revision(self) -> str:
        """The revision's name, derived from paths, sizes and content alone."""
        return revision_of(self.files)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def unverified(self) -> tuple[ModelFile, ...]:
        """The files with content that no checksum of the store verified: in transit nothing but TLS did."""
        return tuple(file for file in self.files if file.size and not file.checksum)

    @property
    def unverified_bytes(self) -> int:
        """Bytes of these."""
        return sum(file.size for file in self.unverified)


def revision_of(files: tuple[ModelFile, ...]) -> str:
    """Return the SHA-256 of paths, sizes and digests: the same on every node and from every store."""
    digest = hashlib.sha256(b"tessera model revision 1\n")
    for file in sorted(files, key=lambda file: file.path):
        name = file.path.encode()
        digest.update(b"%d %s %d %s\n" % (len(name), name, file.size, ",".join(file.chunks).encode()))
    return digest.hexdigest()


def chunk_count(size: int) -> int:
    """Return how many chunks a file of so many bytes has: at least one."""
    return max(1, -(-size // CHUNK_BYTES))


def chunk_range(size: int, index: int) -> tuple[int, int]:
    """Return where a chunk starts and where it ends."""
    return index * CHUNK_BYTES, min(size, (index + 1) * CHUNK_BYTES)
