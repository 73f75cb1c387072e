"""Servers sign what they grant, and count nothing else: forged assignments hold nothing and harm nobody."""

import asyncio
import base64
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from builders.kubeobjects import gpu, mig_share, node, pod, share
from builders.signed import SERVER, STRANGER, config_map, signed
from harness.servers import (
    FULL,
    LARGE,
    NEED,
    SHARE,
    Clock,
    FaultyKube,
    check,
    hold,
    make_node,
    make_pod,
    regrant,
    servers,
    settle,
)
from tessera.api.tessera.pods.signatures import (
    key_id,
)
from tessera.clients.kube import (
    CONFIG_MAPS,
    GPU_NODES,
    NODES,
    PODS,
    MemoryKube,
    Object,
    Unanswered,
)
from tessera.core.gpu.sharing import Mode
from tessera.errors import Unavailable

pytestmark = pytest.mark.anyio

WHOLE = share(0, 40960, Mode.WHOLE, resource="tessera.dev/gpu-memory")


@pytest.fixture
async def kube() -> MemoryKube:
    """Return a cluster with one node of one GPU, whose agent signs."""
    made = MemoryKube()
    await make_node(made, "a", gpu(0))
    return made


async def test_a_pod_that_gives_itself_a_gpu_takes_nothing_from_others(kube: MemoryKube) -> None:
    await hold(kube, "honest", NEED, share(0, 10240, Mode.MPS), node="a")
    for name, shares in (("whole", (WHOLE,)), ("much", (share(0, 38000),))):
        await kube.create(PODS, pod(name, {"tessera.dev/gpu-memory": 1}, *shares, node="a"))
    index = {"ALIYUN_COM_GPU_MEM_IDX": "0"}
    await kube.create(PODS, pod("index", SHARE, annotations=index, node="a"))
    with capture_logs() as logs:
        async with servers(kube) as (server,):
            assert server.server.view.ledger.impossible_shares == ()
            for name in ("p", "q"):
                assert await server.schedule(await make_pod(kube, name, NEED), "a") == ""
            _, text = await server.get("/inspect")
            assert "forged" not in text
    reasons = [each["reason"] for each in logs if each.get("kind") == "assignment of Pod"]
    assert len(reasons) == 3
    assert all("not signed by Tessera" in reason and "schedulerName" in reason for reason in reasons)


async def test_a_stranger_s_signature_counts_until_the_keys_were_asked_for_and_no_longer(kube: MemoryKube) -> None:
    async with servers(kube) as (server,):
        waiting = await make_pod(kube, "p", NEED)
        await settle()
        forged = signed(pod("forged", FULL, share(0, 40000), node="a"), STRANGER)
        forged["metadata"]["resourceVersion"] = "1000"
        server.server.view.take_pod(forged)
        assert server.server.view.ledger.pods_on("a")[0].shares
        await settle()
        assert server.server.view.ledger.pods_on("a")[0].shares == ()
        assert await server.fitting(waiting, "a") == ["a"]
        assert server.server.view.keys.doubts == {}


async def test_what_was_signed_by_a_key_made_just_now_never_looks_free(kube: MemoryKube) -> None:
    """A watch may be late: who signs has published the key before, so that asking finds it."""
    async with servers(kube) as (server,):
        view = server.server.view
        await kube.apply(CONFIG_MAPS, config_map(STRANGER), manager="new")
        held = signed(pod("p", FULL, share(0, 40000), node="a"), STRANGER)
        held["metadata"]["resourceVersion"] = "1000"
        view.take_pod(held)
        for _ in range(30):
            assert view.ledger.pods_on("a")[0].shares
            await asyncio.sleep(0)
        assert not view.keys.doubts
        assert key_id(STRANGER.public) in view.keys.authority.servers


