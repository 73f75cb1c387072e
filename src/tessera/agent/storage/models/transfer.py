"""Fetches objects from their store into files: in parallel, by chunks, verified, resumable.

`peers/shared` does so together with peers. Both read by `reading`, write by `chunkfiles`, compare by `digests` and
resume by `journal`. What differs is the order in which a checksum is computed. Here each thread adds its chunk while it
has it in memory, and waits for those before: reading it from the disk again would double the reads. A shared chunk
may be replaced until its object is proven, so it is added from the disk, when all before it are there.
"""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

from tessera.agent.storage.models.cancellation import Canceled, Cancellation
from tessera.agent.storage.models.chunkfiles import ChunkFile, aligned_buffer, write_small, writing_back
from tessera.agent.storage.models.digests import Checksum, chunk_digest, matches, start_checksum
from tessera.agent.storage.models.journal import Journal
from tessera.agent.storage.models.reading import Reader, TransferSource, mismatch, unavailable
from tessera.clients.store import SMALL_BYTES, Changed, ObjectStore, Refused, Temporary
from tessera.core.storage.models.revisions import ModelFile, StoredObject, chunk_count, chunk_range
from tessera.core.storage.models.syncplans import Span, spans
from tessera.core.storage.retries import Attempts, Patience
from tessera.errors import Unavailable

__all__ = ["Transfer", "listed"]

_T = TypeVar("_T")

_MANY = 100
"""More small objects than these are fetched by one thread, which requests several at a time: eight threads spend as
much time contending for the interpreter's lock as on everything else."""
_JOURNALED = 64
"""Small files added to the journal at once; after a kill they are fetched again."""


def listed(store: ObjectStore, patience: Patience, cancellation: Cancellation) -> tuple[StoredObject, ...]:
    """Return the objects of a store; a failed page, or listing without pages, is retried until the patience ends.

    Raises:
        Unavailable: it still fails, or the store returns an error.
        Canceled: it is canceled.

    """

    def retry(request: Callable[[], _T], since: float) -> _T:
        attempts, wait = Attempts(patience, since), 0.0
        while True:
            cancellation.wait(wait)
            try:
                return request()
            except Temporary as error:
                jitter, asked_s = random.random(), error.retry_after_s  # noqa: S311
                again = attempts.wait_after_failure(time.monotonic(), jitter, asked_s)
                if again is None:
                    raise unavailable(store.source, str(error)) from error
                wait = again

    try:
        return retry(partial(store.objects, retry), time.monotonic())
    except Refused as error:
        raise Unavailable(store.source, found=str(error), hint=error.fix) from error


class _File:
    """An object being fetched to a file."""

    def __init__(self, stored: StoredObject, path: str) -> None:
        self.stored = stored
        self.path = path
        self.digests: list[str] = [""] * chunk_count(stored.size)
        # An empty object is not read, so no answer says whether its ETag is a checksum.
        self.checksum: Checksum | None = start_checksum(stored.checksum, stored.size) if stored.size else None
        self.in_order = 0
        self.chunks = ChunkFile(path, stored.size) if len(self.digests) > 1 else None
        if self.chunks is not None:
            self.turn = threading.Condition()

    @property
    def is_right(self) -> bool:
        """Whether all of it matches the store's checksum, if there is a comparable one."""
        return self.checksum is None or matches(self.checksum, self.stored.checksum)


