"""Binding: claims, replicas beside each other, lost answers, conflicts, old claims; the API alone is the judge."""

import asyncio
import contextlib
import itertools
import random
from typing import Any

import pytest
from structlog.testing import capture_logs

from builders.kubeobjects import gpu, node, pod, share
from builders.signed import AGENT, signed
from harness import virtualtime
from harness.servers import FULL, NEED, Asked, Clock, check, hold, make_node, make_pod, servers, settle
from tessera.api.tessera.gpunodes import claims_field
from tessera.clients.kube import GPU_NODES, NODES, PODS, MemoryKube, Object, Unanswered, annotations_of
from tessera.core.cluster.gpunodestate import Claim
from tessera.core.cluster.snapshot import Share
from tessera.core.workload.need import Need, PodKey
from tessera.errors import Conflict, InvalidInput, Unavailable
from tessera.server.settings import Limits

pytestmark = pytest.mark.anyio

LARGE = {"tessera.dev/gpu-memory": 30}
"""One of these is all that a GPU holds."""


class FaultyKube(MemoryKube):
    """An API that answers the next calls of one kind with errors, or lets others act before them."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: dict[str, list[Exception]] = {}
        self.before_patch: list[Any] = []
        self.calls: list[str] = []

    def _fault(self, call: str) -> None:
        self.calls.append(call)
        if self.faults.get(call):
            raise self.faults[call].pop(0)

    async def get(self, *args: Any, **more: Any) -> Object | None:
        self._fault("get")
        return await super().get(*args, **more)

    async def patch(self, *args: Any, **more: Any) -> Object:
        if self.before_patch:
            await self.before_patch.pop(0)()
        self._fault("patch")
        return await super().patch(*args, **more)

    async def bind(self, *args: Any, **more: Any) -> None:
        self._fault("bind")
        await super().bind(*args, **more)


@pytest.fixture
async def kube() -> FaultyKube:
    """Return a cluster with one node of two A100."""
    made = FaultyKube()
    await make_node(made, "a", gpu(0), gpu(1))
    return made


async def claims(kube: MemoryKube, name: str = "a") -> list[str]:
    found = await kube.get(GPU_NODES, name)
    assert found is not None
    return [each["pod"] for each in found["spec"]["claims"]]


async def nodes_of(kube: MemoryKube) -> dict[str, str]:
    pods = (await kube.list(PODS)).objects
    return {each["metadata"]["name"]: each["spec"].get("nodeName", "") for each in pods}


async def test_a_settled_claim_goes_with_the_next_write_or_the_sweep(kube: FaultyKube) -> None:
    async with servers(kube) as (server,):
        for name in ("p", "q"):
            assert await server.bind(await make_pod(kube, name, NEED), "a") == ""
            await settle()
        assert await claims(kube) == ["ns/q"]
        await server.server.claimer.sweep()
        assert await claims(kube) == []
        assert server.server.binder.counts == {"bound": 2}


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
async def test_what_cannot_be_bound_is_told_and_nothing_is_claimed(kube: FaultyKube, case: str) -> None:
    changed, want = REFUSED[case]
    async with servers(kube) as (server,):
        waiting = await make_pod(kube, "p", NEED)
        assert want in await server.bind({"metadata": waiting["metadata"] | changed}, "a")
    assert await claims(kube) == []


async def test_a_node_that_vanished_after_filter(kube: FaultyKube) -> None:
    async with servers(kube) as (server,):
        waiting = await make_pod(kube, "p", NEED)
        assert await server.fitting(waiting, "a") == ["a"]
        await kube.delete(GPU_NODES, "a")
        await kube.delete(NODES, "a")
        assert "no such node with GPUs" in await server.bind(waiting, "a")
        assert "no such node with GPUs" in await server.bind(waiting, "b")
    assert await nodes_of(kube) == {"p": ""}


async def test_an_object_that_cannot_be_read_any_more(kube: FaultyKube) -> None:
    async with servers(kube) as (server,):
        waiting = await make_pod(kube, "p", NEED)
        await kube.patch(GPU_NODES, "a", {"spec": {"claims": 7}})
        await settle()
        before = kube.calls.count("get")
        error = await server.bind(waiting, "a")
        assert "GPUNode 'a'" in error
        assert "spec.claims" in error
        assert kube.calls.count("get") == before + 1, "reading it again helps nobody"
        await kube.patch(GPU_NODES, "a", {"spec": {"claims": []}})
        await settle()
        assert await server.bind(waiting, "a") == ""


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
        assert "again and again" in await server.bind(await make_pod(kube, "q", NEED), "a")


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
        async with servers(kube, limits=Limits(gather_s=0.1)) as (server,):
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
        kube.faults = {"patch": [Unanswered("x", found="nothing", wanted="an answer") for _ in range(2)]}
        errors = await asyncio.gather(*(server.bind(each, "a") for each in pods))
        assert sum(error == "" for error in errors) <= 2
        await settle()
        assert [await server.bind(each, "a") == "" for each in pods].count(True) == 2
    await check(kube)


async def test_a_server_that_ends_at_once_tells_who_waits(kube: FaultyKube) -> None:
    gate = asyncio.Event()
    async with servers(kube, limits=Limits(stop_s=0.01)) as (server,):
        pods = [await make_pod(kube, f"p{index}", LARGE) for index in range(3)]
        await settle()
        kube.before_patch = [gate.wait]
        binding = [asyncio.create_task(server.bind(each, "a")) for each in pods]
        await settle()
        ended = server.server.binder
    assert all("a server that ends" in each for each in await asyncio.gather(*binding))
    assert ended.counts == {"unanswered": 3}
    assert await claims(kube) == []


async def test_a_defect_while_claims_are_written_is_told_to_all_that_wait_and_logged(kube: FaultyKube) -> None:
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


async def test_a_pod_that_breaks_the_choice_is_told_so_and_others_are_bound(kube: FaultyKube) -> None:
    async with servers(kube) as (server,):
        ledger = server.server.view.ledger
        choose = ledger.choose

        def broken(need: Need, node: str) -> tuple[Share, ...] | str:
            return ("no number", 1 // 0)[0] if need.asks[0].memory_mib == 2048 else choose(need, node)

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


LOST: dict[str, tuple[str, Exception, bool]] = {
    "the claim is refused": ("patch", Unavailable("x", found="429", wanted="success"), False),
    "the claim's answer is lost": ("patch", Unanswered("x", found="nothing", wanted="an answer"), False),
    "the binding is refused for now": ("bind", Unavailable("x", found="429", wanted="success"), False),
    "the binding is refused for good": ("bind", InvalidInput("x", found="422", wanted="success"), False),
    "the binding conflicts, yet the pod is open": ("bind", Conflict("x", found="409", wanted="success"), False),
    "the binding's answer is lost": ("bind", Unanswered("x", found="nothing", wanted="an answer"), True),
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


@pytest.mark.parametrize("path", ["/filter", "/choose"])
async def test_what_is_claimed_for_a_pod_is_not_in_its_own_way(kube: FaultyKube, path: str) -> None:
    """After a lost answer a pod is scheduled again: on a full node it is given what was claimed for it."""
    await make_node(kube, "empty", gpu(0))
    async with servers(kube, 2) as running:
        first, *others = [await make_pod(kube, name, LARGE) for name in ("p", "q", "r")]
        await settle()
        kube.faults = {"bind": [Unanswered("x", found="nothing", wanted="an answer")]}
        assert await running[0].bind(first, "a") != ""
        assert await running[0].bind(others[0], "a") == ""
        await settle()
        for server in running:
            assert await server.fitting(others[1], "a", path=path) == []
            assert await server.fitting(first, "a", "nowhere", path=path) == ["a"]
            assert "a" in await server.fitting(first, "empty", "a", path=path)
            assert server.server.view.ledger.conflicts == ()
        assert await running[1].schedule(first, "a") == ""
    await check(kube)


async def test_what_another_server_claimed_and_gave_up_is_free_after_the_next_look(kube: FaultyKube) -> None:
    """The claim vanishes while its pod is open: that it was given up is known from the pods as they are now."""
    clock = Clock()
    async with servers(kube, 2, clock) as (one, other):
        waiting = await make_pod(kube, "p", LARGE)
        both = await make_pod(kube, "q", LARGE | {"tessera.dev/gpu-count": 2})
        await settle()
        kube.lose_answers(1)
        assert "lost answer" in await one.bind(waiting, "a")
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
        gone = Claim(uid="never", pod=PodKey("ns/never"), shares=(), attempt="dead/2")
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
        kube.faults = {"get": [Unavailable("x", found="429", wanted="success")]}
        await server.server.claimer.sweep()
        assert len(await claims(kube)) == 2, "what could not be looked into is kept"
        await server.server.claimer.sweep()
        assert await claims(kube) == []
        assert await server.bind(waiting[2], "a") == ""


async def test_a_pod_that_was_listed_before_it_was_deleted_does_not_come_back(kube: FaultyKube) -> None:
    """The list that verifies a node is overtaken by the watch: nobody would tell again that a pod is gone."""
    async with servers(kube) as (server,):
        await hold(kube, "old", FULL, share(0, 40000), node="a")
        waiting = await make_pod(kube, "p", LARGE | {"tessera.dev/gpu-count": 2})
        await settle()
        listed, each = await kube.list(PODS), await kube.get(GPU_NODES, "a")
        await kube.delete(PODS, "old", namespace="ns")
        await settle()
        assert each is not None
        server.server.view.verified("a", each, listed)
        assert await server.fitting(waiting, "a") == ["a"]


async def test_a_pod_that_was_listed_before_all_pods_were_does_not_come_back(kube: FaultyKube) -> None:
    """The same where the watch was down: the list of all pods, made anew, does not have the pod any more."""
    async with servers(kube) as (server,):
        view = server.server.view
    await hold(kube, "old", FULL, share(0, 40000), node="a")
    listed, each = await kube.list(PODS), await kube.get(GPU_NODES, "a")
    await kube.delete(PODS, "old", namespace="ns")
    view.listed(await kube.list(PODS))
    assert each is not None
    view.verified("a", each, listed)
    assert view.ledger.pods_on("a") == ()


async def test_a_pod_that_was_looked_up_and_ended_before_the_watch_was_back_is_let_go(kube: FaultyKube) -> None:
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
        async with asyncio.timeout(5):
            while "ns/old" in held:
                await asyncio.sleep(0.05)
                held = {holder.key for holder in server.server.view.ledger.pods_on("a")}
        assert held == {"ns/new"}


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
        assert not server.server.view.ledger.conflicts
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
    async with servers(kube, limits=Limits(request_s=2)) as (server,):
        first = await make_pod(kube, "web-0", NEED)
        await settle()
        one = asyncio.create_task(server.bind(first, "a"))
        await kube.done.wait()
        await kube.delete(PODS, "web-0", namespace="ns")
        second = await make_pod(kube, "web-0", NEED)
        assert second["metadata"]["uid"] != first["metadata"]["uid"]
        await settle()
        asked = second if named else {"metadata": second["metadata"] | {"uid": ""}}
        assert await server.bind(asked, "a") == ""
        assert await nodes_of(kube) == {"web-0": "a"}
        kube.answer.set()
        await one
        await settle()
        assert [each.uid for each in server.server.view.ledger.pods_on("a")] == [second["metadata"]["uid"]]
    await check(kube)
