"""Loops that continue after any error, and shared requests."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Generic, TypeVar

from tessera.errors import TesseraError, Unavailable

__all__ = ["Joint", "for_each", "one_turn", "until_done"]

Result = TypeVar("Result")
Item = TypeVar("Item")


async def one_turn(
    act: Callable[[], Awaitable[object]],
    on_error: Callable[[BaseException], None],
    done: Callable[[], None] = lambda: None,
) -> None:
    """Act, and report an error, or success; raises only when its task is canceled.

    A defect ends no loop either: one malformed pod must not stop the node's device plugins.
    """
    try:
        await act()
    except Exception as error:  # noqa: BLE001
        on_error(error)
    except asyncio.CancelledError as error:
        # gRPC ends calls so whose connection is closed; without this the loop would end silently.
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        on_error(error)
    else:
        done()


async def until_done(
    act: Callable[[], Awaitable[object]], on_error: Callable[[BaseException], None], pause_s: float
) -> None:
    """Repeat until it succeeds, and report each error."""
    done = asyncio.Event()
    while True:
        await one_turn(act, on_error, done.set)
        if done.is_set():
            return
        await asyncio.sleep(pause_s)


async def for_each(
    items: Iterable[Item], act: Callable[[Item], Awaitable[object]], refused: Callable[[Item, TesseraError], None]
) -> None:
    """Act on each item; a failed one does not stop the others.

    Args:
        items: the items.
        act: the action for one.
        refused: called with each failed one, and why.

    Raises:
        Unavailable: the last of these errors, after all were tried.

    """
    last: Unavailable | None = None
    for each in tuple(items):
        try:
            await act(each)
        except TesseraError as error:
            refused(each, error)
            last = error if isinstance(error, Unavailable) else last
    if last is not None:
        raise last


class Joint(Generic[Result]):
    """Acts one at a time, and once for all callers before it begins: it sees everything that they saw.

    Args:
        act: the action.

    """

    def __init__(self, act: Callable[[], Coroutine[Any, Any, Result]]) -> None:
        self._act = act
        self._turn = asyncio.Lock()
        self._next: asyncio.Task[Result] | None = None
        self._tasks: set[asyncio.Task[Result]] = set()

    async def __call__(self) -> Result:
        """Return the result of acting once from now on; a canceled caller does not cancel it for others."""
        if self._next is None:
            self._next = asyncio.create_task(self._begin())
            self._tasks.add(self._next)
            self._next.add_done_callback(self._tasks.discard)
        return await asyncio.shield(self._next)

    async def _begin(self) -> Result:
        async with self._turn:
            self._next = None
            return await self._act()

    async def close(self) -> None:
        """Cancel the running and requested actions; return when all of them have ended."""
        tasks = tuple(self._tasks)
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
