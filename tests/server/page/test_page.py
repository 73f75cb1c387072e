"""The page over real sockets: its files, who sees what, live updates, and how they end."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import msgspec
import pytest

from builders.kubeobjects import cut, gpu, place
from harness.servers import Clock, hold, make_node, make_pod
from tessera.api.kubernetes.reviews import ReviewedUser
from tessera.clients.kube import NODE_IMAGES, NODE_MODELS, PODS, MemoryKube
from tessera.server.binder import ServerClocks
from tessera.server.run import Server
from tessera.server.settings import Page, PageLimits, ServerLimits, ServerSettings

MIG = {"nvidia.com/mig-1g.5gb": 1}
A100 = "A100-40GB"


class Served:
    """A server with a page, and one who looks at it."""

    def __init__(self, server: Server, clock: Clock) -> None:
        self.server = server
        self.clock = clock
        self.client = httpx2.AsyncClient(base_url=f"http://127.0.0.1:{server.page_port}", timeout=20)

    async def get(self, path: str, token: str = "", **headers: str) -> httpx2.Response:
        return await self.client.get(path, headers=headers | _bearer(token))

    async def fleet(self, token: str = "") -> Any:
        answer = await self.get("/api/fleet", token)
        assert answer.status_code == 200, answer.text
        return answer.json()

    @asynccontextmanager
    async def events(self, token: str = "", last: str = "") -> AsyncIterator["Events"]:
        headers = _bearer(token) | ({"Last-Event-ID": last} if last else {})
        async with self.client.stream("GET", "/api/events", headers=headers) as answer:
            yield Events(answer)


class Events:
    """Server-sent events as they come."""

    def __init__(self, answer: httpx2.Response) -> None:
        self.status = answer.status_code
        self._lines = answer.aiter_lines()
        self.last = ""

    async def next(self) -> tuple[str, Any]:
        """Return the next event; an empty one at the end."""
        event: dict[str, str] = {}
        async with asyncio.timeout(20):
            async for line in self._lines:
                name, _, value = line.partition(": ")
                if name and not line.startswith(":"):
                    event[name] = value
                elif event:
                    self.last = event.get("id", self.last)
                    return event["event"], msgspec.json.decode(event["data"])
        return "", None


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


async def cluster() -> MemoryKube:
    """Return a cluster with a pod of each of two namespaces on one GPU, and who may see which."""
    kube = MemoryKube()
    await make_node(kube, "a", gpu(0, layout=(place(A100, "1g.5gb", 5), place(A100, "1g.5gb", 6))))
    await hold(kube, "open-pod", MIG, cut(0, "1g.5gb", 6), node="a")
    made = await make_pod(kube, "secret-pod", MIG, metadata={"namespace": "hidden"})
    uid = made["metadata"]["uid"]
    await kube.bind("secret-pod", "hidden", uid=uid, node="a", annotations={})
    for token in ("admin", "viewer", "nobody"):
        kube.accounts.add(f"token-of-{token}", ReviewedUser(username=token, groups=("system:authenticated",)))
    kube.accounts.allow("admin", "list", "pods")
    kube.accounts.allow("admin", "list", "nodes")
    kube.accounts.allow("viewer", "list", "pods", ["ns"])
    return kube


@asynccontextmanager
async def served(kube: MemoryKube, *, sign_in: bool = False, **limits: Any) -> AsyncIterator[Served]:
    clock = Clock()
    page = Page(port=0, sign_in=sign_in, limits=PageLimits(**limits))
    server = Server(
        ServerSettings(port=0, page=page, limits=ServerLimits(stop_s=5)), kube, ServerClocks(clock, lambda: 1)
    )
    running = asyncio.create_task(server.run())
    async with asyncio.timeout(20):
        await server.listening.wait()
        await server.synced()
    one = Served(server, clock)
    try:
        yield one
    finally:
        server.stop()
        await running
        await one.client.aclose()


@pytest.mark.anyio
async def test_its_files_come_with_headers_that_keep_others_out() -> None:
    async with served(MemoryKube()) as page:
        answer = await page.get("/")
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        for path in ("/none.js", "/app.py", "/..%2fapp.py", "/api/none"):
            assert (await page.get(path)).status_code == 404
        assert (await page.client.post("/api/fleet")).status_code == 405


@pytest.mark.anyio
async def test_without_sign_in_this_machine_alone_sees_everything() -> None:
    async with served(await cluster()) as page:
        fleet = await page.fleet()
        assert fleet["namespaces"] == ["hidden", "ns"]
        assert [part["state"] for part in fleet["nodes"][0]["gpus"][0]["parts"]] == ["free", "held", "held", "free"]
        rebound = await page.get("/api/fleet", Host="elsewhere.example")
        assert (rebound.status_code, "127.0.0.1" in rebound.json()["error"]) == (421, True)
        assert (await page.get("/api/fleet", Host="localhost:1")).status_code == 200


@pytest.mark.anyio
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


@pytest.mark.anyio
async def test_who_may_list_every_pod_or_the_nodes_alone() -> None:
    kube = await cluster()
    kube.accounts.allow("nobody", "list", "nodes")
    async with served(kube, sign_in=True) as page:
        assert "namespaces" not in await page.fleet("token-of-nobody")
        kube.accounts.allow("system:authenticated", "list", "pods")
        page.clock.now_s += 31
        assert (await page.fleet("token-of-viewer"))["namespaces"] == ["hidden", "ns"]


@pytest.mark.anyio
async def test_changes_follow_the_fleet_and_what_was_missed_is_sent_again() -> None:
    kube = await cluster()
    async with served(kube) as page:
        async with page.events() as events:
            assert await events.next() == ("viewer", {"name": "", "signed_in": False})
            kind, fleet = await events.next()
            assert (kind, len(fleet["nodes"])) == ("fleet", 1)
            await make_pod(kube, "more", MIG)
            kind, change = await events.next()
            assert (kind, change.get("nodes", [])) == ("change", [])
            assert [each["pod"] for each in change["rest"]["pending"]] == ["more"]
            last = events.last
        await kube.delete(PODS, "more", namespace="ns")
        async with page.events(last=last) as events:
            await events.next()
            kind, change = await events.next()
            assert (kind, "pending" in change["rest"]) == ("change", False)
        name = last.rpartition("-")[0]
        for unknown in ("x-1", "-", f"{name}-999", f"{name}-", f"{name}-{'9' * 5000}", f"{name}-0"):
            async with page.events(last=unknown) as events:
                await events.next()
                assert (await events.next())[0] == "fleet"


@pytest.mark.anyio
async def test_its_loop_has_an_age_while_somebody_looks() -> None:
    kube = await cluster()
    async with served(kube) as page:
        async with page.events() as events:
            assert [(await events.next())[0] for _ in range(2)] == ["viewer", "fleet"]
            await _until(lambda: b'loop="page"' in page.server.metrics())
        await _until(lambda: b'loop="page"' not in page.server.metrics())


async def _until(holds: Callable[[], bool]) -> None:
    for _ in range(1000):
        if holds():
            return
        await asyncio.sleep(0.02)
    pytest.fail("not after 20 s")


@pytest.mark.anyio
async def test_images_of_nodes_are_shown_and_what_is_none_is_left_out() -> None:
    kube = await cluster()
    for name, images in (("a", [{"image": "vllm:1", "state": "Present"}]), ("b", "none")):
        await kube.create(NODE_IMAGES, {"metadata": {"name": name}, "spec": {}})
        await kube.patch(NODE_IMAGES, name, {"status": {"images": images}}, subresource="status")
    async with served(kube) as page:
        assert (await page.fleet())["nodes"][0]["images"] == [{"image": "vllm:1", "state": "Present"}]


@pytest.mark.anyio
async def test_models_of_nodes_are_shown_and_not_to_who_sees_one_namespace() -> None:
    kube = await cluster()
    first = {"name": "llama", "state": "Fetching", "revision": "0" * 64, "bytes": 7, "containers": 2}
    second = {"name": "bert", "state": "Fetching", "fetchedBytes": 1, "totalBytes": 3}
    for name, models in (("a", [first, second]), ("b", "none")):
        await kube.create(NODE_MODELS, {"metadata": {"name": name}, "spec": {}})
        await kube.patch(NODE_MODELS, name, {"status": {"models": models}}, subresource="status")
    async with served(kube) as page:
        assert (await page.fleet())["nodes"][0]["models"] == [
            {"model": "llama", "state": "Ready", "revision": "0" * 64, "bytes": 7, "containers": 2},
            {"model": "bert", "state": "Fetching", "fetched_percent": 33},
        ]
    async with served(kube, sign_in=True) as page:
        assert "models" not in (await page.fleet("token-of-viewer"))["nodes"][0]


@pytest.mark.anyio
async def test_a_revoked_token_ends_the_updates() -> None:
    kube = await cluster()
    async with served(kube, sign_in=True, heartbeat_s=0.05) as page, page.events("token-of-viewer") as events:
        assert await events.next() == ("viewer", {"name": "viewer", "signed_in": True})
        assert (await events.next())[0] == "fleet"
        kube.accounts.drop("token-of-viewer")
        page.clock.now_s += 31
        assert await events.next() == ("", None)


@pytest.mark.anyio
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


@pytest.mark.anyio
async def test_viewers_beyond_the_limit_are_refused_until_one_goes() -> None:
    async with served(await cluster(), streams=1) as page:
        async with page.events() as events:
            await events.next()
            async with page.events() as second:
                assert second.status == 503
        async with asyncio.timeout(20):
            while True:
                async with page.events() as events:
                    if events.status == 200:
                        break


@pytest.mark.anyio
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


@pytest.mark.anyio
async def test_a_stream_ends_after_a_while() -> None:
    async with served(await cluster(), stream_s=0.2, heartbeat_s=0.05) as page, page.events() as events:
        while (await events.next())[0]:
            pass


@pytest.mark.anyio
async def test_a_server_that_stops_ends_the_updates() -> None:
    async with served(await cluster()) as page, page.events() as events:
        await events.next()
        await events.next()
        page.server.stop()
        assert await events.next() == ("", None)


@pytest.mark.anyio
async def test_a_server_that_is_cancelled_ends_as_one_that_stops() -> None:
    server = Server(ServerSettings(port=0, page=Page(port=0, sign_in=False)), await cluster())
    running = asyncio.create_task(server.run())
    await server.synced()
    one = Served(server, Clock())
    async with asyncio.timeout(5), one.events() as events:  # it would wait 10 s for a viewer that is not sent away
        await events.next()
        await events.next()
        running.cancel()
        assert await events.next() == ("", None)
        with pytest.raises(asyncio.CancelledError):
            await running
    await one.client.aclose()


@pytest.mark.anyio
async def test_a_cluster_that_cannot_be_read_is_said() -> None:
    kube = await cluster()
    page = Page(port=0, limits=PageLimits(refresh_s=0.05))
    server = Server(ServerSettings(port=0, page=page), kube)
    kube.stop()
    running = asyncio.create_task(server.run())
    await server.listening.wait()
    one = Served(server, Clock())
    answer = await one.get("/api/fleet", "token-of-admin")
    await one.client.aclose()
    assert (answer.status_code, answer.json()["error"][:8]) == (503, "reading ")
    server.stop()
    await running
