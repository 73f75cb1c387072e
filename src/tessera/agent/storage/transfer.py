"""Fetches objects into files: in parallel, chunk by chunk, verified, resumable."""

import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from tessera.agent.storage.chunkfiles import ChunkFile, aligned_buffer, write_small
from tessera.agent.storage.digests import Checksum, chunk_digest, start_checksum
from tessera.api.tessera.modelmanifests import read_journal, write_journal_line
from tessera.clients.store import Body, Changed, Refused, Store, Temporary
from tessera.core.storage.retries import Attempts, Patience, RateLimit
from tessera.core.storage.revisions import ModelFile, StoredObject, chunk_count, chunk_range
from tessera.core.storage.syncplans import Span, spans
from tessera.errors import Conflict, Unavailable

__all__ = ["Limits", "Progress", "Transfer", "listed"]

_THREADS = 8


class Limits(msgspec.Struct, frozen=True):
    """How hard a transfer works.

    Args:
        patience: with stores that do not answer.
        bytes_per_second: the bandwidth limit; 0 for none.
        threads: requests at once.

    """

    patience: Patience = Patience()
    bytes_per_second: float = 0.0
    threads: int = _THREADS


class Progress:
    """Bytes that were fetched, and the highest rate in any second.

    Args:
        report: is called with bytes done and bytes in all.
        total: bytes in all.

    """

    def __init__(self, report: Callable[[int, int], None], total: int) -> None:
        self._report = report
        self._total = total
        self._lock = threading.Lock()
        self._second, self._in_second = 0, 0
        self.fetched = 0
        self.done = 0
        self.peak = 0

    def add(self, size: int, *, fetched: bool) -> None:
        """Note bytes that are there: fetched now, or found of an earlier attempt."""
        with self._lock:
            self.done += size
            if fetched:
                self.fetched += size
                second = int(time.monotonic())
                if second != self._second:
                    self._second, self._in_second = second, 0
                self._in_second += size
                self.peak = max(self.peak, self._in_second)
            self._report(self.done, self._total)


def listed(store: Store, patience: Patience) -> tuple[StoredObject, ...]:
    """Return the objects of a store; a failed listing is made again until the patience ends.

    Raises:
        Unavailable: it fails still, or the store refuses.

    """
    attempts = Attempts(patience, time.monotonic())
    while True:
        try:
            return store.objects()
        except Temporary as error:
            wait = attempts.wait_after_failure(time.monotonic(), random.random(), error.retry_after_s)  # noqa: S311
            if wait is None:
                raise _unavailable(store.source, str(error)) from error
            time.sleep(wait)
        except Refused as error:
            raise _unavailable(store.source, str(error)) from error


def _unavailable(subject: str, found: str) -> Unavailable:
    return Unavailable(subject, found=found, expected="an answer", hint="sync again: what was fetched is kept")


class _File:
    """An object on its way to a file."""

    def __init__(self, found: StoredObject, path: str) -> None:
        self.found = found
        self.path = path
        self.digests: list[str] = [""] * chunk_count(found.size)
        self.checksum: Checksum | None = start_checksum(found.checksum)
        self.in_order = 0
        self.turn = threading.Condition()
        self.chunks = ChunkFile(path, found.size) if len(self.digests) > 1 else None


