"""What a node serves to its peers: chunks of its current fetch, and of its revisions."""

import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Protocol, Self

import msgspec

from tessera.clients.store.peers import ChunkAbsent, Pending
from tessera.core.storage.models.peers.multipart import proof_of
from tessera.core.storage.models.peers.owners import LEAST_BYTES, content_key
from tessera.core.storage.models.revisions import Manifest, chunk_range

__all__ = ["ChunkProvider", "OpenChunk", "ServedContent", "StoredChunk"]


class StoredChunk(msgspec.Struct, frozen=True):
    """A chunk on the disk, and its digest when it was written."""

    path: Path
    offset: int
    size: int
    digest: str


class OpenChunk(NamedTuple):
    """A chunk, and the descriptor of its open file; the caller closes it."""

    number: int
    piece: StoredChunk


class ChunkProvider(Protocol):
    """Content that is being fetched."""

    def take(self, chunk: int, wait_s: float | None) -> StoredChunk:
        """Return a chunk, fetching it first if it is missing.

        Args:
            chunk: index.
            wait_s: how long to wait for it; None to fetch nothing, and return only verified content.

        Raises:
            ChunkAbsent: there is no such chunk, or the fetch has ended.
            Pending: it is not there after so many seconds.

        """


class ServedContent:
    """The content served to peers, by content keys: no file name comes from a peer.

    As a context manager it is one fetch.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fetched: dict[str, ChunkProvider] = {}
        self._revisions: dict[str, dict[str, tuple[Path, tuple[str, ...], int]]] = {}
        """By folder: key, path, digests of chunks and size of each file of its revisions."""

    def __enter__(self) -> Self:
        """Start a fetch."""
        return self

    def __exit__(self, *_error: object) -> None:
        """End it: its content is a revision now, or was abandoned."""
        with self._lock:
            self._fetched.clear()

    def offer(self, key: str, provider: ChunkProvider) -> None:
        """Serve content that is being fetched."""
        with self._lock:
            self._fetched[key] = provider

    def serve(self, versions: Path, manifests: Iterable[Manifest]) -> None:
        """Serve exactly the files of a folder's revisions; packed revisions have no files."""
        files = {}
        for manifest in manifests:
            for file in manifest.files:
                key = content_key(proof_of(file), file.size) if file.size > LEAST_BYTES else ""
                if key:
                    files[key] = (versions / manifest.revision / file.path, file.chunks, file.size)
        with self._lock:
            self._revisions[str(versions)] = files

    def open(self, key: str, chunk: int, wait_s: float | None) -> OpenChunk:
        """Return a chunk of content.

        Args:
            key: of the content.
            chunk: index.
            wait_s: how long to wait for it; None to return only verified content.

        Raises:
            ChunkAbsent: it is not here.
            Pending: it is not there after so many seconds.

        """
        with self._lock:
            provider = self._fetched.get(key)
            file = next((folder[key] for folder in self._revisions.values() if key in folder), None)
        if file is not None and chunk < len(file[1]):
            path, digests, size = file
            first, last = chunk_range(size, chunk)
            return _opened(StoredChunk(path, first, last - first, digests[chunk]), ChunkAbsent)
        if provider is not None:
            return _opened(provider.take(chunk, wait_s), Pending)  # it was just published, and is a revision soon
        raise ChunkAbsent


def _opened(piece: StoredChunk, missing: type[Exception]) -> OpenChunk:
    try:
        return OpenChunk(os.open(piece.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), piece)
    except OSError as error:
        raise missing from error
