"""When a request is retried, the backoff before, and when to give up."""

import msgspec

__all__ = ["Attempts", "BandwidthLimit", "Patience"]


class Patience(msgspec.Struct, frozen=True):
    """Timeouts of a transfer without progress, in seconds.

    Args:
        stall_s: a connection with less than `progress_bytes` in this time is replaced.
        give_up_s: without progress for this long, over all attempts, the transfer fails. The last attempt may hang
            for `stall_s` more, and so may concurrent reads of other objects: less than a minute in all.
        first_wait_s: the wait after the first failure, which doubles with each.
        longest_wait_s: no wait is longer.
        progress_bytes: what counts as progress; the end of a read does, too.

    """

    stall_s: float = 10.0
    give_up_s: float = 36.0
    first_wait_s: float = 0.1
    longest_wait_s: float = 5.0
    progress_bytes: int = 64 * 1024


class Attempts:
    """The attempts to read one range; the time is passed in.

    Args:
        patience: how long.
        now: seconds of a monotonic clock.

    """

    def __init__(self, patience: Patience, now: float) -> None:
        self._patience = patience
        self._mark = now
        self._begun = now
        self._since_mark = 0
        self._failures = 0

    def start(self, now: float) -> None:
        """Note a new connection: its own timeout starts, that of all attempts continues."""
        self._begun = now

    def progress(self, now: float, size: int) -> None:
        """Count bytes that arrived; a trickle is no progress."""
        self._since_mark += size
        if self._since_mark >= self._patience.progress_bytes:
            self._mark = self._begun = now
            self._since_mark = 0
            self._failures = 0

    def pause(self, seconds: float) -> None:
        """Note time spent in the bandwidth limit: it is no stall."""
        self._mark += seconds
        self._begun += seconds

    def has_stalled(self, now: float) -> bool:
        """Return whether this connection has delivered too little for too long."""
        return now - self._begun >= self._patience.stall_s

    def wait_after_failure(self, now: float, jitter: float, asked_s: float = 0.0) -> float | None:
        """Return the seconds to wait before the next attempt; None to give up.

        Args:
            now: seconds of the clock.
            jitter: a random number from 0 to 1, so that many nodes do not retry at once.
            asked_s: requested by the store (`Retry-After`).

        """
        self._since_mark = 0
        wait = min(self._patience.longest_wait_s, self._patience.first_wait_s * 2 ** min(self._failures, 16))
        self._failures += 1
        wait = max(wait * (0.5 + jitter / 2), min(asked_s, self._patience.longest_wait_s))
        return None if now + wait - self._mark >= self._patience.give_up_s else wait


class BandwidthLimit:
    """A limit in bytes per second, as a time before which nothing more may be read.

    Args:
        bytes_per_second: positive.
        now: seconds of the clock.

    """

    def __init__(self, bytes_per_second: float, now: float) -> None:
        self._rate = bytes_per_second
        self._free_at = now

    def delay(self, now: float, size: int) -> float:
        """Return the seconds to wait after so many bytes; a quarter of a second's bytes may come ahead."""
        self._free_at = max(self._free_at, now - 0.25) + size / self._rate
        return max(0.0, self._free_at - now)
