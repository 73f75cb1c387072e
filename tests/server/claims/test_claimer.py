"""Claims: written together, before a pod is bound; conflicts, other servers, old ones; the API alone is the judge."""

import asyncio
import itertools

import pytest
from structlog.testing import capture_logs

from builders.kubeobjects import gpu, gpunode, node, share
from builders.signed import AGENT
from harness import virtualtime
from harness.servers import (
    FULL,
    LARGE,
    NEED,
    Clock,
    FaultyKube,
    check,
    claims,
    hold,
    make_node,
    make_pod,
    nodes_of,
    servers,
    settle,
)
from judges.allocated import faults, shares_of
from tessera.api.tessera.pods.signatures import keys_text
from tessera.api.tessera.v1alpha1.gpunodes import claims_field, offered_field
from tessera.clients.kube import GPU_NODES, NODES, PODS, MemoryKube, Unanswered
from tessera.core.cluster.gpunodestate import Claim, DesiredDevices
from tessera.core.cluster.snapshot import Share
from tessera.core.workload.need import Need, PodKey
from tessera.errors import Unavailable
from tessera.server.settings import ServerLimits

pytestmark = pytest.mark.anyio


@pytest.fixture
async def kube() -> FaultyKube:
    """Return a cluster with one node of two A100."""
    made = FaultyKube()
    await make_node(made, "a", gpu(0), gpu(1))
    return made


async def test_a_settled_claim_goes_with_the_next_write_or_the_sweep(kube: FaultyKube) -> None:
    async with servers(kube) as (server,):
        for name in ("p", "q"):
            assert await server.bind(await make_pod(kube, name, NEED), "a") == ""
            await settle()
        assert await claims(kube) == ["ns/q"]
        await server.server.claimer.sweep()
        assert await claims(kube) == []
        assert server.server.binder.counts == {"bound": 2}


async def test_an_object_that_cannot_be_read_any_more(kube: FaultyKube) -> None:
    async with servers(kube) as (server,):
        waiting = await make_pod(kube, "p", NEED)
        await kube.patch(GPU_NODES, "a", {"spec": {"claims": 7}})
        await settle()
        before = kube.calls.count("get")
        error = await server.bind(waiting, "a")
        assert "GPUNode a: " in error
        assert "spec.claims" in error
        assert kube.calls.count("get") == before + 1, "reading it again helps nobody"
        await kube.patch(GPU_NODES, "a", {"spec": {"claims": []}})
        await settle()
        assert await server.bind(waiting, "a") == ""


async def test_a_node_that_vanished_after_filter(kube: FaultyKube) -> None:
    async with servers(kube) as (server,):
        waiting = await make_pod(kube, "p", NEED)
        assert await server.fitting(waiting, "a") == ["a"]
        await kube.delete(GPU_NODES, "a")
        await kube.delete(NODES, "a")
        assert "no such node with GPUs" in await server.bind(waiting, "a")
        assert "no such node with GPUs" in await server.bind(waiting, "b")
    assert await nodes_of(kube) == {"p": ""}


async def test_a_conflict_is_resolved_by_reading_again(kube: FaultyKube) -> None:
    writes = itertools.count()

    async def agent() -> None:
        body = {"status": {"driver": str(next(writes))}}
        await MemoryKube.patch(kube, GPU_NODES, "a", body, subresource="status")

    async with servers(kube) as (server,):
        kube.before_patch = [agent, agent]
        assert await server.bind(await make_pod(kube, "p", NEED), "a") == ""
        assert server.server.claimer.counts["conflict"] == 2
        kube.before_patch = [agent] * 20
        assert "it keeps changing" in await server.bind(await make_pod(kube, "q", NEED), "a")


async def test_a_replica_that_knows_less_takes_nothing_that_another_gave(kube: FaultyKube) -> None:
    """The second server's watches are broken while the first binds; it conflicts, reads, and takes the other GPU."""
    async with servers(kube, 2) as (one, other):
        pods = [await make_pod(kube, f"p{index}", LARGE) for index in range(3)]
        await settle()
        assert await one.bind(pods[0], "a") == ""
        errors = [await other.bind(each, "a") for each in pods[1:]]
        assert errors[0] == ""
        assert "room" in errors[1]
    await check(kube)


async def test_room_that_was_freed_unseen_is_found_before_a_pod_is_refused(kube: FaultyKube) -> None:
    async with servers(kube) as (server,):
        for index in range(2):
            await hold(kube, f"full{index}", FULL, share(index, 40000), node="a")
        waiting = await make_pod(kube, "p", LARGE)
        await settle()
        await kube.delete(PODS, "full0", namespace="ns")
        assert await server.bind(waiting, "a") == ""


