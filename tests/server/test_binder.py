"""Binding: claims, replicas beside each other, lost answers, conflicts, old claims; the API alone is the judge."""

import asyncio
import contextlib
import random
from typing import Any

import pytest
from structlog.testing import capture_logs

from builders.kubeobjects import gpu, node
from harness import virtualtime
from harness.servers import (
    LARGE,
    NEED,
    Asked,
    Clock,
    FaultyKube,
    check,
    claims,
    make_node,
    make_pod,
    nodes_of,
    servers,
    settle,
)
from tessera.clients.kube import GPU_NODES, NODES, PODS, MemoryKube, Object, Unanswered, annotations_of
from tessera.errors import Conflict, InvalidInput, Unavailable
from tessera.server.binder import ServerClocks
from tessera.server.run import Server
from tessera.server.settings import ServerLimits, ServerSettings

pytestmark = pytest.mark.anyio


@pytest.fixture
async def kube() -> FaultyKube:
    """Return a cluster with one node of two A100."""
    made = FaultyKube()
    await make_node(made, "a", gpu(0), gpu(1))
    return made


async def test_bind_called_twice_binds_once(kube: FaultyKube) -> None:
    async with servers(kube) as (server,):
        waiting = await make_pod(kube, "p", NEED)
        assert set(await asyncio.gather(server.bind(waiting, "a"), server.bind(waiting, "a"))) == {""}
        assert await server.bind(waiting, "a") == ""
        await settle()
        assert await server.bind(waiting, "a") == ""
        assert kube.calls.count("bind") == 1


async def test_two_servers_asked_at_once_bind_once(kube: FaultyKube) -> None:
    async with servers(kube, 2) as (one, other):
        waiting = await make_pod(kube, "p", NEED)
        await settle()
        errors = await asyncio.gather(one.bind(waiting, "a"), other.bind(waiting, "a"))
        assert set(errors) == {""}
    await check(kube)


