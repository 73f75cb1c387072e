"""How long `tessera agent` waits for its driver."""

import asyncio

import pytest

from tessera.cli.processes.agent import opening_in_time
from tessera.errors import Unavailable

pytestmark = pytest.mark.anyio


async def agent(*, opens: bool, late: bool = False) -> None:
    """Run what fails with a `TimeoutError` of its own after 0.2 s, unless it is canceled before."""
    async with opening_in_time(0.05) as opened:
        if opens:
            opened()
        try:
            async with asyncio.timeout(0.2):
                await asyncio.Event().wait()
        finally:
            if late:
                opened()


@pytest.mark.parametrize("late", [False, True])
async def test_an_agent_whose_driver_is_not_opened_in_time_ends_and_says_so(late: bool) -> None:
    with pytest.raises(Unavailable, match=r"it could not be opened within 0\.05 s: see the log for the cause"):
        await agent(opens=False, late=late)


async def test_an_agent_whose_driver_is_open_goes_on() -> None:
    with pytest.raises(TimeoutError):
        await agent(opens=True)