class Transfer:
    """Fetches objects of one store below one folder.

    Args:
        store: where from.
        folder: where to; its sub-folder `files` gets the files, `journal` says what of them is there.
        limits: how hard.
        progress: is told of all bytes.

    """

    def __init__(self, store: Store, folder: Path, limits: Limits, progress: Progress) -> None:
        self._store = store
        self._folder = folder
        self._limits = limits
        self._progress = progress
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        rate = limits.bytes_per_second
        self._rate = RateLimit(rate, time.monotonic()) if rate else None

    def run(self, objects: tuple[StoredObject, ...]) -> tuple[ModelFile, ...]:
        """Fetch the objects and return them as files, in the same order.

        Raises:
            TesseraError: the store does not answer, refuses, or sends what does not match its own checksum.
            OSError: the disk is full or broken.

        """
        files = self._folder / "files"
        for folder in sorted({(files / each.path).parent for each in objects}):
            folder.mkdir(parents=True, exist_ok=True)
        journal = self._folder / "journal"
        self._known = read_journal(journal.read_bytes()) if journal.exists() else {}
        self._files = [_File(each, str(files / each.path)) for each in objects]
        self._spans = spans(objects)
        self._journal = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        os.write(self._journal, b"\n")  # ends a line that a crash has torn
        workers = [threading.Thread(target=self._work, daemon=True) for _ in range(self._limits.threads)]
        try:
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        finally:
            self._stop.set()
            for worker in workers:
                worker.join()
            os.close(self._journal)
            for file in self._files:
                if file.chunks:
                    file.chunks.close()
        if self._failure is not None:
            raise self._failure
        return tuple(self._finished(file) for file in self._files)

    def _finished(self, file: _File) -> ModelFile:
        found = file.found
        checksum = found.checksum if file.checksum else ""
        if file.checksum and file.checksum.hexdigest() != found.checksum.partition(":")[2]:
            (self._folder / "journal").unlink(missing_ok=True)
            raise Unavailable(
                f"{self._store.source}: object {found.path}",
                found=f"content whose checksum is {file.checksum.hexdigest()}",
                expected=found.checksum,
                hint="sync again; if it stays so, the object is broken in the store or on the way",
            )
        return ModelFile(found.path, found.size, tuple(file.digests), found.etag, checksum)

    def _work(self) -> None:
        buffer = aligned_buffer()
        try:
            while not self._stop.is_set():
                with self._lock:
                    span = next(self._spans, None)
                if span is None:
                    return
                self._span(span, buffer)
        except BaseException as error:  # noqa: BLE001 - raised again by run()
            with self._lock:
                self._failure = self._failure or error
            self._stop.set()

    def _span(self, span: Span, buffer: memoryview) -> None:
        file = self._files[span.object]
        attempts = Attempts(self._limits.patience, time.monotonic())
        chunk, done = span.first, 0
        stop = chunk_range(file.found.size, span.stop - 1)[1]
        while chunk < span.stop and self._has(span.object, chunk, buffer):
            chunk += 1
        while chunk < span.stop and not self._stop.is_set():
            try:
                attempts.start(time.monotonic())
                start = chunk_range(file.found.size, chunk)[0] + done
                if start == stop:
                    self._store_chunk(span.object, chunk, buffer[:done])
                    return
                with self._store.read(file.found, start, stop) as body:
                    self._check_etag(file, body)
                    while chunk < span.stop:
                        first, last = chunk_range(file.found.size, chunk)
                        while done < last - first:
                            done += self._receive(body, buffer[done : last - first], attempts)
                        self._store_chunk(span.object, chunk, buffer[:done])
                        chunk, done = chunk + 1, 0
            except Temporary as error:
                self._wait(file, error, attempts)
            except Changed as error:
                raise Conflict(
                    f"{self._store.source}: object {file.found.path}",
                    found=f"it changed while it was fetched ({error})",
                    expected="the object that was listed",
                    hint="sync again",
                ) from error
            except Refused as error:
                raise _unavailable(f"{self._store.source}: object {file.found.path}", str(error)) from error

    def _check_etag(self, file: _File, body: Body) -> None:
        if not body.etag_is_checksum and file.found.checksum == f"md5:{file.found.etag}":
            file.checksum = None

    def _receive(self, body: Body, view: memoryview, attempts: Attempts) -> int:
        count = body.readinto(view)
        now = time.monotonic()
        if count == 0:
            raise Temporary("the body ended too early")
        attempts.progress(now, count)
        if attempts.has_stalled(now):
            raise Temporary("it comes too slowly")
        if self._stop.is_set():
            raise Temporary("another object failed")
        if self._rate is not None:
            with self._lock:
                delay = self._rate.delay(now, count)
            self._stop.wait(delay)
            attempts.pause(delay)
        return count

    def _wait(self, file: _File, error: Temporary, attempts: Attempts) -> None:
        wait = attempts.wait_after_failure(time.monotonic(), random.random(), error.retry_after_s)  # noqa: S311
        if wait is None:
            raise _unavailable(f"{self._store.source}: object {file.found.path}", str(error)) from error
        self._stop.wait(wait)

    def _has(self, index: int, chunk: int, buffer: memoryview) -> bool:
        """Take over a chunk that an earlier attempt has written, if it is what the journal says."""
        digest, file = self._known.get((index, chunk)), self._files[index]
        if digest is None:
            return False
        first, last = chunk_range(file.found.size, chunk)
        view = buffer[: last - first]
        if file.chunks is not None:
            whole = file.chunks.read(view, first)
        else:
            with open(file.path, "rb", buffering=0) as small:  # noqa: PTH123 - one of 20,000
                whole = small.readinto(view) == len(view) and not small.read(1)
        if not whole or chunk_digest(view) != digest:
            return False
        self._note(file, chunk, digest, view)
        self._progress.add(len(view), fetched=False)
        return True

    def _store_chunk(self, index: int, chunk: int, data: memoryview) -> None:
        file = self._files[index]
        if file.chunks is None:
            write_small(file.path, data)
        else:
            file.chunks.write(data, chunk_range(file.found.size, chunk)[0])
        digest = chunk_digest(data)
        os.write(self._journal, write_journal_line(index, chunk, digest))
        self._note(file, chunk, digest, data)
        self._progress.add(len(data), fetched=True)

    def _note(self, file: _File, chunk: int, digest: str, data: memoryview) -> None:
        """Keep the digest; the store's checksum takes the chunks in their order."""
        file.digests[chunk] = digest
        if file.checksum is None:
            return
        with file.turn:
            while file.in_order != chunk and not self._stop.is_set():
                file.turn.wait(0.2)
        if file.in_order == chunk:
            file.checksum.update(data)
            with file.turn:
                file.in_order += 1
                file.turn.notify_all()
