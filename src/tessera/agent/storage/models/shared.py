"""Fetches objects together with peers: each chunk is read from the store by its owner, which serves it to the others.

A peer's chunk is unverified until the whole object matches the store's checksum, and is not served before. If an
object is wrong, its chunks are fetched from other peers, and from the store where they differ: a peer that served a
wrong one is logged and dropped, and its chunks are fetched again.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from tessera.agent.storage.models.chunkfiles import aligned_buffer
from tessera.agent.storage.models.digests import chunk_digest
from tessera.agent.storage.models.journal import Journal
from tessera.agent.storage.models.peerchunks import PeerChunks
from tessera.agent.storage.models.reading import Progress, Reader, TransferLimits
from tessera.agent.storage.models.sharedfiles import Gift, SharedFile
from tessera.agent.storage.models.shelf import Piece
from tessera.clients.store import ObjectStore
from tessera.clients.store.peers import ChunkAbsent, Pending
from tessera.core.storage.models.peers import asking_order
from tessera.core.storage.models.provenance import EARLIER, STORE
from tessera.core.storage.models.repairs import Chunk, discarded, from_store_alone, is_stale, suspects
from tessera.core.storage.models.revisions import ModelFile, StoredObject, chunk_range
from tessera.core.storage.models.syncplans import spans
from tessera.errors import TesseraError, Unavailable

__all__ = ["SharedTransfer"]

_READERS = 32
"""Concurrent requests to the store, of all nodes together; each makes at least one."""
_LEAST_ASKERS = 4
_FOR_OTHERS = 2
_PAUSE_S = 0.1


class SharedTransfer:
    """Fetches objects with a checksum from one store below one folder.

    Args:
        store: the source.
        folder: the destination; its sub-folder `files` gets the files, `journal-shared` lists their complete chunks.
        how: the limits, and the progress.
        sharing: the peers.

    """

    def __init__(
        self, store: ObjectStore, folder: Path, how: tuple[TransferLimits, Progress], sharing: PeerChunks
    ) -> None:
        self._folder = folder
        self._sharing = sharing
        self._progress = how[1]
        self._reader = Reader(store, *how)
        self._threads = how[0].threads
        self._changed = threading.Condition()
        self._own: deque[Chunk] = deque()
        self._others: deque[tuple[Chunk, float]] = deque()
        """With the time of the first vain request to a peer, or 0."""
        self._wanted: deque[Chunk] = deque()
        """Missing chunks that peers request."""
        self._missing: set[Chunk] = set()
        self._reading: set[Chunk] = set()
        self._writing: set[Chunk] = set()
        self._counted: set[Chunk] = set()
        """Reported progress."""
        self._files: list[SharedFile] = []
        self._journal = Journal(folder / "journal-shared")
        self._ended = False
        self._failure: BaseException | None = None

    def run(self, objects: tuple[StoredObject, ...]) -> tuple[ModelFile, ...]:
        """Fetch the objects and return them as files, in the same order; they are served to peers until the fetch ends.

        Raises:
            TesseraError: the store does not answer, returns an error, or sends what does not match its own checksum.
            OSError: the disk is full or broken.

        """
        helpers: list[threading.Thread] = []
        try:
            self._open(objects)
            helpers += self._started(_FOR_OTHERS, self._read_wanted)
            tasks: list[Chunk] | None = [
                (span.object, chunk) for span in spans(objects) for chunk in range(span.first, span.stop)
            ]
            buffer, wrong = aligned_buffer(), [0]
            while tasks is not None:
                self._pass(tasks)
                wrong = self._judged(buffer)
                if not wrong:
                    return tuple(each.as_model_file() for each in self._files)
                tasks = self._repairs(wrong, buffer)
            raise self._mismatch(wrong)
        finally:
            self._end(helpers)

    def _open(self, objects: tuple[StoredObject, ...]) -> None:
        """Create the files, and serve them to peers."""
        files = self._folder / "files"
        for folder in sorted({(files / each.path).parent for each in objects}):
            folder.mkdir(parents=True, exist_ok=True)
        self._journal.open()
        for index, each in enumerate(objects):
            self._files.append(SharedFile(index, each, str(files / each.path)))
        for file in self._files:
            self._sharing.shelf.offer(file.key, Gift(self.take, file.index))

    def _end(self, helpers: list[threading.Thread]) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._reader.stop.set()
        for helper in helpers:
            helper.join()
        self._journal.close()
        for file in self._files:
            file.chunks.close()

    # One pass: all tasks are done when it ends

    def _pass(self, tasks: list[Chunk]) -> None:
        me = self._sharing.me
        own = [each for each in tasks if self._owner(each) in {me, STORE}]
        others = [each for each in tasks if self._owner(each) not in {me, STORE}]
        with self._changed:
            self._missing = set(tasks)
            self._own = deque(own)
            order = asking_order(len(others), me, self._sharing.members)
            self._others = deque((others[place], 0.0) for place in order)
        readers = max(1, min(self._threads, _READERS // max(1, self._sharing.members)))
        workers = self._started(readers, self._read_own)
        workers += self._started(max(_LEAST_ASKERS, self._threads - readers), self._ask_others)
        try:
            with self._changed:
                self._changed.wait_for(lambda: not self._missing or self._failure is not None)
        finally:
            if self._failure is not None or self._missing:
                self._reader.stop.set()
            for worker in workers:
                worker.join()
        if self._failure is not None:
            raise self._failure

    def _owner(self, task: Chunk) -> str:
        file = self._files[task[0]]
        return STORE if file.alone else self._sharing.owner(file.key, task[1])

    def _started(self, count: int, work: Callable[[memoryview], None]) -> list[threading.Thread]:
        def until_failure() -> None:
            try:
                work(aligned_buffer())
            except BaseException as error:  # noqa: BLE001 - raised again by run()
                with self._changed:
                    self._failure = self._failure or error
                    self._changed.notify_all()
                self._reader.stop.set()

        threads = [threading.Thread(target=until_failure, daemon=True) for _ in range(count)]
        for each in threads:
            each.start()
        return threads

    def _read_own(self, buffer: memoryview) -> None:
        """Read the node's own chunks from the store, then help with others."""
        while not self._reader.stop.is_set():
            with self._changed:
                task = self._own.popleft() if self._own else None
            if task is None:
                self._ask_others(buffer)
                return
            if self._owner(task) not in {self._sharing.me, STORE}:  # a new peer owns it
                with self._changed:
                    self._others.append((task, 0.0))
            elif not self._resumed(task, buffer) and not self._from_holder(task, buffer):
                self._from_store(task, buffer)

    def _from_holder(self, task: Chunk, buffer: memoryview) -> bool:
        """Fetch an own chunk from a peer that has the object already; return whether there is one."""
        file, chunk = self._files[task[0]], task[1]
        first, last = chunk_range(file.found.size, chunk)
        view = buffer[: last - first]
        if file.alone or not (peer := self._sharing.holder(file.key, chunk)):
            return False
        if not self._sharing.ask_holder(peer, file.key, chunk, view, lambda: self._is_done(task)):
            return False
        self._keep(task, view, peer)
        return not file.alone

    def _ask_others(self, buffer: memoryview) -> None:
        while not self._reader.stop.is_set():
            with self._changed:
                task, since = self._others.popleft() if self._others else (None, 0.0)
            if task is None:
                return
            if not self._resumed(task, buffer):
                self._from_others(task, since, buffer)

    def _read_wanted(self, buffer: memoryview) -> None:
        """Read chunks requested by peers from the store. It waits for no peer, so no two nodes wait for each other."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted or self._ended or self._failure is not None)
                if self._ended or self._failure is not None:
                    return
                task = self._wanted.popleft()
            try:
                self._from_store(task, buffer)
            except TesseraError:
                continue  # they ask another peer; what this node needs itself it retries

    def _from_others(self, task: Chunk, since: float, buffer: memoryview) -> None:
        """Fetch a chunk from its owner, which may still have to read it; from others or the store on failure."""
        file, chunk = self._files[task[0]], task[1]
        first, last = chunk_range(file.found.size, chunk)
        tried = sorted(file.doubted)
        while not file.alone and (peer := self._sharing.whom(file.key, chunk, tried)):
            try:
                if self._sharing.ask(peer, file.key, chunk, buffer[: last - first], lambda: self._is_done(task)):
                    self._keep(task, buffer[: last - first], peer)
                    break
            except Pending:
                now = time.monotonic()
                if not since or now - since < self._sharing.patience.chunk_s:
                    with self._changed:
                        self._others.append((task, since or now))
                    self._reader.stop.wait(_PAUSE_S)
                    return
                self._sharing.failed(peer)
            tried.append(peer)
        if not self._is_done(task):
            self._from_store(task, buffer)

    def _is_done(self, task: Chunk) -> bool:
        return self._reader.stop.is_set() or task not in self._missing

    def _from_store(self, task: Chunk, buffer: memoryview) -> None:
        file, chunk = self._files[task[0]], task[1]
        with self._changed:
            self._changed.wait_for(lambda: task not in self._reading or self._reader.stop.is_set())
            if file.givers.get(chunk) == STORE or self._reader.stop.is_set():
                self._missing.discard(task)
                self._changed.notify_all()
                return
            self._reading.add(task)
        first, last = chunk_range(file.found.size, chunk)
        try:
            is_checksum = self._reader.fill(file.found, first, buffer[: last - first])
            if not is_checksum:
                self._trust_no_etag()
            self._sharing.read(last - first)
            self._keep(task, buffer[: last - first], STORE)
        finally:
            with self._changed:
                self._reading.discard(task)
                self._changed.notify_all()

    def _trust_no_etag(self) -> None:
        """Fetch without peers an object whose ETag is no checksum: the store encrypts it with a key of its own."""
        with self._changed:
            for file in self._files:
                if file.found.checksum.partition(":")[2] == file.found.etag:
                    file.provable, file.alone = False, True

    def _resumed(self, task: Chunk, buffer: memoryview) -> bool:
        """Reuse chunks of an earlier attempt that match the journal; their origin is unknown."""
        file, chunk = self._files[task[0]], task[1]
        digest = self._journal.known.pop(task, None)
        first, last = chunk_range(file.found.size, chunk)
        view = buffer[: last - first]
        if digest is None or not file.chunks.read(view, first) or chunk_digest(view) != digest:
            return False
        with self._changed:
            if chunk in file.givers:
                return False
            file.digests[chunk], file.givers[chunk] = digest, EARLIER
        self._progress.add(len(view), fetched=False)
        self._counted.add(task)
        self._done(task, buffer)
        return True

    # Present chunks

    def _keep(self, task: Chunk, view: memoryview, giver: str) -> None:
        """Write a chunk, unless it is present; the store's replaces a peer's, which is logged."""
        file, chunk = self._files[task[0]], task[1]
        digest = chunk_digest(view)
        with self._changed:
            self._changed.wait_for(lambda: task not in self._writing)
            write, wrong = file.receive(chunk, digest, giver)
            if wrong:
                self._name(file, chunk, wrong)
            if write:
                self._writing.add(task)
        if write:
            self._write(task, view, digest, giver)
            if task not in self._counted:
                self._counted.add(task)
                self._progress.add(len(view), fetched=True)
        self._done(task, view, in_hand=write)

    def _write(self, task: Chunk, view: memoryview, digest: str, giver: str) -> None:
        file, chunk = self._files[task[0]], task[1]
        try:
            file.chunks.write(view, chunk_range(file.found.size, chunk)[0])
            self._journal.add(*task, digest)
        finally:
            with self._changed:
                self._writing.discard(task)
                file.put(chunk, digest, giver)
                self._changed.notify_all()

    def _name(self, file: SharedFile, chunk: int, peer: str) -> None:
        if peer not in {STORE, EARLIER}:
            self._sharing.lied(peer, f"chunk {chunk} of {self._reader.subject(file.found)}")

    def _done(self, task: Chunk, buffer: memoryview, *, in_hand: bool = True) -> None:
        file = self._files[task[0]]
        self._sum(file, buffer, task[1] if in_hand else -1)
        with self._changed:
            if not file.alone or file.givers.get(task[1]) == STORE:
                self._missing.discard(task)
            self._changed.notify_all()

    def _sum(self, file: SharedFile, buffer: memoryview, in_hand: int = -1) -> None:
        """Add the next chunks to the checksum, in order: the one in hand, and those on disk."""
        with self._changed:
            if file.summing:
                return  # the thread that adds them checks again at the end
            file.summing = True
        while True:
            with self._changed:
                chunk = file.summed
                there = chunk in file.givers and (file.index, chunk) not in self._writing
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

    # Wrong objects

    def _judged(self, buffer: memoryview) -> list[int]:
        """Return the objects that differ from the store's; all chunks of the others are served to peers."""
        wrong = []
        for index, file in enumerate(self._files):
            while not file.proven:
                self._sum(file, buffer)
                with self._changed:
                    self._changed.wait_for(partial(self._rests, file))
                    file.proven = file.is_right
                    self._changed.notify_all()
                    if file.proven:
                        for peer, chunk in file.lies.items():
                            self._name(file, chunk, peer)
                    if file.is_summed and not file.proven:
                        wrong.append(index)
                        break
        return wrong

    def _rests(self, file: SharedFile) -> bool:
        """Return whether no helper works on it."""
        return not file.summing and all(index != file.index for index, _ in self._writing)

    def _repairs(self, wrong: list[int], buffer: memoryview) -> list[Chunk] | None:
        """Return what to fetch again; None where the store's own content does not match its checksum."""
        files = {index: self._files[index] for index in wrong}
        # 1. Discard what peers served that were wrong before.
        tasks = self._discard(files, self._sharing.liars)
        # 2. Ask other peers for the same chunks until one differs.
        if not tasks and not is_stale(files):
            doubted = self._doubt({index: each for index, each in files.items() if not each.alone}, buffer)
            # 3. Where none differs, read everything from the store, unless it has delivered all of it meanwhile.
            if doubted is None and not is_stale(files):
                with self._changed:
                    doubted = from_store_alone(files)
                if not doubted:
                    return [] if any(file.is_right for file in files.values()) else None
            tasks = doubted or []
        # 4. Compute the checksums again.
        with self._changed:
            for file in files.values():
                self._changed.wait_for(partial(self._rests, file))
                file.restart()
        return tasks

    def _discard(self, wrong: Mapping[int, SharedFile], peers: Iterable[str]) -> list[Chunk]:
        with self._changed:
            return discarded(wrong, peers)

    def _doubt(self, wrong: Mapping[int, SharedFile], buffer: memoryview) -> list[Chunk] | None:
        """Fetch chunks of wrong files from other peers until one differs; return what to fetch again, None for nothing.

        All chunks of the first peer in wrong files are discarded: it is the likeliest to be wrong.
        """
        for index, chunk, giver in suspects(wrong):
            file, task = wrong[index], (index, chunk)
            first, last = chunk_range(file.found.size, chunk)
            view = buffer[: last - first]
            other = self._second_opinion(file, chunk, giver, view)
            if not other:
                self._from_store(task, buffer)
                if giver in self._sharing.liars:
                    return self._discard(wrong, [giver])
            elif chunk_digest(view) != file.digests[chunk]:
                tasks = self._discard(wrong, [giver])
                self._keep(task, view, other)
                return [each for each in tasks if each != task]
        return None

    def _second_opinion(self, file: SharedFile, chunk: int, giver: str, view: memoryview) -> str:
        """Fill the view with another peer's version of a chunk; return the peer, or nothing for the store."""
        other = self._sharing.whom(file.key, chunk, {giver, *file.doubted})
        try:
            if other and self._sharing.ask(other, file.key, chunk, view, self._reader.stop.is_set):
                return other
        except Pending:
            pass
        return ""

    def _mismatch(self, wrong: list[int]) -> Unavailable:
        """Discard what is wrong, and return the error."""
        self._journal.forget(wrong)
        file = self._files[wrong[0]]
        return Unavailable(
            self._reader.subject(file.found),
            found=f"content whose checksum is {file.checksum_now}",
            expected=file.found.checksum,
            hint="sync again; if it stays so, the object is broken in the store or on the way",
        )

    # Serving peers

    def take(self, task: Chunk, wait_s: float | None) -> Piece:
        """Return a chunk that is verified or from the store; have it read if it is missing.

        Args:
            task: the chunk.
            wait_s: how long to wait for it; None to return it only if the whole object is verified.

        Raises:
            Absent: there is no such chunk, or the transfer has failed.
            Pending: it is not there after so many seconds.

        """
        file, chunk = self._files[task[0]], task[1]
        if chunk >= len(file.digests) or (wait_s is None and not file.proven):
            raise ChunkAbsent
        if wait_s is None:
            return file.piece(chunk)
        until = time.monotonic() + wait_s
        with self._changed:
            while True:
                if file.proven or (file.givers.get(chunk) == STORE and task not in self._writing):
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
