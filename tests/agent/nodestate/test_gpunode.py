"""The agent's side of its GPUNode: made, reported when it differs, followed; or said once that the kind is missing."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from builders.gpufacts import at
from builders.gpunodes import facts, shared
from builders.shares import share
from harness.agentmachine import Machine
from tessera.agent.nodestate.gpunode import GpuNodeLink, GpuNodeRequest
from tessera.api.tessera.v1alpha1.gpunodes import claims_field, desired_field, read_gpu_node
from tessera.clients.kube import (
    CUSTOM_RESOURCE_DEFINITIONS,
    GPU_NODES,
    NODES,
    Kind,
    Listing,
    MemoryKube,
    Object,
    Selection,
)
from tessera.core.cluster.gpunodestate import Claim, DesiredDevices, GpuNodeState, Used
from tessera.core.cluster.snapshot import NodeName
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import GpuEvent
from tessera.core.workload.need import PodKey
from tessera.errors import Conflict, Unavailable
from tessera.log import logger

pytestmark = pytest.mark.anyio

NODE: Object = {"metadata": {"name": "n1", "uid": "uid-of-n1"}}
STATE = GpuNodeState(name=NodeName("n1"), gpus=(shared(facts(0)),), driver="580.1", reported=True)
MANY = 4
"""Tries after which it would have been said again."""
HALF = at("A100-40GB", ("3g.20gb", 0))
DOCUMENT = {"apiVersion": "tessera.dev/v1alpha1", "kind": "NodePolicy", "gpus": [{"sharing": "auto"}]}


class Counting(MemoryKube):
    """Counts the writes of a status, and tells when GPUNodes have been listed often."""

    writes = 0
    lists = 0

    def __init__(self) -> None:
        super().__init__()
        self.often = asyncio.Event()

    async def list(self, kind: Kind, selection: Selection | None = None) -> Listing:
        self.lists += kind == GPU_NODES
        if self.lists == MANY:
            self.often.set()
        return await super().list(kind, selection or Selection())

    async def patch(self, *args: Any, **more: Any) -> Object:
        self.writes += more.get("subresource") == "status"
        return await super().patch(*args, **more)


@contextlib.asynccontextmanager
async def following(kube: MemoryKube) -> AsyncIterator[GpuNodeLink]:
    link = GpuNodeLink(kube, "n1", logger(), wake=lambda: None)
    running = asyncio.ensure_future(link.store.run())
    try:
        await link.known()
        yield link
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def test_an_agent_that_may_not_ask_goes_on_asking_and_says_so_until_it_is_answered() -> None:
    kube = Counting()
    await kube.create(GPU_NODES, {"metadata": {"name": "n1"}})
    await kube.patch(GPU_NODES, "n1", {"status": {"assignmentKeys": ["v1.a"]}}, subresource="status")
    kube.stop()
    with capture_logs() as lines:
        link = GpuNodeLink(kube, "n1", logger(), wake=lambda: None, remind_s=0.01)
        running, known = asyncio.ensure_future(link.store.run()), asyncio.ensure_future(link.known())
        await kube.often.wait()
        assert (known.done(), link.assignment_keys) == (False, None)
        kube.start()
        await known
    assert link.assignment_keys == ("v1.a",)
    reminders = [each for each in lines if each["event"] == "gpunode_awaited"]
    assert len(reminders) > 1
    assert "upgrade the chart" in reminders[-1]["fix"]
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def until(link: GpuNodeLink, want: GpuNodeRequest) -> None:
    for _ in range(1000):
        if link.request() == want:
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"asked: {link.request()}")


async def stored(kube: MemoryKube) -> Object:
    found = await kube.get(GPU_NODES, "n1")
    assert found is not None
    return found


async def test_the_object_is_made_and_belongs_to_the_node() -> None:
    kube = MemoryKube()
    async with following(kube) as link:
        assert link.request() == GpuNodeRequest(desired=())
        await link.report(STATE, NODE, generation=0)
        found = await stored(kube)
        (owner,) = found["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("Node", "uid-of-n1")
        assert read_gpu_node(found).gpus == STATE.gpus
        await until(link, GpuNodeRequest(desired=(), generation=1))
        await kube.delete(GPU_NODES, "n1")
        async with asyncio.timeout(20):
            while await kube.get(GPU_NODES, "n1") is None:
                await link.report(STATE, NODE, generation=1)
                await asyncio.sleep(0.01)
        assert read_gpu_node(await stored(kube)).reported
        assert link.request().desired == ()


async def test_the_status_is_written_when_it_differs_and_never_twice() -> None:
    kube = Counting()
    async with following(kube) as link:
        await link.report(STATE, NODE, generation=0)
        await until(link, GpuNodeRequest(desired=(), generation=1))
        for _ in range(3):
            await link.report(STATE, NODE, generation=1)
        assert kube.writes == 2  # as it was made, and that generation 1 was seen
        other = msgspec.structs.replace(STATE, used=(Used(gpu=facts(0).uuid, memory_mib=4000),))
        await link.report(other, NODE, generation=1)
        await link.report(other, NODE, generation=1)
        assert kube.writes == 3
        await kube.patch(GPU_NODES, "n1", {"status": {"driver": "another"}}, subresource="status")
        for _ in range(100):
            await asyncio.sleep(0.01)
            await link.report(other, NODE, generation=1)
        assert (await stored(kube))["status"]["driver"] == "580.1"
        assert kube.writes == 5


async def test_generations_are_reported_for_what_concerns_an_agent_alone() -> None:
    """A claim of a server changes the generation too; a write for each would cross the servers' own."""
    kube = Counting()
    async with following(kube) as link:
        await link.report(STATE, NODE, generation=0)
        desired = DesiredDevices(gpu=facts(0).uuid, instances=HALF)
        await kube.patch(GPU_NODES, "n1", {"spec": {"desired": desired_field([desired])}})
        await until(link, GpuNodeRequest(desired=(desired,), generation=2))
        await link.report(STATE, NODE, generation=2)
        assert (await stored(kube))["status"]["observedGeneration"] == 2
        writes = kube.writes
        claim = Claim(uid="u", pod=PodKey("a/b"), shares=(share(0, 1),))
        await kube.patch(GPU_NODES, "n1", {"spec": {"claims": claims_field([claim])}})
        await until(link, GpuNodeRequest(desired=(desired,), generation=3))
        await link.report(STATE, NODE, generation=3)
        assert kube.writes == writes
        await kube.patch(GPU_NODES, "n1", {"spec": {"policy": {"name": "p", "document": DOCUMENT}}})
        policy = msgspec.json.encode(DOCUMENT).decode()
        await until(link, GpuNodeRequest(desired=(desired,), policy_name="p", policy=policy, generation=4))
        await link.report(STATE, NODE, generation=3)
        assert (await stored(kube))["status"]["observedGeneration"] == 2
        await link.report(STATE, NODE, generation=4)
        assert (await stored(kube))["status"]["observedGeneration"] == 4


