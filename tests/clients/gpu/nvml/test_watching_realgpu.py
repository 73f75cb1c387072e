"""Errors that the driver of a real GPU reports."""

import asyncio
import contextlib

import pytest

from harness.realgpu import RealGpu, note
from tessera.clients.gpu.protocol import GpuDriver
from tessera.core.gpu.inventory import GpuEvent

pytestmark = [pytest.mark.anyio, pytest.mark.gpu]


async def until_event(driver: GpuDriver, number: int) -> list[GpuEvent]:
    """Return the events until the one of an XID."""
    found = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(15):
            async for event in driver.events():
                found.append(event)
                if event.xid == number:
                    break
    return found


async def test_an_error_that_a_program_makes_is_reported(real_gpu: RealGpu) -> None:
    """XID 31: a program wrote to an address that is not its own."""
    async with await real_gpu.driver() as driver:
        found = await driver.inventory()
        assert not [each for each in found.notes if "does not report its errors" in each]
        waiting = asyncio.create_task(until_event(driver, 31))
        await asyncio.sleep(1)
        with real_gpu.cuda() as one, real_gpu.cuda(mib=64) as neighbor:
            failed = one.ask("wild")
            events = await waiting
            after = neighbor.ask("busy", seconds=0.2)
        note(cuda_error=failed, events=events, neighbor=after)
        assert failed["result"] != 0
        assert [each.xid for each in events if each.gpu == found.gpus[0].uuid][-1:] == [31]
        assert after["result"] == 0
