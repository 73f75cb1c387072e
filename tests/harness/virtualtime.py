"""An event loop whose clock jumps to the next timer, so that deadlines of minutes pass in no time and in order."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

_Result = TypeVar("_Result")


class _Jumping(selectors.DefaultSelector):
    """A selector that does not wait: it tells how long it would have."""

    def __init__(self) -> None:
        super().__init__()
        self.passed_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        assert timeout is not None, "everybody waits for something that never comes"
        self.passed_s += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop; starts at time 0."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.passed_s

    def passes(self, time_s: float) -> None:
        """Let this much time pass in a call that keeps the loop busy."""
        self._jumping.passed_s += time_s


def run(task: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(task)