class Transfer:
    """Fetches objects of one store below one folder.

    Args:
        source: the store, with limits and progress.
        folder: the destination; its sub-folder `files` gets the files, `journal` lists their complete chunks.

    """

    def __init__(self, source: TransferSource, folder: Path) -> None:
        self._source = source
        self._folder = folder
        self._journal = Journal(folder / "journal")
        self._reader = Reader(source)
        self._stop = self._reader.stop
        self._failure: BaseException | None = None
        self._lock = threading.Lock()

    def run(self, objects: tuple[StoredObject, ...]) -> tuple[ModelFile, ...]:
        """Fetch the objects and return them as files, in the same order.

        Raises:
            TesseraError: the store does not answer, returns an error, or sends what does not match its own checksum.
            OSError: the disk is full or broken.
            Canceled: it is canceled; what is complete of it is in the journal.

        """
        with self._source.cancellation.ending(self._cancel):
            return self._run(objects)

    def _cancel(self) -> None:
        self._fail(Canceled())

    def _fail(self, error: BaseException) -> None:
        """End the transfer; the first error stays."""
        with self._lock:
            self._failure = self._failure or error
            self._stop.set()

    def _run(self, objects: tuple[StoredObject, ...]) -> tuple[ModelFile, ...]:
        for folder in sorted({each.path.rpartition("/")[0] for each in objects}):
            (self._folder / "files" / folder).mkdir(parents=True, exist_ok=True)
        # 1. Fetch what no earlier attempt has. Its chunks may be wrong: they were not compared with a checksum yet.
        wrong = self._fetch_missing(objects)
        # 2. Fetch wrong objects again, without reusing anything.
        if not wrong.isdisjoint(index for index, _ in self._journal.known):
            self._source.progress.done = 0
            wrong = self._fetch_missing(objects)
        if wrong:
            file = self._files[min(wrong)]
            computed = file.checksum.hexdigest() if file.checksum else "none"
            raise mismatch(self._reader.subject(file.stored), computed, file.stored.checksum)
        return tuple(map(_as_file, self._files))

    def _fetch_missing(self, objects: tuple[StoredObject, ...]) -> set[int]:
        """Fetch what is not in the journal; return the indices of wrong files, which are removed from it."""
        self._files = [_File(each, f"{self._folder}/files/{each.path}") for each in objects]
        self._journal.open()
        with self._lock:
            if self._failure is None:
                self._stop.clear()
        workers = [threading.Thread(target=self._work, args=each, daemon=True) for each in self._shares()]
        try:
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        finally:
            self._stop.set()
            for worker in workers:
                worker.join()
            self._journal.close()
        if self._failure is not None:
            raise self._failure
        wrong = {index for index, each in enumerate(self._files) if not each.is_right}
        if wrong:
            self._journal.forget(wrong)
        return wrong

    def _shares(self) -> list[tuple[Callable[..., None], Iterable[Span]]]:
        """Return what each thread does, and with which chunks."""
        threads = self._source.limits.threads
        all_spans = tuple(spans(tuple(file.stored for file in self._files)))
        small = [span for span in all_spans if 0 < self._files[span.object].stored.size <= SMALL_BYTES]
        if not self._source.store.pipelines or self._source.limits.bytes_per_second or len(small) <= _MANY:
            return [(self._read, iter(all_spans))] * threads
        others = [span for span in all_spans if not 0 < self._files[span.object].stored.size <= SMALL_BYTES]
        return [(self._read, iter(others))] * min(threads, len(others)) + [(self._read_small, small)]

    def _work(self, read: Callable[..., None], row: Iterable[Span]) -> None:
        try:
            read(row, aligned_buffer())
        except BaseException as error:  # noqa: BLE001 - raised again by run()
            self._fail(error)

    def _read(self, row: Iterator[Span], buffer: memoryview) -> None:
        while not self._stop.is_set():
            with self._lock:
                span = next(row, None)
            if span is None:
                return
            self._fetch_span(span, buffer, time.monotonic())

    def _read_small(self, row: Iterable[Span], buffer: memoryview) -> None:
        """Fetch objects of one chunk each, except those of an earlier attempt."""
        missing = {self._files[span.object].stored.path: span for span in row if not self._has(span.object, 0, buffer)}
        contents = self._source.store.read_small(self._files[span.object].stored for span in missing.values())
        written: list[tuple[int, int, str]] = []
        begun = time.monotonic()
        with contextlib.closing(contents), writing_back(self._folder):
            for stored, content in contents:
                span = missing[stored.path]
                if content is not None:
                    file = self._files[span.object]
                    write_small(file.path, content)
                    file.digests[0] = digest = chunk_digest(content)
                    if file.checksum is not None:
                        file.checksum.update(content)
                    written.append((span.object, 0, digest))
                if content is None or len(written) == _JOURNALED:
                    self._add_small(written)
                    written.clear()
                if content is None:
                    self._fetch_span(span, buffer, begun)
                if self._stop.is_set():
                    break
                begun = time.monotonic()
        self._add_small(written)

    def _add_small(self, written: list[tuple[int, int, str]]) -> None:
        size = sum(self._files[index].stored.size for index, _, _ in written)
        self._journal.add(*written)
        self._source.progress.received(size)
        self._source.progress.add(size, fetched=True)

    def _fetch_span(self, span: Span, buffer: memoryview, since: float) -> None:
        """Fetch chunks; `since` is when the first attempt began."""
        file = self._files[span.object]
        attempts = self._reader.attempts(since)
        chunk, done = span.first, 0
        stop = chunk_range(file.stored.size, span.stop - 1)[1]
        while chunk < span.stop and self._has(span.object, chunk, buffer):
            chunk += 1
        while chunk < span.stop and not self._stop.is_set():
            try:
                attempts.start(time.monotonic())
                start = chunk_range(file.stored.size, chunk)[0] + done
                if start == stop:
                    self._store_chunk(span.object, chunk, buffer[:done])
                    return
                with self._source.store.read(file.stored, start, stop) as body:
                    if not body.etag_is_checksum and file.stored.checksum.partition(":")[2] == file.stored.etag:
                        file.checksum = None
                    while chunk < span.stop:
                        first, last = chunk_range(file.stored.size, chunk)
                        while done < last - first:
                            done += self._reader.receive(body, buffer[done : last - first], attempts)
                        self._store_chunk(span.object, chunk, buffer[:done])
                        chunk, done = chunk + 1, 0
            except (Temporary, Refused, Changed) as error:
                if not file.stored.has_validator and (chunk, done) != (span.first, 0):
                    found = f"{error}, and nothing says whether what follows is of the same state"
                    raise unavailable(self._reader.subject(file.stored), found) from error
                if problem := self._reader.failed(file.stored, error, attempts):
                    raise problem from error

    def _has(self, index: int, chunk: int, buffer: memoryview) -> bool:
        """Reuse a chunk of an earlier attempt, if it matches the journal."""
        file = self._files[index]
        first, last = chunk_range(file.stored.size, chunk)
        view = buffer[: last - first]
        read = partial(_read_whole, file.path) if file.chunks is None else partial(file.chunks.read, offset=first)
        digest = self._journal.restored((index, chunk), view, read) if file.stored.has_validator else ""
        if not digest:
            return False
        self._add_digest(file, chunk, digest, view)
        self._source.progress.add(len(view), fetched=False)
        return True

    def _store_chunk(self, index: int, chunk: int, data: memoryview) -> None:
        file = self._files[index]
        if file.chunks is None:
            write_small(file.path, data)
        else:
            file.chunks.write(data, chunk_range(file.stored.size, chunk)[0])
        digest = chunk_digest(data)
        self._journal.add((index, chunk, digest))
        self._add_digest(file, chunk, digest, data)
        self._source.progress.add(len(data), fetched=True)

    def _add_digest(self, file: _File, chunk: int, digest: str, data: memoryview) -> None:
        """Store the digest; the store's checksum takes the chunks in order."""
        file.digests[chunk] = digest
        if file.checksum is None:
            return
        if file.chunks is None:  # the one chunk has no turn to wait for
            file.checksum.update(data)
            return
        with file.turn:
            while file.in_order != chunk and not self._stop.is_set():
                file.turn.wait(0.2)
        if file.in_order == chunk:
            file.checksum.update(data)
            with file.turn:
                file.in_order += 1
                file.turn.notify_all()


def _as_file(file: _File) -> ModelFile:
    stored = file.stored
    checksum = stored.checksum if file.checksum else ""
    return ModelFile(stored.path, stored.size, tuple(file.digests), stored.etag, checksum)


def _read_whole(path: str, view: memoryview) -> bool:
    """Fill the view with a file; return whether it exists with this length."""
    try:
        with open(path, "rb", buffering=0) as small:  # noqa: PTH123 - one of 20,000
            return small.readinto(view) == len(view) and not small.read(1)
    except FileNotFoundError:
        return False
