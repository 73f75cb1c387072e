"""What was begun is carried out, whoever waits."""

import asyncio

import pytest

from tessera.agent.undisturbed import Undisturbed
from tessera.errors import Conflict

pytestmark = pytest.mark.anyio


async def test_what_is_begun_outlives_who_asked_for_it() -> None:
    undisturbed, go, done = Undisturbed(), asyncio.Event(), asyncio.Event()

    async def act() -> None:
        await go.wait()
        done.set()

    waiting = asyncio.ensure_future(undisturbed.do(act()))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    go.set()
    await asyncio.wait_for(done.wait(), 5)


async def test_who_waits_is_told_what_went_wrong() -> None:
    async def act() -> None:
        await asyncio.sleep(0)
        raise Conflict("GPU 0", found="a user", expected="none")

    undisturbed = Undisturbed()
    with pytest.raises(Conflict, match="a user"):
        await undisturbed.do(act())


async def test_the_end_of_the_process_ends_all() -> None:
    undisturbed = Undisturbed()
    waiting = asyncio.ensure_future(undisturbed.do(asyncio.sleep(3600)))
    await asyncio.sleep(0)
    await undisturbed.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
