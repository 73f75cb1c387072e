"""When something that failed is tried again: a request within a fetch, and the whole fetch."""

import msgspec

__all__ = ["Attempts", "Patience", "fetch_backoff_s", "has_passed"]


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


_FIRST_FETCH_S, _LONGEST_FETCH_S = 10.0, 600.0


def fetch_backoff_s(failures: int) -> float:
    """Return how long a fetch is not tried again after so many failures in a row, at least one."""
    return min(_FIRST_FETCH_S * 2.0 ** min(failures - 1, 16), _LONGEST_FETCH_S)


def has_passed(since_s: float, pause_s: float, now_s: float) -> bool:
    """Return whether a pause has passed since a moment of the same clock.

    A moment that lies further ahead than the pause was noted while the clock was ahead: it counts as long ago.
    """
    return abs(now_s - since_s) >= pause_s
