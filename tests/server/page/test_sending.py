"""How many answers are sent at once: to each viewer and in all, and which gives way to another."""

import asyncio

import pytest

from harness.virtualtime import run
from tessera.server.page.sending import AnswerSlots, SlotsTaken
from tessera.server.settings import PageLimits

LIMITS = PageLimits(streams=3, streams_per_viewer=2)


def now() -> float:
    return asyncio.get_running_loop().time()


def refused(slots: AnswerSlots, name: str) -> bool:
    """Return whether the viewer's own slots are the reason that there is none; it fails where there is one."""
    with pytest.raises(SlotsTaken) as raised:
        slots.take(name, signed_in=True)
    return raised.value.per_viewer


def test_a_viewer_has_some_of_all_and_what_was_freed_is_another_s() -> None:
    async def take() -> None:
        slots = AnswerSlots(LIMITS, 30.0, now)
        first, _ = slots.take("ann", signed_in=True), slots.take("ann", signed_in=True)
        assert refused(slots, "ann")
        last = slots.take("bob", signed_in=True)
        assert not refused(slots, "eve"), "all are taken"
        for _ in range(2):
            first.free()
        assert not slots.take("eve", signed_in=True).replaced.is_set()
        assert not refused(slots, "bob"), "freed twice it is free once"
        last.free()
        slots.take("ann", signed_in=True)

    run(take())


def test_the_oldest_of_a_viewer_gives_way_once_it_is_old_and_nobody_else_s_does() -> None:
    async def take() -> None:
        slots = AnswerSlots(LIMITS, 30.0, now)
        other = slots.take("bob", signed_in=True)
        await asyncio.sleep(100)
        first = slots.take("ann", signed_in=True)
        await asyncio.sleep(20)
        second = slots.take("ann", signed_in=True)
        await asyncio.sleep(10)
        assert refused(slots, "ann"), "it is 30 s old, and no older"
        await asyncio.sleep(1)
        third = slots.take("ann", signed_in=True)
        assert [each.replaced.is_set() for each in (other, first, second, third)] == [False, True, False, False]
        first.free()
        assert refused(slots, "ann"), "what was replaced frees nothing"

    run(take())


def test_without_sign_in_all_viewers_are_one() -> None:
    async def take() -> None:
        slots = AnswerSlots(LIMITS, 30.0, now)
        for _ in range(3):
            slots.take("", signed_in=False)
        with pytest.raises(SlotsTaken) as raised:
            slots.take("", signed_in=False)
        assert not raised.value.per_viewer

    run(take())
