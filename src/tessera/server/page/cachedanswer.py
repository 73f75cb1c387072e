"""The last answer to a question that is asked again in the background: nothing waits for it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from tessera.log import RepeatedError
from tessera.loops import one_turn

__all__ = ["CachedAnswer"]

Answer = TypeVar("Answer")


class CachedAnswer(Generic[Answer]):
    """The last answer to a question, until it is too old.

    Args:
        ask: the question; it is asked once at a time.
        nothing: the value without an answer.
        every_s: time between two questions.
        stale_s: age at which an answer is forgotten, and after which a question is given up.
        complain: records errors.
        clock_s: a monotonic clock.

    """

    def __init__(
        self,
        ask: Callable[[], Awaitable[Answer]],
        nothing: Answer,
        complain: RepeatedError,
        clock_s: Callable[[], float],
        *,
        every_s: float,
        stale_s: float,
    ) -> None:
        self._ask = ask
        self._nothing = self._answer = nothing
        self._complain = complain
        self._clock_s = clock_s
        self._every_s = every_s
        self._stale_s = stale_s
        self._asked_s = self._known_s = -float("inf")
        self._asking: asyncio.Task[None] | None = None

    def refresh(self, changed: Callable[[], None]) -> None:
        """Ask again if it is due; `changed` is called when another answer comes."""
        now_s = self._clock_s()
        if now_s - self._asked_s >= self._every_s and (self._asking is None or self._asking.done()):
            self._asked_s = now_s
            self._asking = asyncio.create_task(
                one_turn(lambda: self._keep(changed), self._complain, self._complain.clear)
            )

    async def _keep(self, changed: Callable[[], None]) -> None:
        asked_s, former = self._asked_s, self.value
        try:
            async with asyncio.timeout(self._stale_s):
                self._answer = await self._ask()
        except TimeoutError as error:
            raise TimeoutError(f"no answer in {self._stale_s:.0f} s") from error
        self._known_s = asked_s
        if self._answer != former:
            changed()

    @property
    def value(self) -> Answer:
        """The last answer."""
        return self._answer if self._clock_s() - self._known_s < self._stale_s else self._nothing
