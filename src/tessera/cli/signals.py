"""SIGTERM and SIGINT, which end a process in an orderly way."""

import asyncio
import signal
from collections.abc import Callable

__all__ = ["cancel_on_signal", "on_signal"]


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