async def test_pods_that_come_together_are_claimed_for_together(kube: FaultyKube) -> None:
    async with servers(kube) as (server,):
        small = [await make_pod(kube, f"p{index}", {"tessera.dev/gpu-memory": 1}) for index in range(40)]
        large = [await make_pod(kube, f"q{index}", {"tessera.dev/gpu-memory": 39}) for index in range(2)]
        await settle()
        errors = await asyncio.gather(*(server.bind(each, "a") for each in (large[0], *small, large[1])))
        assert set(errors[:-1]) == {""}
        assert "room" in errors[-1]
        assert server.server.claimer.counts["written"] <= 4
    await check(kube)


def test_pods_of_a_burst_wait_for_more_and_who_comes_alone_does_not() -> None:
    """The first write is slow and two pods wait for it; the nine that come within 0.1 s of theirs share the third."""

    async def story() -> tuple[int, float]:
        kube = FaultyKube()
        await make_node(kube, "a", gpu(0), gpu(1))
        async with servers(kube, limits=ServerLimits(gather_s=0.1)) as (server,):
            pods = [await make_pod(kube, f"p{index}", {"tessera.dev/gpu-memory": 1}) for index in range(15)]
            await settle()
            kube.before_patch = [lambda: asyncio.sleep(0.025)]
            binding = []
            for each in pods[:12]:
                binding.append(asyncio.create_task(server.bind(each, "a")))
                await asyncio.sleep(0.01)
            assert set(await asyncio.gather(*binding)) == {""}
            written = server.server.claimer.counts["written"]
            await asyncio.sleep(1)
            began_s = asyncio.get_running_loop().time()
            for each in pods[12:]:
                assert await server.bind(each, "a") == ""
            took_s = asyncio.get_running_loop().time() - began_s
        await check(kube)
        return written, took_s

    assert virtualtime.run(story()) == (3, 0.0)


async def test_pods_claimed_for_together_fail_together(kube: FaultyKube) -> None:
    async with servers(kube) as (server,):
        pods = [await make_pod(kube, f"p{index}", LARGE) for index in range(4)]
        await settle()
        kube.faults = {"patch": [Unanswered("x", found="nothing", expected="an answer") for _ in range(2)]}
        errors = await asyncio.gather(*(server.bind(each, "a") for each in pods))
        assert sum(error == "" for error in errors) <= 2
        await settle()
        assert [await server.bind(each, "a") == "" for each in pods].count(True) == 2
    await check(kube)


async def test_a_server_that_ends_at_once_tells_who_waits(kube: FaultyKube) -> None:
    gate = asyncio.Event()
    async with servers(kube, limits=ServerLimits(stop_s=0.01)) as (server,):
        pods = [await make_pod(kube, f"p{index}", LARGE) for index in range(3)]
        await settle()
        kube.before_patch = [gate.wait]
        binding = [asyncio.create_task(server.bind(each, "a")) for each in pods]
        await settle()
        ended = server.server.binder
    assert all("this server ends" in each for each in await asyncio.gather(*binding))
    assert ended.counts == {"unanswered": 3}
    assert await claims(kube) == []


async def test_a_defect_while_claims_are_written_is_reported_to_all_that_wait_and_logged(kube: FaultyKube) -> None:
    async with servers(kube) as (server,):
        pods = [await make_pod(kube, f"p{index}", {"tessera.dev/gpu-memory": 1}) for index in range(4)]
        await settle()
        kube.before_patch = [lambda: asyncio.sleep(0.01)] * 2
        kube.faults = {"patch": [OverflowError("too large") for _ in range(2)]}
        with capture_logs() as logs:
            errors = await asyncio.gather(*(server.bind(each, "a") for each in pods))
        assert all("unexpected OverflowError: too large" in error for error in errors)
        assert [each["log_level"] for each in logs if each["event"] == "defect"] == ["error"] * 2
        assert len([each for each in logs if each["event"] == "not_bound"]) == 4
        for each in pods:
            assert await server.bind(each, "a") == ""
    await check(kube)


