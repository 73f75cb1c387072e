"""A bell that wakes a loop: at once when something changed, and now and then in any case."""

import asyncio
import contextlib

__all__ = ["Bell"]


class Bell:
    """Rings of one moment count as one; a ring while nobody waits is heard by the next who does."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        """Wake who waits."""
        self._event.set()

    async def wait(self, longest_s: float) -> None:
        """Return at the next ring, or after so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                await self._event.wait()
        self._event.clear()
