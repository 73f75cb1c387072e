"""A thread for a driver's blocking calls, one after the other, each with a deadline."""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any, Generic, TypeVar

from tessera.clients.gpu.refusals import closed
from tessera.errors import Unavailable

__all__ = ["DriverThread"]

Answer = TypeVar("Answer")


class _Job(Generic[Answer]):
    """A queued, running or abandoned call."""

    def __init__(self, what: str, function: Callable[[], Answer]) -> None:
        self.what = what
        self.function = function
        self.loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[Answer] = self.loop.create_future()
        self.started_s: float | None = None
        self.abandoned = False
        """Whether no caller waits for it: if it has not started it never will."""
        self.overdue = False
        """Whether its deadline has passed."""

    def run(self) -> Callable[[], None]:
        """Call, and return the function that delivers the outcome to the caller, if it still waits."""
        try:
            answer = self.function()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the caller's
            return partial(self._fail, error)
        return partial(self._succeed, answer)

    def _succeed(self, answer: Answer) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)

    def _fail(self, error: BaseException) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class DriverThread:
    """Runs blocking calls in order, in a thread whose hung call cannot hang the program.

    A call that has not returned by its deadline raises `Unavailable` and keeps the thread. Until it returns,
    every further call fails at once, so that no queued call acts on an outdated decision;
    then the thread continues as if nothing had happened. A call that never returns, such as one stuck in the kernel,
    requires a restart of the node. Calls whose deadline passes in the queue are never made.

    Args:
        name: the thread's name.

    """

    def __init__(self, name: str) -> None:
        self._line: queue.SimpleQueue[_Job[Any] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._current: _Job[Any] | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def call(self, what: str, function: Callable[[], Answer], deadline_s: float) -> Answer:
        """Return what the function returns, called in the thread.

        Args:
            what: the call, for errors.
            function: what to call; it must not touch the loop.
            deadline_s: for the queue and the call together.

        Raises:
            Unavailable: the deadline has passed, an earlier call hangs, or the thread is closed.

        """
        self._check(what)
        job = _Job(what, function)
        self._line.put(job)
        try:
            async with asyncio.timeout(deadline_s):
                return await job.answer
        except TimeoutError:
            if not job.answer.cancelled():  # the function's own
                raise
            job.overdue = True
            raise self._overdue(job, deadline_s) from None
        finally:
            job.abandoned = True

    def _check(self, what: str) -> None:
        if self._closed:
            raise closed()
        with self._lock:
            hung = self._current
            if hung is None or not hung.overdue:
                return
            found = f"`{hung.what}` hanging for {monotonic() - (hung.started_s or 0.0):.0f} s"
        raise _unavailable(what, found)

    def _overdue(self, job: _Job[Any], deadline_s: float) -> Unavailable:
        with self._lock:
            current = self._current
        if current is job or current is None:
            return _unavailable(job.what, f"no answer within {deadline_s:g} s")
        return _unavailable(job.what, f"`{current.what}` still under way after {deadline_s:g} s")

    def _work(self) -> None:
        while (job := self._line.get()) is not None:
            with self._lock:
                if job.abandoned:
                    continue
                job.started_s = monotonic()
                self._current = job
            outcome = job.run()
            with self._lock:
                self._current = None
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                job.loop.call_soon_threadsafe(outcome)
            del job, outcome

    async def close(self, last: Callable[[], None], deadline_s: float) -> None:
        """Reject all later calls, make a last one after the queued ones, and end; its errors are dropped.

        After the deadline this returns; the last call is still made if the thread ever gets there.
        """
        if self._closed:
            return
        self._closed = True
        job = _Job("closing it", last)
        self._line.put(job)
        self._line.put(None)
        await asyncio.wait((job.answer,), timeout=deadline_s)
        if job.answer.done():
            job.answer.exception()


def _unavailable(what: str, found: str) -> Unavailable:
    accepted = "try again later; if it persists, see the kernel's log (dmesg) and restart the node"
    return Unavailable(f"GPU driver, {what}", found=found, hint=accepted)
