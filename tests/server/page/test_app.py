"""The page's routes: its files, what they answer to whom, and how streams of updates end."""

import asyncio
import base64
import hashlib
import re
from contextlib import AsyncExitStack, suppress

import httpx2
import pytest
from structlog.testing import capture_logs

from harness.pageserver import cluster, served
from harness.servers import Clock
from tessera.clients.kube import MemoryKube
from tessera.core.explain.fleetview import FleetView
from tessera.log import logger
from tessera.measures import Measures
from tessera.server.listening import HttpServer, listening
from tessera.server.page.app import make_page_app
from tessera.server.page.feed import Channel, FleetFeed
from tessera.server.page.signin import SignIn
from tessera.server.settings import PageLimits

pytestmark = pytest.mark.anyio


async def test_its_files_come_with_headers_that_keep_others_out() -> None:
    async with served(MemoryKube()) as page:
        answer = await page.get("/")
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        for path in ("/none.js", "/index.html", "/main.js", "/app.py", "/..%2fapp.py", "/api/none"):
            assert (await page.get(path)).status_code == 404
        assert (await page.client.post("/api/fleet")).status_code == 405


async def test_the_first_page_names_files_of_its_version_and_no_others_are_answered() -> None:
    async with served(MemoryKube()) as page:
        first = (await page.get("/")).text
        named = set(re.findall(r'(?:src|href)="([^"#?]+)"', first))
        versions = {path.partition("/")[0] for path in named}
        assert {path.partition("/")[2] for path in named} == {"icon.svg", "page.css", "main.js"}
        async with page.events() as events:
            assert versions == {(await events.next())[1]["version"]}, "what the server says that it is"
        for path in named:
            assert (await page.get(f"/{path}")).status_code == 200
            assert (await page.get(f"/0123456789abcdef/{path.partition('/')[2]}")).status_code == 404
        (inline,) = re.findall(r"<script>(.*?)</script>", first, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        policy = (await page.get("/")).headers["content-security-policy"]
        assert f"script-src 'self' 'sha256-{digest}';" in policy


async def test_without_sign_in_this_machine_alone_sees_everything() -> None:
    async with served(await cluster()) as page:
        fleet = await page.fleet()
        assert fleet["namespaces"] == ["hidden", "ns"]
        assert [part["state"] for part in fleet["nodes"][0]["gpus"][0]["parts"]] == [
            "free",
            "allocated",
            "allocated",
            "free",
        ]
        rebound = await page.get("/api/fleet", Host="elsewhere.example")
        assert (rebound.status_code, "127.0.0.1" in rebound.json()["error"]) == (421, True)
        assert (await page.get("/api/fleet", Host="localhost:1")).status_code == 200


async def test_viewers_see_what_they_may_list() -> None:
    kube = await cluster()
    async with served(kube, sign_in=True) as page:
        for token in ("", "unknown", "x" * 20000):
            refused = await page.get("/api/fleet", token)
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
            assert (await page.get("/api/events", token)).status_code == 401
        assert (await page.get("/api/fleet", "token-of-nobody")).status_code == 403
        assert (await page.fleet("token-of-admin"))["namespaces"] == ["hidden", "ns"]
        answer = await page.get("/api/fleet", "token-of-viewer")
        assert b"hidden" not in answer.content
        assert b"secret" not in answer.content
        assert (answer.json()["namespaces"], answer.json()["partial"]) == (["ns"], True)
        # No other host's page can have sent a token that it does not have: any name may lead here.
        assert (await page.get("/api/fleet", "token-of-viewer", Host="gpus.example")).status_code == 200


async def test_a_stranger_is_sent_away_at_once_and_learns_nothing_of_why_the_fleet_is_not_known() -> None:
    kube = await cluster()

    async def observe() -> FleetView:
        raise AssertionError  # nobody runs the feed: it has not read yet

    feed = FleetFeed(observe, Measures(), logger())
    limits = PageLimits(refresh_s=0.05)
    sign_in = SignIn(kube, Clock())
    app = make_page_app(feed, sign_in, waiting_for=lambda: "reading pods (10.0.0.1)", limits=limits, log=logger())
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://localhost") as client:
        for token in ("", "unknown"):
            answer = await client.get("/api/events", headers={"Authorization": f"Bearer {token}"})
            assert (answer.status_code, "10.0.0.1" in answer.text) == (401, False)
        answer = await client.get("/api/fleet", headers={"Authorization": "Bearer token-of-viewer"})
        assert (answer.status_code, answer.json()) == (503, {"error": "reading pods (10.0.0.1)"})


async def test_who_may_list_every_pod_or_the_nodes_alone() -> None:
    kube = await cluster()
    kube.accounts.allow("nobody", "list", "nodes")
    async with served(kube, sign_in=True) as page:
        assert "namespaces" not in await page.fleet("token-of-nobody")
        kube.accounts.allow("system:authenticated", "list", "pods")
        page.clock.now_s += 31
        assert (await page.fleet("token-of-viewer"))["namespaces"] == ["hidden", "ns"]


async def test_who_missed_nothing_is_told_so_after_the_next_refresh() -> None:
    async with served(await cluster()) as page:
        async with page.events() as events:
            assert [(await events.next())[0] for _ in range(2)] == ["viewer", "fleet"]
            last = events.last
        async with page.events(last=last) as events:
            assert [(await events.next())[0] for _ in range(2)] == ["viewer", "current"]


async def test_a_revoked_token_ends_the_updates() -> None:
    kube = await cluster()
    async with served(kube, sign_in=True, heartbeat_s=0.05) as page, page.events("token-of-viewer") as events:
        kind, viewer = await events.next()
        assert (kind, viewer["name"], viewer["signedIn"]) == ("viewer", "viewer", True)
        assert (await events.next())[0] == "fleet"
        kube.accounts.drop("token-of-viewer")
        page.clock.now_s += 31
        assert await events.next() == ("", None)


async def test_a_viewer_who_loses_one_of_two_namespaces_loses_the_updates_of_it() -> None:
    kube = await cluster()
    kube.accounts.allow("viewer", "list", "pods", ["ns", "hidden"])
    async with served(kube, sign_in=True, heartbeat_s=0.05) as page, page.events("token-of-viewer") as events:
        assert [(await events.next())[0] for _ in range(2)] == ["viewer", "fleet"]
        kube.accounts.withdraw("viewer", "list", "pods", ["hidden"])
        page.clock.now_s += 31
        assert await events.next() == ("", None), "they are still admitted, to less"
        assert (await page.fleet("token-of-viewer"))["namespaces"] == ["ns"]


async def test_an_api_server_that_does_not_answer_is_said_and_ends_updates() -> None:
    kube = await cluster()
    async with served(kube, sign_in=True, heartbeat_s=0.05) as page, page.events("token-of-admin") as events:
        await events.next()
        await events.next()
        kube.stop()
        page.clock.now_s += 31
        assert await events.next() == ("", None)
        assert (await page.get("/api/fleet", "token-of-admin")).status_code == 503
        kube.start()


async def test_viewers_beyond_the_limit_are_refused_until_one_goes() -> None:
    async with served(await cluster(), streams=1) as page:
        async with page.events() as events:
            await events.next()
            async with page.events() as second:
                assert second.status == 503
            refused = await page.get("/api/events")
            assert refused.json() == {"error": "all 1 live connections are in use; try again later"}
        async with asyncio.timeout(20):
            while True:
                async with page.events() as events:
                    if events.status == 200:
                        break


async def test_one_viewer_cannot_take_the_streams_of_all() -> None:
    async with served(await cluster(), sign_in=True, streams=4, streams_per_viewer=2) as page, AsyncExitStack() as held:
        first, second, third = [await held.enter_async_context(page.events("token-of-viewer")) for _ in range(3)]
        assert (first.status, second.status, third.status) == (200, 200, 503)
        refused = await page.get("/api/events", "token-of-viewer")
        assert refused.json() == {"error": "viewer has the page open in 2 tabs, the most for one viewer: close one"}
        for _ in range(2):
            assert (await held.enter_async_context(page.events("token-of-admin"))).status == 200


async def test_a_viewer_whose_connections_broke_unnoticed_gets_another_in_place_of_the_oldest() -> None:
    """A page whose stream is silent asks for another, while the server still counts the former one."""
    limits = {"streams": 9, "streams_per_viewer": 2, "replace_s": 0.5}
    async with served(await cluster(), sign_in=True, **limits) as page, AsyncExitStack() as held:
        first = await held.enter_async_context(page.events("token-of-viewer"))
        await first.next()
        page.clock.now_s += 1
        second = await held.enter_async_context(page.events("token-of-viewer"))
        third = await held.enter_async_context(page.events("token-of-viewer"))
        fourth = await held.enter_async_context(page.events("token-of-viewer"))
        assert (second.status, third.status, fourth.status) == (200, 200, 503), "the others are new"
        while (await first.next())[0]:
            pass
        assert (await third.next())[0] == "viewer"


async def test_whoever_does_not_read_the_fleet_is_disconnected_and_no_viewer_has_more_than_some_requests() -> None:
    async def observe() -> FleetView:
        return FleetView(nodes=(), notes=("x" * (16 << 20),))

    feed = FleetFeed(observe, Measures(), logger())
    limits = PageLimits(streams=2, send_s=0.5)
    app = make_page_app(feed, None, waiting_for=str, limits=limits, log=logger())
    server, requested = HttpServer(app, None, stop_s=1), b"GET /api/fleet HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with listening("127.0.0.1", 0, 99) as socket:
        port = socket.getsockname()[1]
        tasks = [asyncio.create_task(each) for each in (server.serve([socket]), feed.run())]

        async def begin() -> tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(requested)
            line = await reader.readline()
            writer.transport.pause_reading()  # type: ignore[attr-defined]  # a socket's
            return line, reader, writer

        async with asyncio.timeout(60):
            found = [*await asyncio.gather(begin(), begin()), await begin()]
            assert [line.split()[1] for line, _, _ in found] == [b"200", b"200", b"503"]
            while (again := await begin())[0].split()[1] != b"200":
                again[2].close()
                await asyncio.sleep(0.1)
            _, reader, writer = found[0]
            writer.transport.resume_reading()  # type: ignore[attr-defined]  # a socket's
            got = 0
            with suppress(ConnectionResetError):
                while piece := await reader.read(1 << 20):
                    got += len(piece)
            assert 0 < got < 16 << 20, "what was not read in time is not kept"
        for _, _, writer in (*found, again):
            writer.close()
        server.should_exit = True
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_hundreds_that_come_at_once_get_no_more_streams_than_one_after_the_other() -> None:
    """Each over a connection of its own, and none reads: the limit counts who was let in, not who was sent anything."""
    async with served(await cluster(), streams=4) as page:
        port = page.server.page_port
        requested = b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n"

        async def begin() -> tuple[bytes, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(requested)
            return await reader.readline(), writer

        found = await asyncio.gather(*(begin() for _ in range(200)))
        answers = [line.split()[1] for line, _ in found]
        assert (answers.count(b"200"), answers.count(b"503")) == (4, 196)
        async with asyncio.timeout(20):
            line, writers = b"HTTP/1.1 503 ", [writer for _, writer in found]
            while line.split()[1] != b"200":
                for each in writers:
                    each.close()
                    await asyncio.gather(each.wait_closed(), return_exceptions=True)
                line, last = await begin()
                writers = [last]
        for each in writers:
            each.close()
            await asyncio.gather(each.wait_closed(), return_exceptions=True)


async def test_a_defect_while_updates_are_sent_ends_them_and_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_channel: Channel, _last: str) -> None:
        raise RuntimeError("nobody thought of it")

    monkeypatch.setattr(Channel, "since", broken)
    with capture_logs() as logs:
        async with served(await cluster()) as page:
            with pytest.raises(httpx2.RemoteProtocolError):
                async with page.client.stream("GET", "/api/events") as answer:
                    await answer.aread()
    (said,) = (each for each in logs if each["event"] == "defect")
    assert (said["path"], str(said["exc_info"])) == ("/api/events", "nobody thought of it")


async def test_a_stream_ends_after_a_while() -> None:
    async with served(await cluster(), stream_s=0.2, heartbeat_s=0.05) as page, page.events() as events:
        while (await events.next())[0]:
            pass
