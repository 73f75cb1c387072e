"""Bodies that are read at once, with limits on each and on all."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request

from tessera.errors import Unavailable
from tessera.server.bodies import BodyReader, BodyTooLarge

pytestmark = pytest.mark.anyio


class Client:
    """A client that sends a body in parts to a reader."""

    def __init__(self, reader: BodyReader) -> None:
        self._sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        scope = {"type": "http", "method": "POST", "path": "/a", "query_string": b"", "headers": []}
        self.answer = asyncio.create_task(reader.read(Request(scope, self._sent.get)))

    async def send(self, size: int, *, last: bool = False) -> None:
        """Send so many bytes; return when they were read."""
        self._sent.put_nowait({"type": "http.request", "body": b"x" * size, "more_body": not last})
        await self._taken()

    async def leave(self) -> None:
        """Disconnect."""
        self._sent.put_nowait({"type": "http.disconnect"})
        await self._taken()

    async def _taken(self) -> None:
        for _ in range(5):  # turns of the loop: read, cancel, end
            await asyncio.sleep(0)


@pytest.fixture
def client() -> Callable[[], Client]:
    """Return what makes a client of one reader that takes 10 bytes of each and 15 of all."""
    reader = BodyReader(10, 15)
    return lambda: Client(reader)


async def test_a_body_is_read_in_parts(client: Callable[[], Client]) -> None:
    one = client()
    await one.send(4)
    await one.send(6, last=True)
    assert await one.answer == b"x" * 10


async def test_a_body_above_its_limit_is_refused(client: Callable[[], Client]) -> None:
    one, other = client(), client()
    await one.send(11)
    with pytest.raises(BodyTooLarge, match="more than 10 bytes"):
        await one.answer
    await other.send(10, last=True)
    assert await other.answer == b"x" * 10, "it does not count any more"


async def test_where_all_are_above_theirs_the_largest_is_refused(client: Callable[[], Client]) -> None:
    large, small = client(), client()
    await small.send(5)
    await large.send(9)
    await small.send(3)
    with pytest.raises(Unavailable, match="more than 15 bytes are sent at once"):
        await large.answer
    await small.send(2, last=True)
    assert await small.answer == b"x" * 10


async def test_who_makes_it_too_much_is_refused_where_it_is_the_largest(client: Callable[[], Client]) -> None:
    first, second = client(), client()
    await first.send(7)
    await second.send(4)
    await second.send(5)
    with pytest.raises(Unavailable):
        await second.answer
    await first.send(3, last=True)
    assert await first.answer == b"x" * 10


async def test_a_part_that_arrives_as_its_body_is_refused_is_dropped(client: Callable[[], Client]) -> None:
    large, small = client(), client()
    await large.send(9)
    await small.send(5)
    await asyncio.gather(small.send(2), large.send(1, last=True))
    with pytest.raises(Unavailable):
        await large.answer
    await small.send(3, last=True)
    assert await small.answer == b"x" * 10


async def test_a_body_whose_client_left_or_was_canceled_does_not_count(client: Callable[[], Client]) -> None:
    gone, canceled, last = client(), client(), client()
    await gone.send(7)
    await gone.leave()
    with pytest.raises(ClientDisconnect):
        await gone.answer
    await canceled.send(8)
    canceled.answer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await canceled.answer
    await last.send(10, last=True)
    assert await last.answer == b"x" * 10


async def test_there_may_be_no_limit_on_all() -> None:
    reader = BodyReader(10)
    many = [Client(reader) for _ in range(5)]
    for each in many:
        await each.send(9)
    for each in many:
        await each.send(1, last=True)
    assert [await each.answer for each in many] == [b"x" * 10] * 5
