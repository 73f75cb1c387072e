"""Carries out to its end what was begun, also when whoever asked for it waits no longer."""

import asyncio
from collections.abc import Coroutine
from typing import Any

__all__ = ["Undisturbed"]


class Undisturbed:
    """Actions under way. The kubelet gives up after 30 s; a GPU whose layout is being changed must not be left so."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    async def do(self, act: Coroutine[Any, Any, None]) -> None:
        """Carry out an action and return when it has ended, or raise what it raises."""
        task = asyncio.ensure_future(act)
        self._tasks.add(task)
        task.add_done_callback(self._end)
        await asyncio.shield(task)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # raised to whoever waits; without this it is logged as never retrieved where nobody does

    async def close(self) -> None:
        """Cut off what is under way, as the end of the process does."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
