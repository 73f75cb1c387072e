"""The chunks of objects that are fetched together with peers: written, summed, verified, and served."""

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from tessera.agent.storage.models.chunkfiles import aligned_buffer
from tessera.agent.storage.models.digests import chunk_digest
from tessera.agent.storage.models.journal import Journal
from tessera.agent.storage.models.peers.peerchunks import PeerChunks
from tessera.agent.storage.models.peers.servedcontent import StoredChunk
from tessera.agent.storage.models.peers.sharedfiles import ServedObject, SharedFile
from tessera.agent.storage.models.reading import Reader
from tessera.clients.store.peers import ChunkAbsent, Pending
from tessera.core.storage.models.peers.provenance import EARLIER, STORE
from tessera.core.storage.models.peers.repairs import Chunk, discarded, from_store_alone
from tessera.core.storage.models.revisions import StoredObject, chunk_range

__all__ = ["SharedChunks"]


class SharedChunks:
    """The chunks of a transfer's objects; thread-safe.

    A peer's chunk is unverified until the whole object matches the store's checksum, and is not served before.

    Args:
        folder: the destination; its sub-folder `files` gets the files, `journal-shared` lists their complete chunks.
        reader: of the store; it names objects in errors, and has the progress.
        sharing: the peers.

    """

    def __init__(self, folder: Path, reader: Reader, sharing: PeerChunks) -> None:
        self._folder = folder
        self._reader = reader
        self._sharing = sharing
        self._changed = threading.Condition()
        """Guards all of this, and wakes those who wait for any of it."""
        self.files: list[SharedFile] = []
        self._missing: set[Chunk] = set()
        """What this pass still has to fetch."""
        self._wanted: deque[Chunk] = deque()
        """Missing chunks that peers request."""
        self._reading: set[Chunk] = set()
        """Chunks that are being read from the store."""
        self._ended = False
        self._failure: BaseException | None = None
        self._writing: set[Chunk] = set()
        self._counted: set[Chunk] = set()
        """Reported progress."""
        self._journal = Journal(folder / "journal-shared")

    def open(self, objects: tuple[StoredObject, ...]) -> None:
        """Create the files, and serve them to peers."""
        files = self._folder / "files"
        for folder in sorted({(files / each.path).parent for each in objects}):
            folder.mkdir(parents=True, exist_ok=True)
        self._journal.open()
        for index, each in enumerate(objects):
            self.files.append(SharedFile(index, each, str(files / each.path)))
        for file in self.files:
            self._sharing.served.offer(file.key, ServedObject(self.take, file.index))

    def end(self) -> None:
        """Serve nothing that is not here, and wake everyone who waits."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """End with the first error, and wake everyone who waits."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def expect(self, tasks: Iterable[Chunk]) -> None:
        """Begin a pass: these chunks are to be fetched."""
        with self._changed:
            self._missing = set(tasks)

    def is_missing(self, task: Chunk) -> bool:
        """Return whether a chunk of this pass is still to be fetched."""
        return task in self._missing

    def wait(self) -> bool:
        """Wait until all chunks of the pass are there, or the transfer has failed; return whether they are there."""
        with self._changed:
            self._changed.wait_for(lambda: not self._missing or self._failure is not None)
            return self._failure is None

    def raise_failure(self) -> None:
        """Raise the first error, if there was one."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Close the journal; nothing may arrive any more."""
        self._journal.close()

    def span(self, task: Chunk, buffer: memoryview) -> tuple[SharedFile, int, memoryview]:
        """Return a chunk's file, its first byte in there, and as much of a buffer as it takes."""
        file = self.files[task[0]]
        first, last = chunk_range(file.found.size, task[1])
        return file, first, buffer[: last - first]

    # What arrives

    def resume(self, task: Chunk, buffer: memoryview) -> bool:
        """Reuse a chunk of an earlier attempt that matches the journal; its origin is unknown."""
        file, first, view = self.span(task, buffer)
        digest = self._journal.known.pop(task, None)
        if digest is None or not file.chunks.read(view, first) or chunk_digest(view) != digest:
            return False
        with self._changed:
            if task[1] in file.origins:
                return False
            file.digests[task[1]], file.origins[task[1]] = digest, EARLIER
        self._reader.progress.add(len(view), fetched=False)
        self._counted.add(task)
        self._arrived(task, buffer)
        return True

    def keep(self, task: Chunk, view: memoryview, origin: str) -> None:
        """Write a chunk, unless it is present; the store's replaces a peer's, which is logged."""
        file, chunk = self.files[task[0]], task[1]
        digest = chunk_digest(view)
        with self._changed:
            self._changed.wait_for(lambda: task not in self._writing)
            write, wrong = file.receive(chunk, digest, origin)
            if wrong:
                self._ban(file, chunk, wrong)
            if write:
                self._writing.add(task)
        if write:
            written = False
            try:
                file.chunks.write(view, chunk_range(file.found.size, chunk)[0])
                self._journal.add((*task, digest))
                written = True
            finally:
                with self._changed:
                    self._writing.discard(task)
                    if written:
                        file.put(chunk, digest, origin)
                    self._changed.notify_all()
            if task not in self._counted:
                self._counted.add(task)
                self._reader.progress.add(len(view), fetched=True)
        self._arrived(task, view, in_hand=write)

    def trust_no_etag(self) -> None:
        """Fetch without peers an object whose ETag is no checksum: the store encrypts it with a key of its own."""
        with self._changed:
            for file in self.files:
                if file.found.checksum.partition(":")[2] == file.found.etag:
                    file.provable, file.alone = False, True

    def _arrived(self, task: Chunk, buffer: memoryview, *, in_hand: bool = True) -> None:
        file = self.files[task[0]]
        self._sum(file, buffer, task[1] if in_hand else -1)
        with self._changed:
            if not file.alone or file.origins.get(task[1]) == STORE:
                self._missing.discard(task)
            self._changed.notify_all()

    def _ban(self, file: SharedFile, chunk: int, peer: str) -> None:
        if peer not in {STORE, EARLIER}:
            self._sharing.ban(peer, f"chunk {chunk} of {self._reader.subject(file.found)}")

    # Verifying

    def wrong_objects(self, buffer: memoryview) -> list[int]:
        """Return the objects that differ from the store's; all chunks of the others are served to peers."""
        wrong = []
        for index, file in enumerate(self.files):
            while not file.proven:
                self._sum(file, buffer)
                with self._changed:
                    self._changed.wait_for(partial(self._rests, file))
                    file.proven = file.is_right
                    self._changed.notify_all()
                    if file.proven:
                        for peer, chunk in file.wrong_peers.items():
                            self._ban(file, chunk, peer)
                    if file.is_summed and not file.proven:
                        wrong.append(index)
                        break
        return wrong

    def sum_again(self, files: Iterable[SharedFile]) -> None:
        """Start the checksums of objects from their first chunk."""
        with self._changed:
            for file in files:
                self._changed.wait_for(partial(self._rests, file))
                file.restart()

    def forget(self, wrong: list[int]) -> None:
        """Let no later attempt reuse chunks of these objects."""
        self._journal.forget(wrong)

    def _sum(self, file: SharedFile, buffer: memoryview, in_hand: int = -1) -> None:
        """Add the next chunks to the checksum, in order: the one in hand, and those on disk."""
        with self._changed:
            if file.summing:
                return  # the thread that adds them checks again at the end
            file.summing = True
        while True:
            with self._changed:
                chunk = file.summed
                there = chunk in file.origins and (file.index, chunk) not in self._writing
                if not there or file.is_summed or file.checksum is None:
                    file.summing = False
                    self._changed.notify_all()
                    return
            first, last = chunk_range(file.found.size, chunk)
            if chunk != in_hand:
                in_hand = -1  # the buffer has another one from now on
                buffer = aligned_buffer() if len(buffer) < last - first else buffer
                if not file.chunks.read(buffer[: last - first], first):
                    raise OSError(f"{file.path}: shorter than what was written")
            file.checksum.update(buffer[: last - first])
            with self._changed:
                file.summed += 1

    def _rests(self, file: SharedFile) -> bool:
        """Return whether no helper works on it."""
        return not file.summing and all(index != file.index for index, _ in self._writing)

    def discard(self, wrong: Mapping[int, SharedFile], peers: Iterable[str]) -> list[Chunk]:
        """Discard the chunks that peers served of wrong objects, for which they are not asked again; return these."""
        with self._changed:
            return discarded(wrong, peers)

    def discard_all(self, wrong: Mapping[int, SharedFile]) -> list[Chunk]:
        """Ask no peer for wrong objects any more; return what is to be read from the store."""
        with self._changed:
            return from_store_alone(wrong)

    # Reading from the store

    def next_wanted(self) -> Chunk | None:
        """Wait for a chunk that peers request; None once the transfer has ended or failed."""
        with self._changed:
            self._changed.wait_for(lambda: self._wanted or self._ended or self._failure is not None)
            return None if self._ended or self._failure is not None else self._wanted.popleft()

    def begin_reading(self, task: Chunk) -> bool:
        """Return whether a chunk is to be read from the store, after waiting for others that read it.

        A caller that gets True calls `end_reading`. It is not to be read if the store's is there, or the transfer ends.
        """
        stop = self._reader.stop
        with self._changed:
            self._changed.wait_for(lambda: task not in self._reading or stop.is_set())
            if self.files[task[0]].origins.get(task[1]) == STORE or stop.is_set():
                self._missing.discard(task)
                self._changed.notify_all()
                return False
            self._reading.add(task)
            return True

    def end_reading(self, task: Chunk) -> None:
        """Let others read the chunk, if it is not there."""
        with self._changed:
            self._reading.discard(task)
            self._changed.notify_all()

    # Serving peers

    def take(self, task: Chunk, wait_s: float | None) -> StoredChunk:
        """Return a chunk that is verified or from the store; have it read if it is missing.

        Args:
            task: the chunk.
            wait_s: how long to wait for it; None to return it only if the whole object is verified.

        Raises:
            ChunkAbsent: there is no such chunk, or the transfer has failed.
            Pending: it is not there after so many seconds.

        """
        file, chunk = self.files[task[0]], task[1]
        if chunk >= len(file.digests) or (wait_s is None and not file.proven):
            raise ChunkAbsent
        if wait_s is None:
            return file.piece(chunk)
        until = time.monotonic() + wait_s
        with self._changed:
            while True:
                if file.proven or (file.origins.get(chunk) == STORE and task not in self._writing):
                    return file.piece(chunk)
                if self._ended or self._failure is not None:
                    raise ChunkAbsent
                if task not in self._wanted and task not in self._reading:
                    self._wanted.append(task)
                    self._changed.notify_all()
                left = until - time.monotonic()
                if left <= 0:
                    raise Pending
                self._changed.wait(left)
