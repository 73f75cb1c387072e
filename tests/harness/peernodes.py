"""Nodes on the loopback that share models, over real TLS; right ones, and bad ones."""

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from tessera.agent.storage.models.digests import chunk_digest
from tessera.agent.storage.models.folder import ModelFolder
from tessera.agent.storage.models.peers.peerchunks import PeerChunks
from tessera.agent.storage.models.peers.peerserver import PeerServer
from tessera.agent.storage.models.peers.peersharing import PeerSharing
from tessera.agent.storage.models.peers.servedcontent import ChunkProvider, OpenChunk, ServedContent, StoredChunk
from tessera.agent.storage.models.staging import SyncOptions
from tessera.agent.storage.models.sync import Synced, sync
from tessera.certificates import Tls, asking_context_of, context_of
from tessera.clients.store import ObjectStore
from tessera.clients.store.peers import PeerConnections
from tessera.core.storage.models.peers.owners import PeerPatience

__all__ = ["PATIENCE", "BadPeerContent", "BegunContent", "PeerNode", "closing_all", "peer_tls", "synced_together"]

PATIENCE = PeerPatience(silent_s=30.0, pending_s=0.5)
"""A busy machine is no peer that is gone."""


def peer_tls(pki: Path, name: str = "agent") -> Tls:
    return Tls(certificate=pki / f"{name}.crt", key=pki / f"{name}.key", client_authority=pki / "ca.crt")


class BadPeerContent(ServedContent):
    """Gives chunks in which a bit is wrong, as if they had always been so.

    Args:
        scratch: folder for them.
        wrong: says of which chunk.

    """

    def __init__(self, scratch: Path, wrong: Callable[[int], bool] = lambda _chunk: True) -> None:
        super().__init__()
        self._scratch = scratch
        self.wrong = wrong
        self.sent_wrong = 0

    def open(self, key: str, chunk: int, wait_s: float | None) -> OpenChunk:
        found = super().open(key, chunk, wait_s)
        if not self.wrong(chunk):
            return found
        content = bytearray(os.pread(found.number, found.piece.size, found.piece.offset))
        os.close(found.number)
        content[len(content) // 2] ^= 1
        self.sent_wrong += 1
        path = self._scratch / f"{key}-{chunk}-{threading.get_ident()}"
        path.write_bytes(content)
        number = os.open(path, os.O_RDONLY)
        path.unlink()
        return OpenChunk(number, StoredChunk(path, 0, len(content), chunk_digest(bytes(content))))


class BegunContent(ServedContent):
    """Answers once its own node has begun to fetch: who begins late on a busy machine has nothing read for it."""

    def __init__(self) -> None:
        super().__init__()
        self._begun = threading.Condition()
        self._keys: set[str] = set()

    def offer(self, key: str, provider: ChunkProvider) -> None:
        super().offer(key, provider)
        with self._begun:
            self._keys.add(key)
            self._begun.notify_all()

    def open(self, key: str, chunk: int, wait_s: float | None) -> OpenChunk:
        with self._begun:
            assert self._begun.wait_for(lambda: key in self._keys, timeout=30.0)
        return super().open(key, chunk, wait_s)


class PeerNode:
    """A node: its folder, its server, what it knows of others."""

    def __init__(
        self,
        top: Path,
        pki: Path,
        *,
        served: ServedContent | None = None,
        tls: str = "agent",
        at: tuple[str, int] = ("127.0.0.1", 0),
        patience: PeerPatience | None = PATIENCE,
    ) -> None:
        self.folder = ModelFolder(top)
        listener = socket.create_server(at, backlog=64)
        self.address = f"{at[0]}:{listener.getsockname()[1]}"
        self.named: dict[str, str] = {}
        connections = PeerConnections(asking_context_of(peer_tls(pki)), patience or PeerPatience())
        self.peers = PeerChunks(self.address, connections, patience, self.named.__setitem__)
        if served is not None:
            self.peers.served = served
        context = context_of(peer_tls(pki, tls))
        self.server = PeerServer(
            listener, context, self.peers.served, patience or PeerPatience(), self.peers.count_served
        )
        self.server.start()

    def sync(self, store: ObjectStore, options: SyncOptions) -> Synced:
        try:
            return sync(store, self.folder, options, sharing=PeerSharing(self.peers))
        finally:
            store.close()

    def close(self) -> None:
        self.server.close()
        self.peers.close()


@contextlib.contextmanager
def closing_all(nodes: list[PeerNode]) -> Iterator[list[PeerNode]]:
    try:
        yield nodes
    finally:
        for node in nodes:
            node.close()


def synced_together(
    nodes: list[PeerNode],
    store: Callable[[], ObjectStore],
    options: SyncOptions,
    members: list[PeerNode] | None = None,
    extra: tuple[str, ...] = (),
) -> list[Synced | BaseException]:
    """Let all nodes sync at once; return what came of each."""
    results: list[Synced | BaseException] = [RuntimeError("not begun")] * len(nodes)
    addresses = [*(node.address for node in (nodes if members is None else members)), *extra]

    def run(index: int) -> None:
        try:
            results[index] = nodes[index].sync(store(), options)
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            results[index] = error

    for node in nodes:
        node.peers.set_peers(addresses)
    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(nodes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
