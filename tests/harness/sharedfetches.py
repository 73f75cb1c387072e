"""The parts of a fetch that is shared with peers, over a store in memory: two large objects, no peer that answers."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from harness.peernodes import PATIENCE, peer_tls
from tessera.agent.storage.models.cancellation import Cancellation
from tessera.agent.storage.models.peers.chunksources import ChunkSources
from tessera.agent.storage.models.peers.peerchunks import PeerChunks
from tessera.agent.storage.models.peers.sharedchunks import SharedChunks
from tessera.agent.storage.models.reading import Progress, Reader, TransferLimits, TransferSource
from tessera.certificates import asking_context_of
from tessera.clients.store import MemoryStore
from tessera.clients.store.peers import PeerConnections
from tessera.core.storage.models.revisions import CHUNK_BYTES

__all__ = ["FIRST", "SECOND", "SharedFetch", "part", "shared_fetch"]

FIRST = os.urandom(2 * CHUNK_BYTES + 7)
SECOND = os.urandom(CHUNK_BYTES + 7)


class SharedFetch(NamedTuple):
    """Its parts, with the peers named as bad."""

    store: MemoryStore
    reader: Reader
    chunks: SharedChunks
    sources: ChunkSources
    peers: PeerChunks
    named: dict[str, str]

    def missing(self) -> set[tuple[int, int]]:
        return set(self.chunks.state.missing)


def part(content: bytes, chunk: int) -> memoryview:
    return memoryview(content)[chunk * CHUNK_BYTES : (chunk + 1) * CHUNK_BYTES]


@contextmanager
def shared_fetch(folder: Path, pki: Path) -> Iterator[SharedFetch]:
    """Begin to fetch `FIRST` and `SECOND`; all chunks are missing."""
    store = MemoryStore({"first.bin": FIRST, "second.bin": SECOND})
    progress = Progress(lambda _done, _total: None, len(FIRST) + len(SECOND))
    reader = Reader(TransferSource(store, TransferLimits(), progress, Cancellation()))
    named: dict[str, str] = {}
    connections = PeerConnections(asking_context_of(peer_tls(pki)), PATIENCE)
    peers = PeerChunks("127.0.0.1:1", connections, PATIENCE, named.__setitem__)
    peers.begin(store.objects())
    chunks = SharedChunks(folder, reader, peers)
    chunks.open(store.objects())
    chunks.state.expect({(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)})
    try:
        yield SharedFetch(store, reader, chunks, ChunkSources(chunks, reader, peers), peers, named)
    finally:
        chunks.state.end()
        chunks.close()
        peers.close()
