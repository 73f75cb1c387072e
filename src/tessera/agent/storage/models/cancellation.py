"""Cancels a transfer from another thread."""

import contextlib
import threading
from collections.abc import Callable, Iterator

__all__ = ["Canceled", "Cancellation"]


class Canceled(Exception):
    """The transfer was canceled; fetched data is kept."""


class Cancellation:
    """Whether a transfer is canceled, once and for all; thread-safe."""

    def __init__(self) -> None:
        self._canceled = threading.Event()
        self._lock = threading.Lock()
        self._ends: list[Callable[[], None]] = []

    @property
    def is_canceled(self) -> bool:
        """Whether it is."""
        return self._canceled.is_set()

    def cancel(self) -> None:
        """Cancel it: what waits ends at once, and what reads from a connection with what comes next."""
        self._canceled.set()
        with self._lock:
            for end in self._ends:
                end()

    def wait(self, seconds: float) -> None:
        """Wait.

        Raises:
            Canceled: before the time is over, or long ago.

        """
        if self._canceled.wait(seconds):
            raise Canceled

    @contextlib.contextmanager
    def ending(self, end: Callable[[], None]) -> Iterator[None]:
        """Call `end` if it is canceled in this context, or was before."""
        with self._lock:
            self._ends.append(end)
        try:
            if self.is_canceled:
                end()
            yield
        finally:
            with self._lock:
                self._ends.remove(end)
