"""Events reach every reader that is there, in their order, until the feed is closed."""

import asyncio

import pytest

from tessera.clients.gpu.feed import EventFeed
from tessera.core.gpu.inventory import GpuEvent


def event(number: int) -> GpuEvent:
    return GpuEvent(gpu=f"GPU-{number}", xid=number)


@pytest.mark.anyio
async def test_each_reader_has_all_events_since_it_came_until_the_end() -> None:
    feed = EventFeed()
    early = feed.stream()
    feed.publish(event(1))
    late = feed.stream()
    feed.publish(event(2))
    feed.close()
    async with asyncio.timeout(20):
        assert [each async for each in early] == [event(1), event(2)]
        assert [each async for each in late] == [event(2)]
        assert [each async for each in late] == [], "it has ended"
        assert [each async for each in feed.stream()] == [], "the feed is closed"


@pytest.mark.anyio
async def test_a_slow_reader_loses_the_oldest_events() -> None:
    feed = EventFeed()
    stream = feed.stream()
    for number in range(2000):
        feed.publish(event(number))
    first = await anext(stream)
    assert first.xid == 2000 - 1024
    feed.close()
    async with asyncio.timeout(20):
        last = [each async for each in stream][-1]
    assert last == event(1999)
