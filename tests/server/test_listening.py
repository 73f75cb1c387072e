"""An HTTP server on a socket that is canceled: it ends in order, and the event loop forgets the socket."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from tessera.server.listening import App, HttpServer, listening

pytestmark = pytest.mark.anyio


async def answer(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"whole"})


@asynccontextmanager
async def cancelled_at_the_end(app: App) -> AsyncIterator[tuple[asyncio.Task[None], int]]:
    """Give a server's task and port; at the end it is canceled, and nothing of it may be in the loop."""
    loop = asyncio.get_running_loop()
    with listening("127.0.0.1", 0, 4) as listener:
        number, port = listener.fileno(), listener.getsockname()[1]
        task = loop.create_task(HttpServer(app, None, stop_s=5).serve([listener]))
        yield task, port
        if not task.cancelling():
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()
    assert loop.remove_reader(number) is False, "the loop still waits for connections on a closed socket"


@pytest.mark.parametrize("steps", range(5))
async def test_at_whatever_step_of_its_start_it_is_cancelled_the_loop_forgets_the_socket(steps: int) -> None:
    async with cancelled_at_the_end(answer):
        for _ in range(steps):
            await asyncio.sleep(0)


async def test_requests_under_way_are_answered_and_no_others() -> None:
    requested, answered = asyncio.Event(), asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        requested.set()
        await answered.wait()
        await answer(scope, receive, send)

    async with (
        httpx2.AsyncClient(timeout=10) as client,
        cancelled_at_the_end(slow) as (task, port),
        asyncio.TaskGroup() as tasks,
    ):
        first = tasks.create_task(client.get(f"http://127.0.0.1:{port}/"))
        await requested.wait()
        task.cancel()
        while not await refused(port):
            pass
        answered.set()
        assert (await first).content == b"whole"


async def test_a_websocket_gets_an_answer_as_any_request() -> None:
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "a"}
    async with httpx2.AsyncClient(timeout=10) as client, cancelled_at_the_end(answer) as (_, port):
        found = await client.get(f"http://127.0.0.1:{port}/", headers=upgrade)
        assert (found.status_code, found.content) == (200, b"whole")


async def refused(port: int) -> bool:
    """Return whether nobody takes a connection there."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionError:  # the end of the listener resets one that it had not taken yet
        return True
    writer.close()
    return False
