"""Fetches objects together with peers: each chunk is read from the store by its owner, which serves it to the others.

A peer's chunk is unverified until the whole object matches the store's checksum, and is not served before. If an
object is wrong, its chunks are fetched from other peers, and from the store where they differ: a peer that served a
wrong one is logged and dropped, and its chunks are fetched again.
"""

import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from tessera.agent.storage.models.cancellation import Canceled
from tessera.agent.storage.models.chunkfiles import aligned_buffer
from tessera.agent.storage.models.peers.chunksources import ChunkSources
from tessera.agent.storage.models.peers.peerchunks import PeerChunks
from tessera.agent.storage.models.peers.serving import next_requested
from tessera.agent.storage.models.peers.sharedchunks import SharedChunks
from tessera.agent.storage.models.peers.wrongobjects import WrongObjects
from tessera.agent.storage.models.reading import Reader, TransferSource, mismatch
from tessera.core.storage.models.peers.owners import asking_order
from tessera.core.storage.models.peers.provenance import STORE
from tessera.core.storage.models.peers.repairs import Chunk
from tessera.core.storage.models.revisions import ModelFile, StoredObject
from tessera.core.storage.models.syncplans import spans
from tessera.errors import TesseraError

__all__ = ["SharedTransfer"]

_READERS = 32
"""Concurrent requests to the store, of all nodes together; each makes at least one."""
_LEAST_FROM_OTHERS = 4
_FOR_OTHERS = 2
_PAUSE_S = 0.1


class SharedTransfer:
    """Fetches objects with a checksum from one store below one folder.

    Args:
        source: the store, with limits and progress.
        folder: the destination; its sub-folder `files` gets the files, `journal-shared` lists their complete chunks.
        peers: the peers.

    """

    def __init__(self, source: TransferSource, folder: Path, peers: PeerChunks) -> None:
        self._peers = peers
        self._threads = source.limits.threads
        self._cancellation = source.cancellation
        self._reader = Reader(source)
        self._chunks = SharedChunks(folder, self._reader, peers)
        self._sources = ChunkSources(self._chunks, self._reader, peers)
        self._assigned: deque[Chunk] = deque()
        self._others: deque[tuple[Chunk, float]] = deque()
        """With the time of the first request that failed, or 0."""

    def run(self, objects: tuple[StoredObject, ...]) -> tuple[ModelFile, ...]:
        """Fetch the objects and return them as files, in the same order; they are served to peers until the fetch ends.

        Raises:
            TesseraError: the store does not answer, returns an error, or sends what does not match its own checksum.
            OSError: the disk is full or broken.
            Canceled: it is canceled; what is complete of it is in the journal.

        """
        with self._cancellation.ending(lambda: self._fail(Canceled())):
            return self._run(objects)

    def _fail(self, error: BaseException) -> None:
        """End the transfer; the first error stays."""
        self._chunks.state.fail(error)  # first: those who wait for the store raise errors of their own when it stops
        self._reader.stop.set()

    def _run(self, objects: tuple[StoredObject, ...]) -> tuple[ModelFile, ...]:
        helpers: list[threading.Thread] = []
        repairs = WrongObjects(self._chunks, self._sources, self._peers)
        try:
            # 1. Serve what arrives, and read from the store what peers request.
            self._chunks.open(objects)
            helpers += self._started(_FOR_OTHERS, self._read_requested)
            tasks: list[Chunk] | None = [
                (span.object, chunk) for span in spans(objects) for chunk in range(span.first, span.stop)
            ]
            buffer, wrong = aligned_buffer(), [0]
            # 2. Fetch all chunks, and those of wrong objects again, until all objects match the store's checksums.
            while tasks is not None:
                self._fetch_chunks(tasks)
                wrong = self._chunks.checksums.wrong_objects(buffer)
                if not wrong:
                    return tuple(each.as_model_file() for each in self._chunks.state.files)
                tasks = repairs.chunks_to_repeat(wrong, buffer)
            # 3. The store itself sends what does not match: forget it.
            self._chunks.forget(wrong)
            file = self._chunks.state.files[wrong[0]]
            raise mismatch(self._reader.subject(file.stored), file.checksum_now, file.stored.checksum)
        finally:
            self._chunks.state.end()
            self._reader.stop.set()
            for helper in helpers:
                helper.join()
            self._chunks.close()

    def _fetch_chunks(self, tasks: list[Chunk]) -> None:
        """Fetch chunks; all are there when it ends."""
        me = self._peers.me
        own = [each for each in tasks if self._sources.owner(each) in {me, STORE}]
        others = [each for each in tasks if self._sources.owner(each) not in {me, STORE}]
        self._chunks.state.expect(tasks)
        self._assigned = deque(own)
        order = asking_order(len(others), me, self._peers.members)
        self._others = deque((others[place], 0.0) for place in order)
        readers = max(1, min(self._threads, _READERS // max(1, self._peers.members)))
        workers = self._started(readers, self._read_own)
        workers += self._started(max(_LEAST_FROM_OTHERS, self._threads - readers), self._ask_others)
        is_complete = False
        try:
            is_complete = self._chunks.state.wait()
        finally:
            if not is_complete:
                self._reader.stop.set()
            for worker in workers:
                worker.join()
        self._chunks.state.raise_failure()

    def _started(self, count: int, work: Callable[[memoryview], None]) -> list[threading.Thread]:
        def until_failure() -> None:
            try:
                work(aligned_buffer())
            except BaseException as error:  # noqa: BLE001 - raised again by run()
                self._fail(error)

        threads = [threading.Thread(target=until_failure, daemon=True) for _ in range(count)]
        for each in threads:
            each.start()
        return threads

    def _read_own(self, buffer: memoryview) -> None:
        """Read the node's own chunks from the store, then help with others."""
        while not self._reader.stop.is_set():
            try:
                task = self._assigned.popleft()
            except IndexError:
                self._ask_others(buffer)
                return
            if self._sources.owner(task) not in {self._peers.me, STORE}:  # a new peer owns it
                self._others.append((task, 0.0))
            else:
                self._sources.fetch_own(task, buffer)

    def _ask_others(self, buffer: memoryview) -> None:
        while not self._reader.stop.is_set():
            try:
                task, since = self._others.popleft()
            except IndexError:
                return
            failed_since = self._sources.fetch_others(task, since, buffer)
            if failed_since is not None:
                self._others.append((task, failed_since))
                self._reader.stop.wait(_PAUSE_S)

    def _read_requested(self, buffer: memoryview) -> None:
        """Read chunks requested by peers from the store. It waits for no peer, so no two nodes wait for each other."""
        while (task := next_requested(self._chunks.state)) is not None:
            try:
                self._sources.from_store(task, buffer)
            except TesseraError:
                continue  # they ask another peer; what this node needs itself it retries
