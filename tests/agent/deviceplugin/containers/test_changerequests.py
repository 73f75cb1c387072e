"""Requests for containers that are about to start are carried out, whoever waits, and answered."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from builders.gpunodes import facts
from tessera.agent.deviceplugin.containers.changerequests import ChangeRequest, ChangeRequests, DisableMig
from tessera.core.gpu.inventory import Inventory
from tessera.errors import Conflict

pytestmark = pytest.mark.anyio

OBSERVED = Inventory(gpus=(facts(0),))


@asynccontextmanager
async def served(execute: Callable[[ChangeRequest], Awaitable[Inventory]]) -> AsyncIterator[ChangeRequests]:
    requests = ChangeRequests()
    serving = asyncio.create_task(requests.serve(execute))
    try:
        yield requests
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def test_who_asks_gets_what_the_driver_shows_or_what_went_wrong_each_for_itself() -> None:
    both = asyncio.Barrier(2)

    async def execute(request: ChangeRequest) -> Inventory:
        await both.wait()  # none waits for the other
        if request == DisableMig("bad"):
            raise Conflict("GPU bad", found="a user", hint="wait")
        return OBSERVED

    async with asyncio.timeout(5), served(execute) as requests:
        good, bad = await asyncio.gather(
            requests.change(DisableMig("good")), requests.change(DisableMig("bad")), return_exceptions=True
        )
    assert good == OBSERVED
    assert isinstance(bad, Conflict)


async def test_what_is_begun_outlives_who_asked_for_it() -> None:
    go, begun, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def execute(_: ChangeRequest) -> Inventory:
        begun.set()
        await go.wait()
        done.set()
        return OBSERVED

    async with asyncio.timeout(5), served(execute) as requests:
        waiting = asyncio.create_task(requests.change(DisableMig("u")))
        await begun.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        go.set()
        await done.wait()


async def test_an_error_that_nobody_waits_for_ends_nothing() -> None:
    go, begun = asyncio.Event(), asyncio.Event()

    async def execute(request: ChangeRequest) -> Inventory:
        if request == DisableMig("bad"):
            begun.set()
            await go.wait()
            raise ZeroDivisionError
        return OBSERVED

    async with asyncio.timeout(5), served(execute) as requests:
        waiting = asyncio.create_task(requests.change(DisableMig("bad")))
        await begun.wait()
        waiting.cancel()
        go.set()
        await asyncio.gather(waiting, return_exceptions=True)
        assert await requests.change(DisableMig("good")) == OBSERVED


async def test_who_waits_when_the_agent_ends_is_cancelled() -> None:
    begun = asyncio.Event()

    async def execute(_: ChangeRequest) -> Inventory:
        begun.set()
        await asyncio.Event().wait()
        return OBSERVED

    async with served(execute) as requests:
        first = asyncio.create_task(requests.change(DisableMig("u")))
        await begun.wait()
    with pytest.raises(asyncio.CancelledError):
        await first
