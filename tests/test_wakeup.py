"""A wake-up event ends the wait of who waits: by an event, by one that came before, or after the longest pause."""

import asyncio

import pytest

from tessera.wakeup import WakeUp

pytestmark = pytest.mark.anyio


async def test_a_wake_up_before_the_wait_counts_once() -> None:
    """Wake-ups of one moment count as one, and do not end the next wait."""
    wakeup = WakeUp()
    wakeup.set()
    wakeup.set()
    await wakeup.wait(3600)
    began_s = asyncio.get_running_loop().time()
    await wakeup.wait(0.01)
    assert asyncio.get_running_loop().time() >= began_s + 0.01


async def test_a_wake_up_ends_the_wait() -> None:
    """The wait ends at the event, long before the longest pause."""
    wakeup = WakeUp()
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        tasks.create_task(wakeup.wait(3600))
        await asyncio.sleep(0)
        wakeup.set()
