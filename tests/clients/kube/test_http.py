"""Requests over kept connections: what is an answer, what is none, and when a connection serves again."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from httpserver import Asked, answer, chunked, serving
from tessera.clients.kube.http import Address, Answer, Broken, HttpClient, Unreachable
from tessera.errors import InvalidInput

ANSWERS = {
    "of a length": (answer(b"abc"), 200, b"abc", True),
    "an error": (answer(b"no", "404 Not Found"), 404, b"no", True),
    "without a reason": (b"HTTP/1.1 200\r\nContent-Length: 1\r\n\r\nx", 200, b"x", True),
    "in chunks": (chunked(b"a" * 70_000, b"b"), 200, b"a" * 70_000 + b"b", True),
    "in chunks with a trailer": (chunked(b"a", end=b"0\r\nX: y\r\n\r\n"), 200, b"a", True),
    "after others that only inform": (
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + answer(b"abc"),
        200,
        b"abc",
        True,
    ),
    "empty by its status": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True),
    "ended by the connection": (b"HTTP/1.1 200 OK\r\n\r\nabc", 200, b"abc", False),
    "the last of its connection": (
        b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 1\r\n\r\nx",
        200,
        b"x",
        False,
    ),
    "of an older protocol": (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", 200, b"x", False),
}
NO_ANSWERS = {
    "nothing": None,
    "not HTTP": b"SSH-2.0-server\r\n\r\n",
    "no status": b"HTTP/1.1 abc\r\n\r\n",
    "a head without end": b"HTTP/1.1 200 OK\r\nX: " + b"y" * 300_000,
    "a body cut short": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc",
    "a length that is none": b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nabc",
    "a length beyond all memory": b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\nabc",
    "a chunk that is none": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc",
    "chunks without end": chunked(b"abc", end=b""),
}


@pytest.mark.anyio
@pytest.mark.parametrize("case", ANSWERS)
async def test_an_answer_is_read_and_its_connection_kept_where_it_may(case: str) -> None:
    raw, status, content, kept = ANSWERS[case]
    async with serving(lambda _: raw) as server:
        client = HttpClient(Address(url=server.url), None)
        for _ in range(2):
            assert await client.ask("GET", "/x", {}) == Answer(status, content)
            await asyncio.sleep(0.02)
        # A server without a length in its answer ends the connection here, whatever it allows.
        assert server.connections == (1 if kept and status != 204 else 2)
        await client.close()


@pytest.mark.anyio
@pytest.mark.parametrize("case", NO_ANSWERS)
async def test_what_is_no_answer_is_told_and_sent_once(case: str) -> None:
    raw = NO_ANSWERS[case]

    async def play(_: Asked) -> bytes | None:
        if raw is not None and raw.startswith(b"HTTP/1.1 200 OK\r\nTransfer") and not raw.endswith(b"zz\r\nabc"):
            asyncio.get_running_loop().call_later(0.05, server.hang_up)
        return raw

    async with serving(play) as server:
        client = HttpClient(Address(url=server.url), None)
        if raw and b"Content-Length: 5" in raw:
            asyncio.get_running_loop().call_later(0.2, server.hang_up)
        with pytest.raises(Broken):
            await client.ask("POST", "/x", {}, b"body")
        assert len(server.asked) == 1
        await client.close()


@pytest.mark.anyio
async def test_a_kept_connection_that_the_server_gave_up_is_replaced() -> None:
    """A question is asked again; what may have changed something is not, unless the end was seen before it was sent."""
    async with serving(lambda _: answer()) as server:
        client = HttpClient(Address(url=f"{server.url}/prefix/"), None)
        await client.ask("GET", "/a", {"X": "y"})
        server.hang_up()
        assert (await client.ask("GET", "/b", {})).success
        server.hang_up()
        await asyncio.sleep(0.05)
        assert (await client.ask("POST", "/c", {}, b"{}")).success
        assert [each.target for each in server.asked] == ["/prefix/a", "/prefix/b", "/prefix/c"]
        assert server.asked[0].headers["x"] == "y"
        await client.close()


@pytest.mark.anyio
async def test_a_request_that_is_given_up_takes_its_connection_along() -> None:
    slow = asyncio.Event()

    async def play(asked: Asked) -> bytes:
        if asked.target == "/slow":
            await slow.wait()
        return answer(asked.target.encode())

    async with serving(play) as server:
        client = HttpClient(Address(url=server.url), None)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.ask("GET", "/slow", {})
        slow.set()
        assert (await client.ask("GET", "/fast", {})).content == b"/fast"
        assert server.connections == 2
        await client.close()


@pytest.mark.anyio
async def test_many_at_once_share_connections() -> None:
    async def play(_: Asked) -> bytes:
        await asyncio.sleep(0.01)
        return answer()

    async with serving(play) as server:
        client = HttpClient(Address(url=server.url), None)
        answers = await asyncio.gather(*(client.ask("GET", f"/{number}", {}) for number in range(300)))
        assert all(each.success for each in answers)
        assert server.connections <= 64
        await client.close()


@pytest.mark.anyio
async def test_a_stream_gives_what_comes_when_it_comes() -> None:
    async with serving(lambda _: chunked(b"one\n", b"two\n")) as server:
        client = HttpClient(Address(url=server.url), None)
        async with client.stream("/watch", {}) as pieces:
            assert isinstance(pieces, AsyncIterator)
            assert [piece async for piece in pieces] == [b"one\n", b"two\n"]
        await client.close()


@pytest.mark.anyio
async def test_a_stream_that_is_refused_is_an_answer() -> None:
    async with serving(lambda _: answer(b"gone", "410 Gone")) as server:
        client = HttpClient(Address(url=server.url), None)
        async with client.stream("/watch", {}) as refused:
            assert refused == Answer(410, b"gone")
        await client.close()


@pytest.mark.anyio
async def test_where_nobody_listens_nothing_was_sent() -> None:
    async with serving(lambda _: None) as server:
        port = server.port
    client = HttpClient(Address(url=f"http://127.0.0.1:{port}"), None)
    with pytest.raises(Unreachable):
        await client.ask("GET", "/x", {})
    with pytest.raises(Unreachable):
        async with client.stream("/x", {}):
            pass


@pytest.mark.anyio
async def test_a_header_of_two_lines_is_refused() -> None:
    async with serving(lambda _: answer()) as server:
        client = HttpClient(Address(url=server.url), None)
        with pytest.raises(InvalidInput, match="line break"):
            await client.ask("GET", "/x", {"Authorization": "Bearer a\r\nX: y"})
        assert server.asked == []


@pytest.mark.parametrize("url", ["", "10.0.0.1:6443", "ftp://host", "https://", "https://host:99999", "https://[::1"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="address of a server"):
        Address(url=url)
    with pytest.raises(InvalidInput):
        Address(url="https://host", proxy=url or "https://proxy:3128")


@pytest.mark.anyio
async def test_a_proxy_is_asked_to_carry() -> None:
    """After its answer the same connection leads to the server; here both are one."""
    refuse = False

    def play(asked: Asked) -> bytes:
        if asked.method == "CONNECT":
            status = "407 Proxy Authentication Required" if refuse else "200 Connection established"
            return answer(b"", status)
        return answer(b"server")

    async with serving(play) as server:
        proxy = server.url.replace("//", "//us%40er:pass@")
        client = HttpClient(Address(url="http://[fd00::1]:8080", proxy=proxy), None)
        assert (await client.ask("GET", "/x", {})).content == b"server"
        assert (server.asked[0].method, server.asked[0].target) == ("CONNECT", "[fd00::1]:8080")
        assert server.asked[0].headers["proxy-authorization"] == "Basic dXNAZXI6cGFzcw=="
        await client.close()
        refuse = True
        with pytest.raises(Unreachable, match="HTTP 407 from the proxy"):
            await client.ask("GET", "/x", {})