async def test_a_second_node_for_a_pod_under_way_is_refused(kube: FaultyKube) -> None:
    await make_node(kube, "b", gpu(0))
    async with servers(kube) as (server,):
        waiting = await make_pod(kube, "p", NEED)
        errors = await asyncio.gather(server.bind(waiting, "a"), server.bind(waiting, "b"))
        assert errors[0] == ""
        assert "under way" in errors[1]
        assert "bound to node a" in await server.bind(waiting, "b")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a pod that is not there": ({"name": "none"}, "no such pod"),
    "another pod of that name": ({"uid": "other"}, "another pod of that name"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_what_cannot_be_bound_is_reported_and_nothing_is_claimed(kube: FaultyKube, case: str) -> None:
    changed, want = REFUSED[case]
    async with servers(kube) as (server,):
        waiting = await make_pod(kube, "p", NEED)
        assert want in await server.bind({"metadata": waiting["metadata"] | changed}, "a")
    assert await claims(kube) == []


async def test_a_pod_deleted_after_its_claim(kube: FaultyKube) -> None:
    async def delete() -> None:
        await kube.delete(PODS, "p", namespace="ns")

    async with servers(kube) as (server,):
        waiting = await make_pod(kube, "p", LARGE)
        await settle()
        kube.before_patch = [delete]
        assert "no such object" in await server.bind(waiting, "a")
        await settle()
        for name in ("q", "r"):
            assert await server.bind(await make_pod(kube, name, LARGE), "a") == "", "its place is free again"


async def test_a_pod_bound_by_others_meanwhile(kube: FaultyKube) -> None:
    async with servers(kube) as (server,):
        for name, where, want in (("p", "a", ""), ("q", "elsewhere", "bound to node elsewhere")):
            waiting = await make_pod(kube, name, NEED)
            await settle()
            uid = waiting["metadata"]["uid"]

            async def bind(name: str = name, uid: str = uid, where: str = where) -> None:
                await MemoryKube.bind(kube, name, "ns", uid=uid, node=where, annotations={})

            kube.before_patch = [bind]
            error = await server.bind(waiting, "a")
            assert (error == "") is (want == "")
            assert want in error


LOST: dict[str, tuple[str, Exception, bool]] = {
    "the claim is refused": ("patch", Unavailable("x", found="429", expected="success"), False),
    "the claim's answer is lost": ("patch", Unanswered("x", found="nothing", expected="an answer"), False),
    "the binding is refused for now": ("bind", Unavailable("x", found="429", expected="success"), False),
    "the binding is refused for good": ("bind", InvalidInput("x", found="422", expected="success"), False),
    "the binding conflicts, yet the pod is open": ("bind", Conflict("x", found="409", expected="success"), False),
    "the binding's answer is lost": ("bind", Unanswered("x", found="nothing", expected="an answer"), True),
}


@pytest.mark.parametrize("case", LOST)
async def test_what_a_failed_attempt_leaves(kube: FaultyKube, case: str) -> None:
    """A place stays kept where the pod may be bound, and no longer than until that is known."""
    call, error, kept = LOST[case]
    clock = Clock()
    async with servers(kube, 2, clock) as (one, other):
        first, *others = [await make_pod(kube, name, LARGE) for name in ("p", "q", "r")]
        await settle()
        kube.faults = {call: [error]}
        assert error.args[0] in await one.bind(first, "a")
        errors = [await one.bind(each, "a") for each in others]
        assert [each != "" for each in errors] == [False, kept]
        assert await one.bind(first, "a") == ("" if kept else await one.bind(first, "a"))
        await settle()
        for server in (one, other):
            await server.server.claimer.sweep()
        await settle()
        assert await claims(kube) == []
    await check(kube)
    bound = [name for name, where in (await nodes_of(kube)).items() if where]
    assert bound == (["p", "q"] if kept else ["q", "r"])


async def test_a_claim_that_was_written_long_ago_is_not_bound_any_more(kube: FaultyKube) -> None:
    clock = Clock()

    async def suspended() -> None:
        clock.now_s += 60

    async with servers(kube, 1, clock) as (server,):
        waiting = await make_pod(kube, "p", NEED)
        kube.before_patch = [suspended]
        assert "long ago" in await server.bind(waiting, "a")
        assert "bind" not in kube.calls
        assert await server.bind(waiting, "a") == ""


class Deleted(FaultyKube):
    """An API where somebody deletes a GPUNode as soon as a claim is in it, and perhaps the agent makes another."""

    def __init__(self, *, again: bool) -> None:
        super().__init__()
        self.again = again

    async def patch(self, *args: Any, **more: Any) -> Object:
        stored = await super().patch(*args, **more)
        if args[0] != GPU_NODES or not (stored["spec"] or {}).get("claims"):
            return stored
        await self.delete(GPU_NODES, "a")
        if self.again:
            body = {key: value for key, value in stored.items() if key != "status"} | {"spec": {}}
            await self.create(GPU_NODES, body | {"metadata": {"name": "a"}})
        await settle()
        return stored


@pytest.mark.parametrize("again", [False, True])
async def test_a_claim_whose_gpunode_was_deleted_is_not_bound(*, again: bool) -> None:
    kube = Deleted(again=again)
    await make_node(kube, "a", gpu(0), gpu(1))
    async with servers(kube) as (server,):
        waiting = await make_pod(kube, "p", NEED)
        await settle()
        assert "no claim for it in GPUNode a any more" in await server.bind(waiting, "a")
        assert "bind" not in kube.calls
        assert await nodes_of(kube) == {"p": ""}


async def test_a_defect_before_the_binding_is_sent_leaves_no_claim_and_a_traceback(kube: FaultyKube) -> None:
    times = iter([None, 1_700_000_000_000_000_000, 1_700_000_000_000_000_000])
    broken = ServerClocks(Clock(), lambda: next(times) + 0)  # type: ignore[operator]
    running = Server(ServerSettings(replica="r"), kube, broken)
    with capture_logs() as logs:
        async with running.following():
            await running.synced()
            server = Asked(running)
            assert "unexpected TypeError" in await server.bind(await make_pod(kube, "p", LARGE), "a")
            for name in ("q", "r"):
                assert await server.bind(await make_pod(kube, name, LARGE), "a") == "", "its place is free again"
    (defect,) = (each for each in logs if each["event"] == "defect" and each.get("pod") == "ns/p")
    assert isinstance(defect["exc_info"], TypeError)
    await check(kube)


async def test_a_server_that_ends_waits_for_bindings_under_way(kube: FaultyKube) -> None:
    async with servers(kube) as (server,):
        waiting = await make_pod(kube, "p", NEED)
        binding = asyncio.create_task(server.bind(waiting, "a"))
        await asyncio.sleep(0)
    assert await binding == ""
    assert await nodes_of(kube) == {"p": "a"}


@pytest.mark.parametrize("seed", range(12))
def test_replicas_under_trouble_grant_nothing_twice(seed: int) -> None:
    """Three servers; watches break, answers get lost, history is compacted, servers are dropped in the middle."""
    virtualtime.run(_under_trouble(seed))


async def _under_trouble(seed: int) -> None:
    rng, kube, clock = random.Random(seed), MemoryKube(), Clock()
    names = [f"n{index}" for index in range(3)]
    for index, name in enumerate(names):
        await make_node(kube, name, gpu(0, ("A100-40GB", "H100-80GB", "T4")[index]), gpu(1, "A100-40GB"))
    await kube.create(NODES, node("plain"))
    for index in range(30):
        limits = {"tessera.dev/gpu-memory": rng.choice((3, 8, 12, 30))}
        grade = {"tessera.dev/isolation": rng.choice(("hardware", "driver", "none"))}
        await make_pod(kube, f"p{index}", limits, annotations=grade)
    for _ in range(4):
        async with servers(kube, 3, clock) as running:
            await _turmoil(rng, kube, running, [*names, "plain"])
        await check(kube)
        clock.now_s += 150
    async with servers(kube, 1, clock) as (server,):
        clock.now_s += 150
        await server.server.claimer.sweep()
        await settle()
        assert [await claims(kube, name) for name in names] == [[], [], []]
        assert not server.server.view.ledger.impossible_shares
        left = [each for each in (await kube.list(PODS)).objects if not each["spec"].get("nodeName")]
        errors = [await server.schedule(each, *names) for each in left]
        assert set(errors) <= {"", "nowhere"}, "after the trouble a pod is bound, or there is no room"
        assert [await server.fitting(each, *names) for each, error in zip(left, errors, strict=True) if error] == [
            [] for error in errors if error
        ]
    await check(kube)


async def _turmoil(rng: random.Random, kube: MemoryKube, running: list[Asked], names: list[str]) -> None:
    async def one(each: Object) -> None:
        for _ in range(rng.randrange(5)):
            await asyncio.sleep(0)
        await rng.choice(running).schedule(each, *names)

    pods = [each for each in (await kube.list(PODS)).objects if not each["spec"].get("nodeName")]
    binding = [asyncio.create_task(one(each)) for each in pods]
    for _ in range(20):
        await settle(rng.randrange(4))
        await rng.choice(TROUBLES)(rng, kube)
    if rng.random() < 0.5:
        for each in binding:
            each.cancel()
    await asyncio.gather(*binding, return_exceptions=True)


async def _broken(_: random.Random, kube: MemoryKube) -> None:
    kube.break_watches()


async def _compacted(_: random.Random, kube: MemoryKube) -> None:
    kube.forget_history()
    kube.break_watches()


async def _unanswered(_: random.Random, kube: MemoryKube) -> None:
    kube.lose_answers(1)


async def _deleted(rng: random.Random, kube: MemoryKube) -> None:
    bound = [name for name, where in (await nodes_of(kube)).items() if where]
    if bound:
        with contextlib.suppress(Unanswered):
            await kube.delete(PODS, rng.choice(bound), namespace="ns")


async def _stopped(_: random.Random, kube: MemoryKube) -> None:
    kube.stop()
    await settle(3)
    kube.start()


async def _nothing(_: random.Random, __: MemoryKube) -> None: ...


TROUBLES = (_broken, _compacted, _unanswered, _deleted, _stopped, _nothing, _nothing, _nothing)


async def test_annotations_name_the_pod_that_was_bound(kube: FaultyKube) -> None:
    async with servers(kube) as (server,):
        assert await server.bind(await make_pod(kube, "p", NEED), "a") == ""
    assert "tessera.dev/assignment" in annotations_of(await kube.get(PODS, "p", "ns") or {})


class Slow(MemoryKube):
    """An API whose answer to the next Binding comes when a test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.done, self.answer = asyncio.Event(), asyncio.Event()

    async def bind(self, *args: Any, **more: Any) -> None:
        await super().bind(*args, **more)
        if not self.done.is_set():
            self.done.set()
            await self.answer.wait()


@pytest.mark.parametrize("named", [True, False], ids=["with its UID", "without its UID"])
async def test_a_pod_made_anew_under_its_name_does_not_take_the_answer_of_the_former_one(*, named: bool) -> None:
    """As a StatefulSet makes them, while the answer to the first one's Binding is under way."""
    kube = Slow()
    await make_node(kube, "a", gpu(0))
    async with servers(kube, limits=ServerLimits(request_s=2)) as (server,):
        first = await make_pod(kube, "web-0", NEED)
        await settle()
        one = asyncio.create_task(server.bind(first, "a"))
        await kube.done.wait()
        await kube.delete(PODS, "web-0", namespace="ns")
        second = await make_pod(kube, "web-0", NEED)
        assert second["metadata"]["uid"] != first["metadata"]["uid"]
        await settle()
        requested = second if named else {"metadata": second["metadata"] | {"uid": ""}}
        assert await server.bind(requested, "a") == ""
        assert await nodes_of(kube) == {"web-0": "a"}
        kube.answer.set()
        await one
        await settle()
        assert [each.id for each in server.server.view.ledger.pods_on("a")] == [second["metadata"]["uid"]]
    await check(kube)