async def test_the_api_does_not_answer_while_it_is_asked(kube: MemoryKube, monkeypatch: pytest.MonkeyPatch) -> None:
    async with servers(kube) as (server,):
        view, get = server.server.view, kube.get
        failures: Iterator[Exception] = iter([Unavailable("API", found="silence", expected="an answer")])

        async def failing(*args: Any, **more: Any) -> Object | None:
            for error in failures:
                raise error
            return await get(*args, **more)

        monkeypatch.setattr(kube, "get", failing)
        forged = signed(pod("p", FULL, share(0, 40000), node="a"), STRANGER)
        forged["metadata"]["resourceVersion"] = "1000"
        view.take_pod(forged)
        await settle()
        assert view.ledger.pods_on("a")[0].shares, "it counts while nobody knows"
        async with asyncio.timeout(10):
            while view.keys.doubts:  # noqa: ASYNC110 (the server tells nobody)
                await asyncio.sleep(0.05)
        assert view.ledger.pods_on("a")[0].shares == ()
        assert 'tessera_loop_age_seconds{loop="unknown-keys"}' in server.server.metrics().decode()


async def test_doubted_shares_close_no_gpu_for_others() -> None:
    """While the API does not answer, and whatever is forged beside an honest pod."""
    kube = FaultyKube()
    await make_node(kube, "a", gpu(0))
    await hold(kube, "honest", NEED, share(0, 10240, Mode.MPS), node="a")
    async with servers(kube) as (server,):
        waiting, view = await make_pod(kube, "p", LARGE), server.server.view
        await settle()
        kube.faults["get"] = [Unavailable("API", found="silence", expected="an answer")] * 99
        forged = {"whole": WHOLE, "much": share(0, 40000), "absent": share(7, 1024), "mig": mig_share(0, "1g.5gb", 0)}
        for name, shares in forged.items():
            await kube.create(PODS, signed(pod(name, FULL, shares, node="a"), STRANGER))
        await settle()
        assert view.keys.doubts
        assert view.ledger.impossible_shares == ()
        assert await server.fitting(waiting, "a") == ["a"]
        await kube.create(PODS, signed(pod("room", FULL, share(0, 30000, Mode.MPS), node="a"), STRANGER))
        await settle()
        assert await server.fitting(waiting, "a") == [], "it may be true"
        kube.faults.clear()
        async with asyncio.timeout(10):
            while view.keys.doubts:  # noqa: ASYNC110 (the server tells nobody)
                await asyncio.sleep(0.05)
        assert await server.fitting(waiting, "a") == ["a"]


async def test_an_assignment_that_is_spoiled_later_holds_what_it_held(kube: MemoryKube) -> None:
    clock = Clock()
    async with servers(kube, clock=clock) as (server,):
        await hold(kube, "p", FULL, share(0, 40000), node="a")
        await settle()
        for text in ("[]", None):
            change = {"metadata": {"annotations": {"tessera.dev/assignment": text}}}
            await kube.patch(PODS, "p", change, namespace="ns")
            await settle()
            assert await server.fitting(await make_pod(kube, f"q{text}", NEED), "a") == []
        await regrant(kube, "p", share(0, 1024, Mode.MPS))
        await settle()
        clock.now_s += 11
        assert await server.fitting(await make_pod(kube, "r", NEED), "a") == ["a"]


async def test_the_agent_s_keys_come_with_its_report_and_count_on_its_node_alone(kube: MemoryKube) -> None:
    await make_node(kube, "b", gpu(0))
    foreign: Object = {"status": {"assignmentKeys": []}}
    async with servers(kube) as (server,):
        for name in ("a", "b"):
            await hold(kube, f"on-{name}", FULL, share(0, 40000), node=name)
        await settle()
        waiting = await make_pod(kube, "p", NEED)
        assert await server.fitting(waiting, "a", "b") == []
        keys = (await kube.get(GPU_NODES, "a") or {})["status"]["assignmentKeys"]
        assert keys
        other = [base64.b64encode(SERVER.public).decode()]
        await kube.patch(GPU_NODES, "b", {"status": {"assignmentKeys": other}}, subresource="status")
        await settle()
        assert await server.fitting(waiting, "a", "b") == [], "what it observed as allocated stays allocated"
    async with servers(kube) as (server,):
        await settle()
        assert await server.fitting(waiting, "a", "b") == ["b"]
        await kube.patch(GPU_NODES, "b", foreign, subresource="status")
        await settle()
        assert await server.fitting(waiting, "a", "b") == [], "an older agent hands out what is unsigned"


