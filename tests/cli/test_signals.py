"""Signals that end a process."""

import asyncio
import os
import signal
import subprocess
import sys

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


HANGING = """
import asyncio, threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tessera.cli import signals
from tessera.cli.processes.agent import _run as agent
from tessera.cli.processes.disk_agent import _run as disk_agent

signals._END_S = 0.1
NOWHERE = Path("/no/kubeconfig")

async def nothing():
    with signals.ending_in_time():
        pass

async def main():
    for threads in (None, ThreadPoolExecutor()):
        asyncio.get_running_loop().run_in_executor(threads, threading.Event().wait)
    await {process}

print("began", flush=True)
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("process", "code"),
    [("nothing()", 0), ("agent(None, (), NOWHERE, (None, None))", 1), ("disk_agent(None, None, NOWHERE, None)", 1)],
    ids=["done", "agent-failed", "disk-agent-failed"],
)
def test_a_process_ends_in_time_though_its_threads_hang(process: str, code: int) -> None:
    program = HANGING.format(process=process)
    ended = subprocess.run((sys.executable, "-c", program), capture_output=True, text=True, check=False, timeout=120)
    assert (ended.stdout, ended.returncode) == ("began\n", code), ended.stderr
