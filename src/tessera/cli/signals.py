"""SIGTERM and SIGINT, which end a process in an orderly way, and in time."""

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import click

__all__ = ["INTERRUPTED", "cancel_on_signal", "ended_or_interrupted", "ending_in_time", "on_signal"]

INTERRUPTED = 130
"""Exit code after SIGINT."""
_END_S = 5.0


def on_signal(stop: Callable[[], object]) -> None:
    """Let SIGTERM and SIGINT call `stop` in the running event loop."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)


def cancel_on_signal() -> None:
    """Let SIGTERM and SIGINT cancel the current task."""
    task = asyncio.current_task()
    assert task is not None
    on_signal(task.cancel)


@contextlib.contextmanager
def ending_in_time() -> Iterator[None]:
    """End the process within 5 s of what is done within, whose end is that of the process.

    Python waits for all threads, also for those that hang, as on a disk that does not answer.
    """
    code = 1
    try:
        yield
        code = 0
    finally:
        timer = threading.Timer(_END_S, os._exit, (code,))
        timer.daemon = True
        timer.start()


def ended_or_interrupted(work: Coroutine[Any, Any, int], interrupted: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Return the result of `work`; on SIGINT or SIGTERM end it, and return that of `interrupted`.

    A second signal changes nothing: what was sent may be done, and without the answer that would be unknown.
    """

    async def run() -> int:
        task = asyncio.ensure_future(work)

        def interrupt() -> None:
            if task.cancelling():
                click.echo("waiting for the API server's answer", err=True)
            else:
                task.cancel()

        on_signal(interrupt)
        try:
            return await task
        except asyncio.CancelledError:
            return await interrupted()

    return asyncio.run(run())
