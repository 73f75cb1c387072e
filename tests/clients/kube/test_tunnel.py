"""Connections to ports of pods; the API server is played by its WebSocket."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from clients.kube.test_cluster import kubeconfig
from tessera.clients.kube import PODS, Forbidden, HttpKube, MemoryKube
from tessera.errors import TesseraError, Unavailable

pytestmark = pytest.mark.anyio

PORT = (8888).to_bytes(2, "little")
Play = Callable[[web.WebSocketResponse], Awaitable[None]]


@asynccontextmanager
async def tunnelled(folder: Path, play: Play) -> AsyncIterator[tuple[HttpKube, list[web.Request]]]:
    """Give a client of a server that plays the pod's side."""
    requested: list[web.Request] = []

    async def serve(request: web.Request) -> web.StreamResponse:
        requested.append(request)
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await socket.prepare(request)
        await socket.send_bytes(b"\0" + PORT)
        await socket.send_bytes(b"\1" + PORT)
        await play(socket)
        await socket.close()
        return socket

    app = web.Application()
    app.router.add_get("/api/v1/namespaces/ns/pods/p/portforward", serve)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        async with HttpKube.connect(kubeconfig(folder, {"token": "t"}, f"http://127.0.0.1:{port}")) as kube:
            yield kube, requested
    finally:
        await runner.cleanup()


async def echo(socket: web.WebSocketResponse) -> None:
    async for message in socket:
        assert message.data[:1] == b"\0"
        await socket.send_bytes(b"\0")
        await socket.send_bytes(b"\0" + message.data[1:].upper())
        if message.data == b"\0end":
            return


async def test_bytes_go_both_ways_until_the_pod_ends_the_connection(tmp_path: Path) -> None:
    async with tunnelled(tmp_path, echo) as (kube, requested), kube.tunnel("p", "ns", port=8888) as tunnel:
        for word in (b"one", b"two", b"end"):
            await tunnel.send(word)
            assert await tunnel.receive() == word.upper()
        assert await tunnel.receive() == b""
        assert [(each.query["ports"], each.headers["Authorization"]) for each in requested] == [("8888", "Bearer t")]


async def nobody(socket: web.WebSocketResponse) -> None:
    await socket.send_bytes(b"\1no process listens on 8888")


async def words(socket: web.WebSocketResponse) -> None:
    await socket.send_str("text")


async def break_connection(socket: web.WebSocketResponse) -> None:
    transport = socket._req.transport if socket._req is not None else None
    assert transport is not None
    transport.abort()


@pytest.mark.parametrize(("play", "text"), [(nobody, "no process listens on 8888"), (words, "TEXT: 'text'")])
async def test_what_the_pod_does_not_say_is_an_error_with_its_cause(play: Play, text: str, tmp_path: Path) -> None:
    async with tunnelled(tmp_path, play) as (kube, _), kube.tunnel("p", "ns", port=8888) as tunnel:
        with pytest.raises(Unavailable, match=f"port 8888 of Pod ns/p: .*{text}"):
            await tunnel.receive()


async def test_a_connection_that_is_cut_ends(tmp_path: Path) -> None:
    async with tunnelled(tmp_path, break_connection) as (kube, _), kube.tunnel("p", "ns", port=8888) as tunnel:
        assert await tunnel.receive() == b""
        with pytest.raises(Unavailable, match="port 8888 of Pod ns/p"):
            await tunnel.send(b"more")


REFUSALS: dict[str, tuple[int, type[TesseraError]]] = {
    "no right": (403, Unavailable),
    "no pod": (404, TesseraError),
    "no connection to the node": (502, Unavailable),
    "no WebSocket": (200, Unavailable),
}


@pytest.mark.parametrize("case", REFUSALS)
async def test_a_server_that_makes_no_connection_is_an_error(case: str, tmp_path: Path) -> None:
    code, want = REFUSALS[case]

    async def refuse(_: web.Request) -> web.StreamResponse:
        return web.Response(status=code, text="so it is")

    app = web.Application()
    app.router.add_get("/{path:.*}", refuse)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with HttpKube.connect(kubeconfig(tmp_path, {"token": "t"}, url)) as kube:
            with pytest.raises(want, match="port 1 of Pod ns/p"):
                async with kube.tunnel("p", "ns", port=1):
                    pytest.fail("no connection")
    finally:
        await runner.cleanup()
    with pytest.raises(Unavailable, match=r"check the API server's address"):
        async with HttpKube.connect(kubeconfig(tmp_path, {"token": "t"}, url)) as kube, kube.tunnel("p", "ns", port=1):
            pytest.fail("no connection")


async def test_in_memory_a_port_is_where_the_cluster_says() -> None:
    kube = MemoryKube()
    with pytest.raises(Unavailable, match="no such pod"):
        async with kube.tunnel("p", "ns", port=1):
            pytest.fail("no connection")
    await kube.create(PODS, {"metadata": {"name": "p", "namespace": "ns"}})
    with pytest.raises(Unavailable, match="no container listens on the port"):
        async with kube.tunnel("p", "ns", port=1):
            pytest.fail("no connection")
    kube.withhold("ns", PODS)
    with pytest.raises(Forbidden):
        async with kube.tunnel("p", "ns", port=1):
            pytest.fail("no connection")
