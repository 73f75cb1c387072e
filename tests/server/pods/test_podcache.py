"""Pods as one server sees them: they come, end, are overtaken, and are read by the unit of their cluster."""

import asyncio

import pytest

from builders.kubeobjects import gpu, gpunode, node, pod, share
from builders.signed import AGENT, signed
from harness.servers import (
    FULL,
    LARGE,
    Asked,
    Clock,
    hold,
    make_node,
    make_pod,
    regrant,
    servers,
    settle,
)
from judges.allocated import shares_of
from tessera.clients.kube import GPU_NODES, NODES, PODS, MemoryKube
from tessera.core.gpu.sharing import Mode

pytestmark = pytest.mark.anyio

ALL = ("a", "b", "plain")


async def test_a_unit_of_one_mib_is_learned_from_the_nodes() -> None:
    kube = MemoryKube()
    await kube.create(NODES, node("a"))
    await kube.create(GPU_NODES, gpunode("a"))
    await kube.patch(GPU_NODES, "a", {"status": gpunode("a", gpu(0), unit_mib=1)["status"]}, subresource="status")
    await kube.create(PODS, pod("before", {"aliyun.com/gpu-mem": 3000}, node=None))
    async with servers(kube) as (server,):
        waiting = await make_pod(kube, "p", {"aliyun.com/gpu-mem": 5000})
        assert await server.schedule(waiting, "a") == ""
    assert [each["memoryMiB"] for each in shares_of(await kube.get(PODS, "p", "ns") or {})] == [5000]


async def test_one_node_s_unit_gives_pods_of_other_nodes_no_less_than_they_request() -> None:
    kube = MemoryKube()
    await make_node(kube, "a", gpu(0), gpu(1))
    await make_node(kube, "b", gpu(0))
    async with servers(kube) as (server,):
        await kube.patch(GPU_NODES, "b", {"status": {"unitMiB": 1}}, subresource="status")  # as its own agent may
        await settle()
        for name in ("p", "q"):
            assert await server.schedule(await make_pod(kube, name, {"aliyun.com/gpu-mem": 30}), "a") == ""
    got = [shares_of(await kube.get(PODS, name, "ns") or {})[0] for name in ("p", "q")]
    assert [(each["gpu"], each["memoryMiB"]) for each in got] == [(0, 30 * 1024), (1, 30 * 1024)]


async def test_finished_and_deleted_pods_free_what_they_held(kube: MemoryKube, server: Asked) -> None:
    for name, index in (("one", 0), ("two", 1)):
        await hold(kube, name, FULL, share(index, 40000), node="a")
    await settle()
    waiting = await make_pod(kube, "p", {"tessera.dev/gpu-memory": 30})
    assert await server.fitting(waiting, "a") == []
    await kube.patch(PODS, "one", {"status": {"phase": "Succeeded"}}, namespace="ns", subresource="status")
    await settle()
    assert await server.fitting(waiting, "a") == ["a"]
    other = await make_pod(kube, "q", {"tessera.dev/gpu-memory": 30})
    assert await server.schedule(waiting, "a") == ""
    assert await server.schedule(other, "a") == "nowhere"
    await kube.delete(PODS, "two", namespace="ns")
    await settle()
    assert await server.schedule(other, "a") == ""


async def test_what_an_exchange_of_assignments_gives_up_for_a_moment_is_not_free(kube: MemoryKube) -> None:
    clock = Clock()
    async with servers(kube, clock=clock) as (server,):
        first, second = share(0, 30000, Mode.MPS), share(1, 30000, Mode.MPS)
        for name, held in (("one", first), ("two", second)):
            await hold(kube, name, FULL, held, node="a")
        await settle()
        waiting = await make_pod(kube, "p", {"tessera.dev/gpu-memory": 30})
        await regrant(kube, "one", second)
        await settle()
        assert await server.fitting(waiting, "a") == []
        assert "room" in await server.bind(waiting, "a")
        await kube.delete(PODS, "two", namespace="ns")
        await settle()
        clock.now_s += 121
        assert await server.fitting(waiting, "a") == ["a"]


async def test_a_pod_that_was_listed_before_it_was_deleted_does_not_come_back(kube: MemoryKube) -> None:
    """The list that verifies a node is overtaken by the watch: nobody would tell again that a pod is gone."""
    async with servers(kube) as (server,):
        await hold(kube, "old", FULL, share(0, 40000), node="a")
        waiting = await make_pod(kube, "p", LARGE | {"tessera.dev/gpu-count": 2})
        await settle()
        listed, each = await kube.list(PODS), await kube.get(GPU_NODES, "a")
        await kube.delete(PODS, "old", namespace="ns")
        await settle()
        assert each is not None
        server.server.view.take_verified("a", each, listed)
        assert await server.fitting(waiting, "a") == ["a"]


async def test_a_pod_that_was_listed_before_all_pods_were_does_not_come_back(kube: MemoryKube) -> None:
    """The same where the watch was down: the list of all pods, recreated, does not have the pod any more."""
    async with servers(kube) as (server,):
        view = server.server.view
    await hold(kube, "old", FULL, share(0, 40000), node="a")
    listed, each = await kube.list(PODS), await kube.get(GPU_NODES, "a")
    await kube.delete(PODS, "old", namespace="ns")
    view.forget_unlisted(await kube.list(PODS))
    assert each is not None
    view.take_verified("a", each, listed)
    assert view.ledger.pods_on("a") == ()


async def test_a_pod_that_was_looked_up_and_ended_before_the_watch_was_back_is_let_go(kube: MemoryKube) -> None:
    """After a restart of the API server pods are listed anew: what is not there holds nothing, though nobody said so.

    A pod that was looked up after the list was made is another matter: the watch will tell.
    """
    async with servers(kube) as (server,):
        waiting = await make_pod(kube, "p", LARGE | {"tessera.dev/gpu-count": 2})
        await settle()
        version = int(waiting["metadata"]["resourceVersion"])
        for name, index, looked_up in (("old", 0, version), ("new", 1, version + 1000)):
            metadata = {"uid": f"uid-{name}", "resourceVersion": str(looked_up)}
            found = pod(name, FULL, share(index, 40000), node="a")
            found["metadata"] |= metadata
            server.server.view.take_pod(signed(found, AGENT))
        assert await server.fitting(waiting, "a") == []
        await kube.create(NODES, node("later"))
        kube.forget_history()
        kube.break_watches()
        held = {"ns/old", "ns/new"}
        async with asyncio.timeout(20):
            while "ns/old" in held:
                await asyncio.sleep(0.05)
                held = {holder.key for holder in server.server.view.ledger.pods_on("a")}
        assert held == {"ns/new"}
