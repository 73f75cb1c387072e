"""Signals that end a process."""

import asyncio
import os
import signal

import pytest

from tessera.cli.signals import cancel_on_signal, on_signal


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_cancels_the_task_that_asked_for_it(number: signal.Signals) -> None:
    async def run() -> None:
        cancel_on_signal()
        os.kill(os.getpid(), number)
        await asyncio.Event().wait()

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_calls_what_stops_the_process(number: signal.Signals) -> None:
    async def run() -> None:
        stopped = asyncio.Event()
        on_signal(stopped.set)
        os.kill(os.getpid(), number)
        await stopped.wait()

    asyncio.run(run())
