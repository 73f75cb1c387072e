"""What many want done at once is done once, and never for somebody who asked after it began."""

import asyncio
import contextlib

import pytest

from tessera.errors import InvalidInput, TesseraError, Unavailable
from tessera.log import defect
from tessera.loops import Joint, for_each, one_turn, until_done

pytestmark = pytest.mark.anyio


class Work:
    """Counts how often it was begun, and waits until it may end."""

    def __init__(self) -> None:
        self.begun = 0
        self.has_begun = asyncio.Event()
        self.may_end = asyncio.Event()

    async def __call__(self) -> int:
        self.begun += 1
        self.has_begun.set()
        mine = self.begun
        await self.may_end.wait()
        if mine == 3:
            raise Unavailable("work", found="too much", expected="less")
        return mine


async def test_who_asks_before_it_begins_shares_it_and_who_asks_later_gets_another() -> None:
    work = Work()
    joint = Joint(work)
    early = [asyncio.create_task(joint()) for _ in range(3)]
    await work.has_begun.wait()
    late = [asyncio.create_task(joint()) for _ in range(3)]
    await asyncio.sleep(0)
    work.may_end.set()
    assert await asyncio.gather(*early) == [1, 1, 1]
    assert await asyncio.gather(*late) == [2, 2, 2]
    with pytest.raises(Unavailable):
        await joint()
    assert await joint() == 4, "an error is of one turn"


async def test_who_goes_away_ends_nothing_for_the_others() -> None:
    work = Work()
    joint = Joint(work)
    first, second = asyncio.create_task(joint()), asyncio.create_task(joint())
    await work.has_begun.wait()
    first.cancel()
    work.may_end.set()
    assert await second == 1


async def test_at_the_end_nothing_is_being_done_any_more_nor_begun() -> None:
    ended: list[str] = []

    async def act() -> None:
        has_begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("act")

    has_begun, joint = asyncio.Event(), Joint(act)
    running = asyncio.create_task(joint())
    await has_begun.wait()
    next_one = asyncio.create_task(joint())
    await asyncio.sleep(0)
    await joint.close()
    assert ended == ["act"]
    for each in (running, next_one):
        with pytest.raises(asyncio.CancelledError):
            await each
    assert ended == ["act"]


async def test_a_loop_goes_on_when_a_call_is_ended_and_ends_on_request() -> None:
    said: list[BaseException] = []

    async def ended() -> None:
        raise asyncio.CancelledError

    await one_turn(ended, said.append)
    assert [type(each) for each in said] == [asyncio.CancelledError]

    async def wrong() -> None:
        int("9" * 5000)

    await one_turn(wrong, said.append)
    assert [type(each) for each in map(defect, said)] == [type(None), ValueError], "one's traceback is for the log"
    running = asyncio.create_task(one_turn(asyncio.Event().wait, said.append))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(said) == 2


@pytest.mark.parametrize(
    "error", [InvalidInput("b", found="422", expected="200"), Unavailable("b", found="503", expected="200")]
)
async def test_one_that_cannot_be_acted_on_keeps_none_of_the_others_from_it(error: TesseraError) -> None:
    done: list[str] = []
    said: list[tuple[str, TesseraError]] = []

    async def act(each: str) -> None:
        if each == "b":
            raise error
        done.append(each)

    with pytest.raises(Unavailable) if isinstance(error, Unavailable) else contextlib.nullcontext():
        await for_each("abc", act, lambda each, why: said.append((each, why)))
    assert (done, said) == (["a", "c"], [("b", error)])


async def test_what_must_succeed_is_done_until_it_does_and_no_longer() -> None:
    tries: list[int] = []
    told: list[str] = []

    async def act() -> None:
        tries.append(len(tries))
        if len(tries) < 3:
            raise Unavailable("it", found="not yet", hint="wait")

    await until_done(act, lambda error: told.append(str(error)), 0.0)
    assert (tries, told) == ([0, 1, 2], ["it: not yet: wait"] * 2)
