"""Reads ranges of objects from a store: with retries, within the bandwidth limit, reporting progress."""

import random
import threading
import time
from collections import deque
from collections.abc import Callable

import msgspec

from tessera.agent.storage.models.cancellation import Cancellation
from tessera.clients.store import Body, Changed, ObjectStore, Refused, Temporary
from tessera.core.storage.bandwidth import BandwidthLimit
from tessera.core.storage.models.peers.multipart import is_assumed
from tessera.core.storage.models.revisions import CHUNK_BYTES, StoredObject
from tessera.core.storage.retries import Attempts, Patience
from tessera.errors import Conflict, TesseraError, Unavailable

__all__ = ["Progress", "Reader", "TransferLimits", "TransferSource", "mismatch", "unavailable"]

_THREADS = 8
_TICKS = 10
"""Parts of a second for measuring and limiting rates."""
_LEAST_READ = 16 * 1024


class TransferLimits(msgspec.Struct, frozen=True):
    """Limits of a transfer.

    Args:
        patience: with stores that do not answer.
        bytes_per_second: the bandwidth limit, of the store and peers together; 0 for none.
        threads: concurrent requests; those for many small objects come in addition.

    """

    patience: Patience = Patience()
    bytes_per_second: float = 0.0
    threads: int = _THREADS


class Progress:
    """Fetched bytes, and the most within a second.

    Args:
        report: called with bytes done and bytes in total.
        total: bytes in total.

    """

    def __init__(self, report: Callable[[int, int], None], total: int) -> None:
        self._report = report
        self._total = total
        self._lock = threading.Lock()
        self._tick = 0
        self._ticks = deque([0], maxlen=_TICKS)
        self.fetched = 0
        self.done = 0
        self.peak = 0

    def add(self, size: int, *, fetched: bool) -> None:
        """Count bytes that are done: fetched now, or by an earlier attempt."""
        with self._lock:
            self.done += size
            self.fetched += size if fetched else 0
            self._report(self.done, self._total)

    def received(self, size: int) -> None:
        """Count bytes as they arrive, also those of chunks that are fetched again."""
        with self._lock:
            tick = int(time.monotonic() * _TICKS)
            self._ticks.extend([0] * min(tick - self._tick, _TICKS))
            self._tick = tick
            self._ticks[-1] += size
            self.peak = max(self.peak, sum(self._ticks))


def unavailable(subject: str, found: str) -> Unavailable:
    """Return the error of a store that does not answer; fetched data is kept."""
    return Unavailable(
        subject, found=found, hint="check the store and its endpoint, then sync again; fetched data is kept"
    )


def mismatch(subject: str, computed: str, expected: str) -> Unavailable:
    """Return the error of an object whose content does not match the store's checksum."""
    hint = "sync again; if it persists, the object is corrupt in the store or in transit"
    if is_assumed(expected):
        hint += ", or was uploaded in parts of another size"
    return Unavailable(subject, found=f"content whose checksum is {computed}", expected=expected, hint=hint)


class TransferSource(msgspec.Struct, frozen=True):
    """A store to fetch from, and how.

    Args:
        store: the source.
        limits: of the transfer.
        progress: counts all bytes.
        cancellation: ends it.

    """

    store: ObjectStore
    limits: TransferLimits
    progress: Progress
    cancellation: Cancellation


class Reader:
    """Reads from one store, in several threads, until it is stopped."""

    def __init__(self, source: TransferSource) -> None:
        self.store, self.progress = source.store, source.progress
        self.stop = threading.Event()
        self._patience = source.limits.patience
        self._lock = threading.Lock()
        rate = source.limits.bytes_per_second
        self._rate = BandwidthLimit(rate, time.monotonic()) if rate else None
        self._burst = max(_LEAST_READ, int(rate / _TICKS)) if rate else CHUNK_BYTES

    def subject(self, stored: StoredObject) -> str:
        """Return an object's name for errors."""
        return f"{self.store.source}: object {stored.path}"

    def attempts(self, since: float) -> Attempts:
        """Return the attempts to read a range that is waited for since then, on the monotonic clock."""
        return Attempts(self._patience, since)

    def receive(self, body: Body, view: memoryview, attempts: Attempts) -> int:
        """Read the next bytes, within the limit.

        Raises:
            Temporary: the body ended, is too slow, or the transfer ends.

        """
        count = body.readinto(view[: self._burst])
        now = time.monotonic()
        self.progress.received(count)
        if count == 0:
            raise Temporary("the body ended too early")
        attempts.progress(now, count)
        if attempts.has_stalled(now):
            raise Temporary("the transfer is too slow")
        if self.stop.is_set():
            raise Temporary("another object failed")
        attempts.pause(self.throttle(now, count))
        return count

    def throttle(self, now: float, size: int) -> float:
        """Wait after so many bytes as the bandwidth limit demands; return the seconds."""
        if self._rate is None:
            return 0.0
        with self._lock:
            delay = self._rate.delay(now, size)
        self.stop.wait(delay)
        return delay

    def failed(
        self, stored: StoredObject, error: Temporary | Refused | Changed, attempts: Attempts
    ) -> TesseraError | None:
        """Wait before the next attempt; return the error to raise if there is none."""
        if isinstance(error, Changed):
            return Conflict(
                self.subject(stored),
                found=f"it changed while it was fetched ({error})",
                hint="sync again",
            )
        wait = None
        if isinstance(error, Temporary):
            wait = attempts.wait_after_failure(time.monotonic(), random.random(), error.retry_after_s)  # noqa: S311
        if wait is None:
            return unavailable(self.subject(stored), str(error))
        self.stop.wait(wait)
        return None

    def fill(self, stored: StoredObject, start: int, view: memoryview) -> bool:
        """Fill the view with the bytes from `start` on; return whether the object's ETag is a checksum.

        Raises:
            TesseraError: the store does not answer, refuses, or the object has changed; or the transfer ends.

        """
        attempts, done, proves = self.attempts(time.monotonic()), 0, True
        while done < len(view):
            if self.stop.is_set():
                raise unavailable(self.subject(stored), "the transfer ended")
            try:
                attempts.start(time.monotonic())
                with self.store.read(stored, start + done, start + len(view)) as body:
                    proves = body.etag_is_checksum
                    while done < len(view):
                        done += self.receive(body, view[done:], attempts)
            except (Temporary, Refused, Changed) as error:
                if problem := self.failed(stored, error, attempts):
                    raise problem from error
        return proves