async def test_gpushare_s_annotations_count_on_nodes_without_an_agent() -> None:
    kube = MemoryKube()
    amounts = {"aliyun.com/gpu-mem": "39", "aliyun.com/gpu-count": "1"}
    await kube.create(NODES, node("old", amounts, **{"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}))
    index = {"ALIYUN_COM_GPU_MEM_IDX": "0"}
    await kube.create(PODS, pod("p", {"aliyun.com/gpu-mem": 30}, annotations=index, node="old"))
    async with servers(kube) as (server,):
        assert len(server.server.view.ledger.pods_on("old")[0].shares) == 1
        more = {"scheduler.framework.gpushare.allocation": '{"0":{"0":39}}'}
        await kube.create(PODS, pod("more", {"aliyun.com/gpu-mem": 1}, annotations=more, node="old"))
        await settle()
        assert {each.key: len(each.shares) for each in server.server.view.ledger.pods_on("old")} == {
            "ns/p": 1,
            "ns/more": 0,
        }


ANNOTATIONS = ("tessera.dev/gpu-memory-unit", "tessera.dev/isolation", "tessera.dev/gpu-model", "tessera.dev/x")


@pytest.mark.parametrize("annotation", ANNOTATIONS)
async def test_what_a_tenant_writes_while_its_pod_is_bound_frees_nothing_that_it_was_given(annotation: str) -> None:
    """The server signs what it read; whoever judges the assignment goes by that, not by what the pod says since."""
    kube = FaultyKube()
    await make_node(kube, "a", gpu(0))
    async with servers(kube, 2) as (one, other):
        first, second = [await make_pod(kube, name, LARGE) for name in ("p", "q")]
        await settle()

        async def change() -> None:
            text = {"tessera.dev/gpu-memory-unit": "MiB"}.get(annotation, "hardware")
            await MemoryKube.patch(kube, PODS, "p", {"metadata": {"annotations": {annotation: text}}}, namespace="ns")

        kube.before_patch = [change]
        assert await one.bind(first, "a") == ""
        await settle()
        for each in (one, other):
            assert await each.fitting(second, "a") == []
    async with servers(kube) as (later,):
        assert await later.fitting(second, "a") == [], "nor for a server that starts then"
    await check(kube)


@pytest.mark.parametrize("isolation", ["hardware", "none"])
@pytest.mark.parametrize("unit", ["GiB", "MiB"])
async def test_what_an_earlier_attempt_claimed_is_signed_for_no_other_ask(unit: str, isolation: str) -> None:
    """The answer to the first Binding is lost; its tenant changes what the pod asks before the second."""
    kube, clock = FaultyKube(), Clock()
    await make_node(kube, "a", gpu(0), gpu(1))
    async with servers(kube, clock=clock) as (server,):
        grade = "tessera.dev/isolation"
        waiting = await make_pod(kube, "p", LARGE, annotations={grade: "none"})
        await settle()
        kube.faults = {"bind": [Unanswered("x", found="nothing", expected="an answer")]}
        assert await server.bind(waiting, "a") != ""
        notes = {"tessera.dev/gpu-memory-unit": unit, grade: isolation}
        await MemoryKube.patch(kube, PODS, "p", {"metadata": {"annotations": notes}}, namespace="ns")
        await settle()
        error = await server.bind(waiting, "a")
        assert ("the annotations changed" in error) == ((unit, isolation) != ("GiB", "none"))
        clock.now_s += 121
        await server.server.claimer.sweep()
        assert await server.bind(waiting, "a") == ""
        found = await kube.get(PODS, "p", "ns") or {}
        live = server.server.view.pods.read(found)
        assert live.shares
        assert live.unread == ""
    await check(kube)
