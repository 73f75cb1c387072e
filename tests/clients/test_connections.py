"""Requests over kept connections: what is an answer, what is none, and when a connection serves again."""

import asyncio
import os
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from harness.httpserver import Asked, answer, chunked, serving
from tessera.clients.connections import Broken, Connections, HttpResponse, ServerAddress, Unreachable
from tessera.errors import InvalidInput

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def connected(url: str, proxy: str = "") -> AsyncIterator[Connections]:
    client = Connections(ServerAddress(url=url, proxy=proxy), None)
    try:
        yield client
    finally:
        await client.close()


NO_ANSWERS = {
    "nothing": None,
    "not HTTP": b"SSH-2.0-server\r\n\r\n",
    "a body cut short": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc",
    "chunks without end": chunked(b"abc", end=b""),
}


async def test_a_connection_serves_again() -> None:
    async with serving(lambda _: answer(b"no", "404 Not Found")) as server, connected(server.url) as client:
        for _ in range(3):
            assert await client.ask("GET", "/x", {}) == HttpResponse(404, b"no")
        assert server.connections == 1


@pytest.mark.parametrize("case", NO_ANSWERS)
async def test_what_is_no_answer_is_reported_and_sent_once(case: str) -> None:
    raw = NO_ANSWERS[case]
    async with serving(lambda _: raw) as server, connected(server.url) as client:
        server.hang_up_after_s = 0.1
        with pytest.raises(Broken):
            await client.ask("POST", "/x", {}, b"body")
        assert len(server.requested) == 1


async def test_a_kept_connection_that_the_server_gave_up_is_replaced() -> None:
    """A question is asked again; what may have changed something is not, unless the end was seen before it was sent."""
    async with serving(lambda _: answer()) as server, connected(f"{server.url}/prefix/") as client:
        await client.ask("GET", "/a", {"X": "y"})
        server.hang_up()
        assert (await client.ask("GET", "/b", {})).success
        server.hang_up()
        await asyncio.sleep(0.05)
        assert (await client.ask("POST", "/c", {}, b"{}")).success
        assert [each.target for each in server.requested] == ["/prefix/a", "/prefix/b", "/prefix/c"]
        assert server.requested[0].headers["x"] == "y"


async def test_a_request_that_is_given_up_takes_its_connection_along() -> None:
    slow = asyncio.Event()

    async def play(requested: Asked) -> bytes:
        if requested.target == "/slow":
            await slow.wait()
        return answer(requested.target.encode())

    async with serving(play) as server, connected(server.url) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.ask("GET", "/slow", {})
        slow.set()
        assert (await client.ask("GET", "/fast", {})).content == b"/fast"
        assert server.connections == 2


async def test_many_at_once_share_connections() -> None:
    async def play(_: Asked) -> bytes:
        await asyncio.sleep(0.01)
        return answer()

    async with serving(play) as server, connected(server.url) as client:
        answers = await asyncio.gather(*(client.ask("GET", f"/{number}", {}) for number in range(300)))
        assert all(each.success for each in answers)
        assert server.connections <= 64


async def test_a_stream_gives_what_comes_when_it_comes() -> None:
    async with (
        serving(lambda _: chunked(b"one\n", b"two\n")) as server,
        connected(server.url) as client,
        client.stream("/watch", {}) as pieces,
    ):
        assert isinstance(pieces, AsyncIterator)
        assert b"".join([piece async for piece in pieces]) == b"one\ntwo\n"


@pytest.mark.skipif(sys.platform != "linux", reason="it finds its connection in /proc")
async def test_a_silent_connection_is_probed_so_that_one_that_a_network_forgot_ends_in_a_minute() -> None:
    async with (
        serving(lambda _: chunked(b"one\n")) as server,
        connected(server.url) as client,
        client.stream("/log", {}) as pieces,
    ):
        assert isinstance(pieces, AsyncIterator)
        (one,) = connections_to(server.port)
        with one:
            assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            first_s, next_s, probes = (
                one.getsockopt(socket.IPPROTO_TCP, each)
                for each in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            )
    assert first_s <= 30
    assert first_s + next_s * probes <= 60


def connections_to(port: int) -> list[socket.socket]:
    """Return this process's connections to a port."""
    found = list[socket.socket]()
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # what is not connected, and what lists the folder
            if each.readlink().name.startswith("socket:"):
                with socket.socket(fileno=os.dup(int(each.name))) as one:
                    if one.family == socket.AF_INET and one.getpeername()[1] == port:
                        found.append(one.dup())
    return found


async def test_a_stream_that_is_refused_is_an_answer() -> None:
    async with (
        serving(lambda _: answer(b"gone", "410 Gone")) as server,
        connected(server.url) as client,
        client.stream("/watch", {}) as refused,
    ):
        assert refused == HttpResponse(410, b"gone")


async def test_where_nobody_listens_nothing_was_sent() -> None:
    async with serving(lambda _: None) as server:
        port = server.port
    async with connected(f"http://127.0.0.1:{port}") as client:
        with pytest.raises(Unreachable, match=r"no connection to .*: Connection refused"):
            await client.ask("GET", "/x", {})
        with pytest.raises(Unreachable):
            async with client.stream("/x", {}):
                pass


async def test_a_header_of_two_lines_is_refused() -> None:
    async with serving(lambda _: answer()) as server, connected(server.url) as client:
        with pytest.raises(InvalidInput, match="headers of one line"):
            await client.ask("GET", "/x", {"Authorization": "Bearer a\r\nX: y"})
        assert server.requested == []


@pytest.mark.parametrize("url", ["", "10.0.0.1:6443", "ftp://host", "https://", "https://host:99999", "https://[::1"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="address of a server"):
        ServerAddress(url=url)
    with pytest.raises(InvalidInput):
        ServerAddress(url="https://host", proxy=url or "https://proxy:3128")


async def test_a_proxy_carries() -> None:
    async with serving(lambda _: answer(b"server")) as server:
        proxy = server.url.replace("//", "//us%40er:pass@")
        async with connected("http://10.255.255.1:8080", proxy) as client:
            assert (await client.ask("GET", "/x", {})).content == b"server"
        assert server.requested[0].target == "http://10.255.255.1:8080/x"
        assert server.requested[0].headers["proxy-authorization"] == "Basic dXNAZXI6cGFzcw=="


async def test_a_proxy_that_refuses_let_nothing_through() -> None:
    async with serving(lambda _: answer(b"", "407 Proxy Authentication Required")) as server:
        tls = ssl.create_default_context()
        client = Connections(ServerAddress(url="https://10.255.255.1:6443", proxy=server.url), tls)
        with pytest.raises(Unreachable, match="407"):
            await client.ask("POST", "/x", {}, b"{}")
        assert (server.requested[0].method, server.requested[0].target) == ("CONNECT", "10.255.255.1:6443")
        await client.close()
