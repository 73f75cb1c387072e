"""Blocking calls in a thread: deadlines, hung calls, and what comes after."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial

import pytest

from tessera.clients.gpu.thread import DriverThread
from tessera.errors import Unavailable

pytestmark = pytest.mark.anyio

LONG_S = 20.0
SHORT_S = 0.05


class Gate:
    """A call that comes back when it is let."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self) -> str:
        self.entered.set()
        assert self.opened.wait(LONG_S)
        return "late"

    async def busy(self) -> None:
        assert await asyncio.to_thread(self.entered.wait, LONG_S)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


def nothing() -> None:
    """Do nothing."""


@pytest.fixture
async def thread(gate: Gate) -> AsyncIterator[DriverThread]:
    thread = DriverThread("test")
    yield thread
    gate.opened.set()
    await thread.close(nothing, LONG_S)
    thread._thread.join(LONG_S)
    assert not thread._thread.is_alive()


async def answers(thread: DriverThread, function: Callable[[], str]) -> str:
    """Return what a call returns once the thread takes calls again."""
    async with asyncio.timeout(LONG_S):
        while True:
            try:
                return await thread.call("asking", function, LONG_S)
            except Unavailable:
                await asyncio.sleep(0.001)


async def test_calls_run_in_order_and_in_one_thread(thread: DriverThread) -> None:
    names = await asyncio.gather(*(thread.call("asking", threading.current_thread, LONG_S) for _ in range(5)))
    assert {each.name for each in names} == {"test"}
    order: list[int] = []
    await asyncio.gather(*(thread.call("asking", partial(order.append, n), LONG_S) for n in range(20)))
    assert order == list(range(20))


@pytest.mark.parametrize("error", [ValueError, TimeoutError])
async def test_an_error_is_the_callers(thread: DriverThread, error: type[Exception]) -> None:
    def fail() -> None:
        raise error("of the call")

    with pytest.raises(error, match="of the call"):
        await thread.call("asking", fail, LONG_S)
    assert await thread.call("asking", lambda: 7, LONG_S) == 7


async def test_a_hung_call_is_given_up_and_the_loop_goes_on(thread: DriverThread, gate: Gate) -> None:
    with pytest.raises(Unavailable, match=r"asking: no answer within 0\.05 s"):
        await thread.call("asking", gate, SHORT_S)


async def test_while_a_call_hangs_others_are_refused_at_once(thread: DriverThread, gate: Gate) -> None:
    with pytest.raises(Unavailable):
        await thread.call("cutting", gate, SHORT_S)
    ran: list[int] = []
    with pytest.raises(Unavailable, match="asking: `cutting` hanging for 0 s"):
        await thread.call("asking", lambda: ran.append(1), LONG_S)
    gate.opened.set()
    assert await answers(thread, lambda: "back") == "back"
    assert ran == []


async def test_a_call_that_waited_too_long_in_line_is_never_made(thread: DriverThread, gate: Gate) -> None:
    slow = asyncio.create_task(thread.call("cutting", gate, LONG_S))
    await gate.busy()
    ran: list[int] = []
    with pytest.raises(Unavailable, match="`cutting` still under way"):
        await thread.call("asking", lambda: ran.append(1), SHORT_S)
    gate.opened.set()
    assert await slow == "late"
    await thread.call("asking", lambda: None, LONG_S)
    assert ran == []


async def test_a_caller_that_goes_away_does_not_close_the_line(thread: DriverThread, gate: Gate) -> None:
    gone = asyncio.create_task(thread.call("reading", gate, LONG_S))
    await gate.busy()
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    next_call = asyncio.create_task(thread.call("asking", lambda: "served", LONG_S))
    await asyncio.sleep(0)
    gate.opened.set()
    assert await next_call == "served"


async def test_the_last_call_is_made_and_no_other_after_it(thread: DriverThread) -> None:
    ran: list[str] = []
    waiting = asyncio.create_task(thread.call("asking", partial(ran.append, "in line"), LONG_S))
    await asyncio.sleep(0)
    await thread.close(partial(ran.append, "last"), LONG_S)
    await waiting
    with pytest.raises(Unavailable, match="closed"):
        await thread.call("asking", partial(ran.append, "after"), LONG_S)
    await thread.close(partial(ran.append, "twice"), LONG_S)
    assert ran == ["in line", "last"]


async def test_closing_does_not_wait_for_a_hung_call(thread: DriverThread, gate: Gate) -> None:
    with pytest.raises(Unavailable):
        await thread.call("cutting", gate, SHORT_S)
    ran: list[str] = []
    await thread.close(partial(ran.append, "last"), SHORT_S)
    assert ran == []
    gate.opened.set()
    thread._thread.join(LONG_S)
    assert ran == ["last"]


async def test_what_the_last_call_raises_is_dropped(thread: DriverThread) -> None:
    await thread.close(partial(int, "no number"), LONG_S)  # type: ignore[arg-type]  # it returns nothing, but raises


def test_a_loop_that_is_gone_does_not_matter(gate: Gate) -> None:
    async def leave() -> DriverThread:
        thread = DriverThread("test")
        with pytest.raises(Unavailable):
            await thread.call("asking", gate, SHORT_S)
        await thread.close(nothing, 0.0)
        return thread

    thread = asyncio.run(leave())
    gate.opened.set()
    thread._thread.join(LONG_S)
    assert not thread._thread.is_alive()
