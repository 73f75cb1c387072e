"""A limit of the rate at which something is read."""

__all__ = ["BandwidthLimit"]


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
