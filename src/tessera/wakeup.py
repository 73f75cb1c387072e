"""An event that wakes a loop: at once when something changed, and at intervals in any case."""

import asyncio
import contextlib

__all__ = ["WakeUp"]


class WakeUp:
    """An event that clears itself: several before the loop waits count as one, and none is lost."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """Wake the loop, or end its next wait at once."""
        self._event.set()

    async def wait(self, longest_s: float) -> None:
        """Return when the event is set, or after the timeout."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                await self._event.wait()
        self._event.clear()
