"""The page as a part of its server: it follows the cluster, and ends with it."""

import asyncio
from collections.abc import Callable

import pytest

from harness.pageserver import MIG, Served, cluster, served
from harness.servers import Clock, make_pod
from tessera.clients.kube import PODS
from tessera.server.run import Server
from tessera.server.settings import Page, PageLimits, ServerSettings

pytestmark = pytest.mark.anyio


async def test_changes_follow_the_fleet_and_what_was_missed_is_sent_again() -> None:
    kube = await cluster()
    async with served(kube) as page:
        async with page.events() as events:
            kind, viewer = await events.next()
            assert (kind, viewer["name"], viewer["signedIn"]) == ("viewer", "", False)
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


async def test_a_server_that_stops_ends_the_updates() -> None:
    async with served(await cluster()) as page, page.events() as events:
        await events.next()
        await events.next()
        page.server.stop()
        assert await events.next() == ("", None)


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
    assert (answer.status_code, answer.json()["error"][:36]) == (503, "the API server does not review token"), (
        "where it is concerns nobody who is not signed in"
    )
    server.stop()
    await running