async def test_an_object_that_is_no_good_leaves_in_force_what_it_asked_before() -> None:
    kube = MemoryKube()
    desired = DesiredDevices(gpu=facts(0).uuid, instances=HALF)
    async with following(kube) as link:
        await link.report(STATE, NODE, generation=0)
        await kube.patch(GPU_NODES, "n1", {"spec": {"desired": desired_field([desired])}})
        await until(link, GpuNodeRequest(desired=(desired,), generation=2))
        await kube.patch(GPU_NODES, "n1", {"spec": {"desired": "all of them"}})
        for _ in range(1000):
            if link.request().problem:
                break
            await asyncio.sleep(0.01)
        assert (link.request().desired, link.request().generation) == ((desired,), 3)
        assert "GPUNode" in link.request().problem


async def test_without_the_kind_it_says_once_what_to_install() -> None:
    kube = Counting()
    kube.uninstall(GPU_NODES)
    with capture_logs() as logs:
        async with following(kube) as link:
            assert link.request() == GpuNodeRequest()
            await link.report(STATE, NODE, generation=0)
            async with asyncio.timeout(20):
                await kube.often.wait()
            (line,) = [each for each in logs if each["event"] == "gpunode_not_followed"]
            assert "the chart installs it, see docs/install.md" in line["reason"]
            await kube.create(CUSTOM_RESOURCE_DEFINITIONS, {"metadata": {"name": "gpunodes.tessera.dev"}})
            await until(link, GpuNodeRequest(desired=()))
            await link.report(STATE, NODE, generation=0)
            assert read_gpu_node(await stored(kube)).reported


