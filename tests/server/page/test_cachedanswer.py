"""Answers are asked for in the background, kept for a while, and given up."""

import asyncio

import pytest
from structlog.testing import capture_logs

from tessera.errors import InvalidInput
from tessera.log import RepeatedError, logger
from tessera.server.page.cachedanswer import CachedAnswer

pytestmark = pytest.mark.anyio


class Scene:
    """A clock, and somebody who answers when the test says so."""

    def __init__(self, stale_s: float = 50.0) -> None:
        self.now_s = 1000.0
        self.asked = self.changes = 0
        self.answer = asyncio.Queue[str | Exception]()
        self.kept = CachedAnswer(
            self.ask, "", RepeatedError(logger(), "not_answered"), lambda: self.now_s, every_s=10.0, stale_s=stale_s
        )

    async def ask(self) -> str:
        self.asked += 1
        found = await self.answer.get()
        if isinstance(found, Exception):
            raise found
        return found

    def changed(self) -> None:
        self.changes += 1

    async def after(self, seconds: float, *answers: str | Exception) -> str:
        """Return the value this much later, when these were answered."""
        self.now_s += seconds
        self.kept.refresh(self.changed)
        for each in answers:
            self.answer.put_nowait(each)
        for _ in range(20):
            await asyncio.sleep(0)
        return self.kept.value


async def test_nothing_waits_for_an_answer_and_it_is_asked_once_at_a_time() -> None:
    one = Scene()
    assert (await one.after(0), one.asked) == ("", 1)
    assert (await one.after(30), one.asked) == ("", 1), "it still waits"
    assert (await one.after(0, "a"), one.asked, one.changes) == ("a", 1, 1)
    assert (await one.after(0, "b"), one.asked, one.changes) == ("b", 2, 2), "it was due long ago"
    assert (await one.after(9.9), one.asked) == ("b", 2)
    assert (await one.after(0.1, "b"), one.asked, one.changes) == ("b", 3, 2), "the same is no change"


async def test_an_answer_is_kept_until_it_is_too_old_and_an_error_is_logged_once() -> None:
    one = Scene()
    await one.after(0, "a")
    error = InvalidInput("it", found="nothing", hint="wait")
    with capture_logs() as logs:
        assert [await one.after(10, error) for _ in range(4)] == ["a"] * 4
        assert await one.after(9.9) == "a"
        assert await one.after(0.1) == ""
        one.answer.put_nowait("b")
        assert (await one.after(0), one.changes) == ("b", 2)
    assert [each["event"] for each in logs] == ["not_answered"]


async def test_an_answer_is_as_old_as_its_question() -> None:
    one = Scene()
    await one.after(0)
    assert await one.after(49.9, "a") == "a"
    assert await one.after(0.1) == ""


async def test_who_never_answers_is_asked_again() -> None:
    one = Scene(stale_s=0.01)
    others = asyncio.all_tasks()
    with capture_logs() as logs:
        one.kept.refresh(one.changed)
        (asking,) = asyncio.all_tasks() - others
        await asyncio.wait((asking,))
        await one.after(10)
    assert (logs[0]["reason"], one.asked) == ("no answer in 0 s", 2)