async def test_a_pod_that_breaks_the_choice_is_refused_and_others_are_bound(kube: FaultyKube) -> None:
    async with servers(kube) as (server,):
        ledger = server.server.view.ledger
        choose = ledger.choose

        def broken(need: Need, node: str) -> tuple[Share, ...] | str:
            return ("no number", 1 // 0)[0] if need.requests[0].memory_mib == 2048 else choose(need, node)

        pods = [await make_pod(kube, f"p{index}", {"tessera.dev/gpu-memory": 1 + index % 2}) for index in range(6)]
        await settle()
        ledger.choose = broken  # type: ignore[method-assign]  # what no need is known to do
        kube.before_patch = [lambda: asyncio.sleep(0.01)]
        with capture_logs() as logs:
            errors = await asyncio.gather(*(server.bind(each, "a") for each in pods))
        assert [error == "" for error in errors] == [True, False] * 3
        assert all("unexpected ZeroDivisionError" in error for error in errors if error)
        assert len([each for each in logs if each["event"] == "defect"]) == 3
    await check(kube)


async def test_what_another_server_claimed_and_gave_up_is_free_after_the_next_look(kube: FaultyKube) -> None:
    """The claim vanishes while its pod is open: that it was given up is known from the pods as they are now."""
    clock = Clock()
    async with servers(kube, 2, clock) as (one, other):
        waiting = await make_pod(kube, "p", LARGE)
        both = await make_pod(kube, "q", LARGE | {"tessera.dev/gpu-count": 2})
        await settle()
        kube.lose_answers(1)
        assert "its answer" in await one.bind(waiting, "a")
        await settle()
        assert await claims(kube) == ["ns/p"]
        assert await other.fitting(both, "a") == []
        await one.server.claimer.sweep()
        await settle()
        assert await claims(kube) == []
        assert await other.fitting(both, "a") == [], "perhaps it was dropped because the pod is bound"
        clock.now_s += 5
        await other.server.claimer.sweep()
        assert await other.fitting(both, "a") == ["a"]


async def test_a_claim_whose_server_died_is_looked_into_after_two_minutes(kube: FaultyKube) -> None:
    clock = Clock()
    async with servers(kube, 1, clock) as (server,):
        waiting = [await make_pod(kube, name, LARGE) for name in ("p", "q", "r", "s")]
        dead = [
            Claim(
                uid=each["metadata"]["uid"], pod=PodKey(f"ns/{name}"), shares=(share(index, 40000),), attempt="dead/1"
            )
            for index, (name, each) in enumerate(zip(("p", "q"), waiting, strict=False))
        ]
        gone = Claim(uid="never", pod=PodKey("ns/never"), shares=(share(0, 1),), attempt="dead/2")
        await kube.patch(GPU_NODES, "a", {"spec": {"claims": claims_field((*dead, gone))}})
        await settle()
        assert await server.fitting(waiting[2], "a") == []
        clock.now_s += 4
        await server.server.claimer.sweep()
        assert len(await claims(kube)) == 3
        clock.now_s += 1
        await server.server.claimer.sweep()
        assert len(await claims(kube)) == 2, "a pod that was never seen is looked up soon, and is gone"
        clock.now_s += 95
        await server.server.claimer.sweep()
        assert len(await claims(kube)) == 2
        await MemoryKube.bind(kube, "q", "ns", uid=dead[1].uid, node="a", annotations={})
        clock.now_s += 21
        kube.faults = {"get": [Unavailable("x", found="429", expected="success")]}
        await server.server.claimer.sweep()
        assert len(await claims(kube)) == 2, "what could not be looked into is kept"
        await server.server.claimer.sweep()
        assert await claims(kube) == []
        assert await server.bind(waiting[2], "a") == ""


async def test_a_node_with_gpushares_plugin_alone_gets_an_object_for_claims() -> None:
    kube = MemoryKube()
    labels = {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.count": "2"}
    allocatable = {"aliyun.com/gpu-mem": "30", "aliyun.com/gpu-count": "2"}
    await kube.create(NODES, node("old", allocatable, **labels))
    async with servers(kube, 2) as (one, other):
        pods = [await make_pod(kube, f"p{index}", {"aliyun.com/gpu-mem": 8}) for index in range(3)]
        await settle()
        assert [await one.schedule(pods[0], "old"), await other.schedule(pods[1], "old")] == ["", ""]
        await settle()
        assert await one.schedule(pods[2], "old") == "nowhere", "two GPUs of 15 GiB hold 8 GiB once each"
    held = [shares_of(await kube.get(PODS, f"p{index}", "ns") or {})[0]["gpu"] for index in range(2)]
    assert sorted(held) == [0, 1]
    assert await kube.get(GPU_NODES, "old") is not None


async def label_node(kube: MemoryKube, mark: str) -> None:
    """Create a node whose labels show a GPU, and a mark of its agent."""
    made = node("a", {"nvidia.com/gpu": "1"}, **{"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"})
    await kube.create(NODES, made)
    await mark_node(kube, mark)


async def mark_node(kube: MemoryKube, mark: str) -> None:
    kind, _, key = mark.partition(" ")
    await kube.patch(NODES, "a", {"metadata": {kind: {key: "x"}}})


MARKS = ("annotations tessera.dev/device-list-strategy", "labels tessera.dev/gpu-revision")


@pytest.mark.parametrize("mark", MARKS)
async def test_a_node_whose_agent_s_object_was_deleted_gives_nothing_until_it_is_written_again(mark: str) -> None:
    """The kubelet may still give away what was offered by name: labels say nothing of that."""
    kube = MemoryKube()
    await label_node(kube, mark)
    told = gpunode("a", gpu(0), assignment_keys=keys_text([AGENT.public]))
    told["status"]["offered"] = offered_field((DesiredDevices(gpu="GPU-a-0", whole=True),))
    bare = {key: value for key, value in told.items() if key != "status"}
    await kube.create(GPU_NODES, bare)
    await kube.patch(GPU_NODES, "a", {"status": told["status"]}, subresource="status")
    async with servers(kube) as (server,):
        waiting = await make_pod(kube, "p", NEED)
        await settle()
        assert await server.fitting(waiting, "a") == []
        await kube.delete(GPU_NODES, "a")
        assert "agent" in await server.bind(waiting, "a"), "while the watch is late"
        await settle()
        assert await server.fitting(waiting, "a") == []
        assert "agent" in await server.bind(waiting, "a")
        assert await kube.get(GPU_NODES, "a") is None
    async with servers(kube) as (server,):
        assert await server.fitting(waiting, "a") == [], "nor for a server that never saw the object"
        await kube.create(GPU_NODES, bare)
        await settle()
        assert await server.fitting(waiting, "a") == [], "nothing is reported yet"
        await kube.patch(GPU_NODES, "a", {"status": told["status"]}, subresource="status")
        await settle()
        assert await server.fitting(waiting, "a") == [], "it is the kubelet's"
        await kube.patch(GPU_NODES, "a", {"status": {"offered": []}}, subresource="status")
        await settle()
        assert await server.schedule(waiting, "a") == ""


@pytest.mark.parametrize("mark", MARKS)
async def test_an_object_that_a_server_made_gives_nothing_more_once_there_is_an_agent(mark: str) -> None:
    kube = MemoryKube()
    await label_node(kube, "labels other")
    async with servers(kube) as (server,):
        pods = [await make_pod(kube, name, NEED) for name in ("p", "q")]
        await settle()
        assert await server.schedule(pods[0], "a") == ""
        await mark_node(kube, mark)
        await settle()
        assert await server.fitting(pods[1], "a") == []
        assert await server.bind(pods[1], "a") != ""


@pytest.mark.parametrize("recreated", [False, True], ids=["replaced", "deleted and created"])
def test_a_claim_that_comes_back_from_a_backup_gives_nothing_that_another_has(*, recreated: bool) -> None:
    """The pod's attempt was given up meanwhile, and its GPU is another pod's; it waits, and gets the other GPU."""

    async def told() -> None:
        kube, clock = MemoryKube(), asyncio.get_running_loop().time
        await make_node(kube, "a", gpu(0), gpu(1))
        p, q = [await make_pod(kube, name, LARGE) for name in "pq"]
        async with servers(kube, 2, clock) as (one, other):
            live = one.server.view.pods.live_pod(p["metadata"]["uid"])
            assert live is not None
            made = await one.server.claimer.claim("a", live)
            backup = await kube.get(GPU_NODES, "a") or {}
            one.server.claimer.abandon("a", made)
            await one.server.claimer.sweep()
            await settle()
            assert await claims(kube) == []
            await asyncio.sleep(10)
            await other.server.claimer.sweep()
            assert await other.bind(q, "a") == ""
            await settle()
            if recreated:
                status = (await kube.get(GPU_NODES, "a") or {})["status"]
                await kube.delete(GPU_NODES, "a")
                await kube.create(GPU_NODES, {"metadata": {"name": "a"}, "spec": backup["spec"]})
                await kube.patch(GPU_NODES, "a", {"status": status}, subresource="status")
            else:
                await kube.patch(GPU_NODES, "a", {"spec": {"claims": backup["spec"]["claims"]}})
            await settle()
            said = await one.bind(p, "a")
            assert "the shares that an earlier attempt claimed: other pods or the kubelet have them by now" in said
            await asyncio.sleep(121)
            for each in (one, other):
                await each.server.claimer.sweep()
            await settle()
            assert await one.bind(p, "a") == "", "the claim is over"
            await settle()
            assert faults((await kube.list(GPU_NODES)).objects, (await kube.list(PODS)).objects) == []
            assert await nodes_of(kube) == {"p": "a", "q": "a"}

    virtualtime.run(told())