async def test_an_object_that_another_made_meanwhile_is_taken() -> None:
    class Late(MemoryKube):
        async def create(self, kind: Any, body: Object) -> Object:
            if kind == GPU_NODES:
                raise Conflict("GPUNode n1", found="it exists already", hint="choose a new name")
            return await super().create(kind, body)

    async with following(Late()) as link:
        await link.report(STATE, NODE, generation=0)


async def test_an_api_that_refuses_is_reported_to_the_caller() -> None:
    kube = MemoryKube()
    async with following(kube) as link:
        kube.stop()
        with pytest.raises(Unavailable):
            await link.report(STATE, NODE, generation=0)


async def test_an_agent_reports_its_gpus(machine: Machine) -> None:
    first, second = (await machine.driver.inventory()).gpus
    async with machine.agent():
        await machine.kubelet.until_allocatable("nvidia.com/gpu", 2)
        machine.driver.report(GpuEvent(gpu=first.uuid, xid=79))
        state, found = GpuNodeState(name=NodeName("n1")), None
        for _ in range(500):
            found = await machine.kube.get(GPU_NODES, "n1")
            state = read_gpu_node(found) if found else state
            if state.unhealthy:
                break
            await asyncio.sleep(0.02)
        assert [(each.device.gpu, "79" in each.reason) for each in state.unhealthy] == [(first.uuid, True)]
        assert [gpu.uuid for gpu in state.gpus] == [first.uuid, second.uuid]
        assert {each.gpu for each in state.used} == {first.uuid, second.uuid}
        node = await machine.kube.get(NODES, "n1")
        assert node is not None
        assert found is not None
        assert found["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"]


async def test_who_deletes_the_object_takes_nothing_from_the_kubelet(machine: Machine) -> None:
    """It is made again, with what the kubelet has; no device is withdrawn meanwhile."""
    async with machine.agent():
        await machine.kubelet.until_allocatable("nvidia.com/gpu", 2)
        before = await offered(machine)
        assert before
        least = 2
        await machine.kube.delete(GPU_NODES, "n1")
        for _ in range(1000):
            least = min(least, machine.kubelet.allocatable("nvidia.com/gpu"))
            if await offered(machine) == before:
                break
            await asyncio.sleep(0.01)
        assert await offered(machine) == before
        assert least == 2


async def test_a_status_is_never_without_the_keys_of_an_agent_that_signs() -> None:
    """One without is that of an agent that does not sign, and then servers take every assignment at its word."""
    kube = MemoryKube()
    link = GpuNodeLink(kube, "n1", logger(), wake=lambda: None)
    await link.publish_keys(("key",))
    state = await link.fresh({})
    await link.write_offered(frozenset({DeviceId("GPU-0")}), state.version)
    found = await kube.get(GPU_NODES, "n1")
    assert found is not None
    assert found["status"]["assignmentKeys"] == ["key"]
    later = GpuNodeLink(kube, "n1", logger(), wake=lambda: None)
    await later.publish_keys(("another",))
    state = await later.fresh({})
    await later.write_offered(frozenset(), state.version)
    found = await kube.get(GPU_NODES, "n1")
    assert found is not None
    assert found["status"]["assignmentKeys"] == ["key"], "pods that the former key signed run"


async def offered(machine: Machine) -> object:
    found = await machine.kube.get(GPU_NODES, "n1")
    return found and (found.get("status") or {}).get("offered")
