"""Connections to a vLLM are renewed, so that clients reach replicas that are new."""

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator
from typing import Any

import uvicorn

from tessera.core.serving.render.connections import RenewedConnections


async def app(scope: Any, _receive: Any, send: Any) -> None:
    """Answer in two parts, as a model does that is still writing."""
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"wor", "more_body": True})
    await send({"type": "http.response.body", "body": b"ds"})


class Quiet(uvicorn.Server):
    """A server that leaves the signals of the tests alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[int]:
    """Serve the app as vLLM serves its own, by uvicorn; give the port."""
    server = Quiet(uvicorn.Config(RenewedConnections(app, random.Random(7)), log_level="error", lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        task = asyncio.create_task(server.serve(sockets=[listening]))
        yield listening.getsockname()[1]
        server.should_exit = True
        await task


async def ask(port: int, requests: int) -> list[int]:
    """Return how many answers came on each connection of a client that keeps them for as long as it can."""
    answers, left = list[int](), requests
    while left:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        answers.append(0)
        while left:
            writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            body = await reader.readuntil(b"0\r\n\r\n")
            assert (b"200 OK" in head, b"wor" in body, b"ds" in body) == (True, True, True)
            left, answers[-1] = left - 1, answers[-1] + 1
            if b"connection: close" in head:
                assert await reader.read() == b"", "it is closed once the answer is complete"
                break
        writer.close()
    return answers


async def test_every_answer_is_whole_and_some_are_the_last_of_their_connection() -> None:
    async with served() as port:
        connections = await asyncio.gather(*(ask(port, 100) for _ in range(8)))
    assert [sum(answers) for answers in connections] == [100] * 8
    assert sum(len(answers) for answers in connections) > 8


async def test_one_answer_of_31_closes_its_connection_whoever_takes_turns() -> None:
    """With 31 clients that take turns a middleware that counts would close that of one of them each time."""
    closed = [0] * 31
    renewed = RenewedConnections(app, random.Random(7))

    async def send(message: Any) -> None:
        closed[turn % 31] += (b"connection", b"close") in message.get("headers", ())

    turn = 0
    while turn < 31 * 1000:
        await renewed({"type": "http"}, None, send)
        turn += 1
    assert min(closed) > 0
    assert 800 < sum(closed) < 1200, "1000, and six standard deviations"


async def test_what_is_no_http_is_passed_on_as_it_is() -> None:
    passed = list[Any]()

    async def websocket(scope: Any, receive: Any, send: Any) -> None:
        passed.append((scope["type"], receive, send))

    async def send(_message: Any) -> None:
        """Never called."""

    await RenewedConnections(websocket, random.Random(7))({"type": "websocket"}, None, send)
    assert passed == [("websocket", None, send)]
