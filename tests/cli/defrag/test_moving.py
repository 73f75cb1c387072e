"""Moves are made one after the other: each pod is replaced before the next goes; and what stops them."""

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from builders.evictable import NEED, budget, owned
from builders.kubeobjects import Object, gpu, gpunode, node, pod, share
from harness import virtualtime
from tessera.cli.defrag import execute
from tessera.cli.defrag.moving import TAINT, MoveRunner, observe
from tessera.clients.kube import DISRUPTION_BUDGETS, GPU_NODES, NODES, PODS, Kind, Kube, MemoryKube, name_of, uid_of
from tessera.core.gpu.sharing import Mode
from tessera.core.packing.defrag import PodToPlace, propose
from tessera.errors import Conflict, TesseraError, Unavailable, Unsupported

UNITS = {"tessera.dev/gpu-memory": "160"}
WHOLE = {"tessera.dev/isolation": "hardware"}


def big(name: str = "big", place: str | None = None) -> Object:
    return pod(name, {"tessera.dev/gpu-memory": 40}, node=place, annotations=WHOLE)


async def filled(*objects: Object) -> MemoryKube:
    """A node of three GPUs, two of them held by a half, and what comes on top."""
    kube = MemoryKube()
    state = gpunode("a", gpu(0), gpu(1), gpu(2))
    await kube.create(NODES, node("a", UNITS))
    await kube.create(GPU_NODES, {key: value for key, value in state.items() if key != "status"})
    await kube.patch(GPU_NODES, "a", {"status": state["status"]}, subresource="status")
    for index in range(3):
        await kube.create(PODS, owned(f"web-{index}", share(index, 10240, Mode.MPS)))
    for each in objects:
        kind = DISRUPTION_BUDGETS if each["kind"] == "PodDisruptionBudget" else PODS
        await kube.create(kind, each)
    return kube


React = Callable[[MemoryKube, int], Object | None]
"""What a controller makes after so many evictions."""


class Controlled:
    """Pods are recreated, and the pending pods bound, as controllers and schedulers do."""

    def __init__(self, kube: MemoryKube, react: React, *, binds: bool = True) -> None:
        self.kube = kube
        self.react = react
        self.binds = binds

    async def run(self) -> None:
        gone = 0
        async for event in self.kube.watch(PODS, (await self.kube.list(PODS)).resource_version):
            if event.gone:
                gone += 1
                made = self.react(self.kube, gone)
                if made is not None:
                    await asyncio.sleep(3)
                    await self.kube.create(PODS, made)
            if self.binds:
                await bind(self.kube)


async def bind(kube: MemoryKube) -> None:
    """Bind the pods that wait where they fit without any move."""
    cluster, leaves = await observe(kube)
    for each in cluster.snapshot.pending:
        found = propose(cluster, [PodToPlace(pod=each.key, need=each.need)], leaves, most=0)
        for placed in found.placed:
            namespace, _, name = each.key.partition("/")
            uid = next(pod.uid for pod in cluster.pods if pod.pod.key == each.key)
            await kube.bind(name, namespace, uid=uid, node=placed.place.node, annotations={})


def replaced(kube: MemoryKube, gone: int) -> Object:
    del kube
    return owned(f"new-{gone}", share(2, 10240, Mode.MPS))


async def made(
    kube: MemoryKube, react: React, *names: str, most: int = 9, binds: bool = True
) -> tuple[MoveRunner, list[str]]:
    told: list[str] = []
    cluster, _ = await observe(kube)
    needs = {each.key: each.need for each in cluster.snapshot.pending}
    targets = [PodToPlace(pod=key, need=need) for key, need in needs.items() if key in names]
    mover = MoveRunner(kube, targets, 60)
    task = asyncio.create_task(Controlled(kube, react, binds=binds).run())
    await asyncio.sleep(0)
    try:
        await mover.make(most, lambda done, what: told.append(f"{done} {what}"))
    except TesseraError as error:
        told.append(str(error))
        error.add_note(" ".join(mover.evicted))
        raise
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    return mover, told


def test_pods_leave_one_after_the_other_and_those_that_wait_are_bound() -> None:
    async def act() -> None:
        kube = await filled(big("big-0"), big("big-1"))
        mover, told = await made(kube, replaced, "ns/big-0", "ns/big-1")
        assert mover.evicted == ["ns/web-0", "ns/web-1"]
        assert told == [
            "0 evicting ns/web-0 from a",
            "0 waiting for the replacement of ns/web-0",
            "1 ns/web-0 is replaced",
            "1 evicting ns/web-1 from a",
            "1 waiting for the replacement of ns/web-1",
            "2 ns/web-1 is replaced",
            "2 waiting until the pods are bound",
        ]
        pods = (await kube.list(PODS)).objects
        assert all(each["spec"].get("nodeName") for each in pods)

    virtualtime.run(act())


def test_nothing_is_evicted_where_everything_fits() -> None:
    async def act() -> None:
        kube = await filled(pod("small", NEED, node=None))
        mover, told = await made(kube, replaced, "ns/small", binds=False)
        assert (mover.evicted, told) == ([], ["0 waiting until the pods are bound"])

    with pytest.raises(Unavailable, match="pending after 60 s although its place is free"):
        virtualtime.run(act())


def test_a_replacement_that_takes_the_place_stops_it() -> None:
    async def act() -> None:
        kube = await filled(big())
        await made(kube, lambda _, gone: owned(f"new-{gone}", share(0, 10240, Mode.MPS)), "ns/big", most=1)

    with pytest.raises(Conflict, match=r"cluster after 1 moves: no room for ns/big: on a, ns/new-1") as caught:
        virtualtime.run(act())
    assert caught.value.__notes__ == ["ns/web-0"]


# Keyed by a sentence: what the controller makes; desired are words of the error.
LATE: dict[str, tuple[React, str]] = {
    "no replacement comes": (lambda _, __: None, "no replacement yet"),
    "the replacement waits": (lambda _, __: owned("new", place=None), "its replacement new is not ready yet"),
    "the replacement is not ready": (
        lambda _, __: owned(
            "new",
            share(2, 10240, Mode.MPS),
            status={"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]},
        ),
        "its replacement new is not ready yet",
    ),
}


@pytest.mark.parametrize(("react", "want"), LATE.values(), ids=LATE)
def test_a_deadline_that_passes_stops_it(react: React, want: str) -> None:
    async def act() -> None:
        await made(await filled(big()), react, "ns/big")

    with pytest.raises(Unavailable, match=want) as caught:
        virtualtime.run(act())
    assert caught.value.__notes__ == ["ns/web-0"]


class Stubborn(MemoryKube):
    """A budget that changes after the observe, a lost answer, a pod that is another by now, a pod that ends slowly."""

    refusals = 0
    unanswered = 0
    other = False
    evicted = ""
    """UID for which the last eviction was requested."""

    async def evict(self, name: str, namespace: str, *, uid: str = "") -> None:
        self.evicted = uid
        if self.refusals:
            self.refusals -= 1
            raise Unavailable("eviction", found="a budget", expected="another")
        await super().evict(name, namespace, uid=uid)

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Object | None:
        found = await super().get(kind, name, namespace)
        return {**found, "metadata": {**found["metadata"], "uid": "another"}} if self.other and found else found


async def stubborn(**faults: int) -> Stubborn:
    kube = Stubborn()
    other = await filled(big())
    for kind in (NODES, PODS):
        for each in (await other.list(kind)).objects:
            await kube.create(kind, each)
    state = (await other.list(GPU_NODES)).objects[0]
    await kube.create(GPU_NODES, state)
    await kube.patch(GPU_NODES, "a", {"status": state["status"]}, subresource="status")
    for name, value in faults.items():
        setattr(kube, name, value)
    return kube


def test_a_budget_that_refuses_for_a_while_is_waited_for() -> None:
    async def act() -> list[str]:
        kube = await stubborn(refusals=3)
        pods = {name_of(each): uid_of(each) for each in (await kube.list(PODS)).objects}
        mover, _ = await made(kube, replaced, "ns/big")
        assert kube.evicted == pods["ns", "web-0"], "no other of its name"
        return [*mover.evicted]

    assert virtualtime.run(act()) == ["ns/web-0"]


def test_an_eviction_whose_answer_was_lost_is_one() -> None:
    async def act() -> list[str]:
        kube = await filled(big())
        kube.lose_answers(1)
        mover, _ = await made(kube, replaced, "ns/big", binds=False)
        return [*mover.evicted]

    with pytest.raises(Unavailable, match="still pending") as caught:
        virtualtime.run(act())
    assert caught.value.__notes__ == ["ns/web-0"]


def test_a_budget_that_refuses_for_too_long_stops_it() -> None:
    async def act() -> None:
        await made(await stubborn(refusals=99), replaced, "ns/big")

    with pytest.raises(Unavailable, match="a budget") as caught:
        virtualtime.run(act())
    assert caught.value.__notes__ == [""]


def test_a_pod_that_is_another_by_now_is_not_evicted() -> None:
    async def act() -> None:
        await made(await stubborn(other=True), replaced, "ns/big")

    with pytest.raises(Conflict, match="it was deleted or replaced"):
        virtualtime.run(act())


def test_a_budget_keeps_pods_where_they_are() -> None:
    async def act() -> None:
        await made(await filled(big(), budget(0)), replaced, "ns/big")

    with pytest.raises(Conflict, match="PodDisruptionBudget web allows no disruption now"):
        virtualtime.run(act())


def test_a_cluster_without_the_kind_gpunode_is_looked_at_too() -> None:
    async def act() -> int:
        kube = await filled()
        kube.uninstall(GPU_NODES)
        return len((await observe(kube))[0].nodes)

    assert virtualtime.run(act()) == 1


def test_a_cluster_without_budgets_at_all_is_an_error() -> None:
    async def act() -> None:
        kube = await filled()
        kube.uninstall(DISRUPTION_BUDGETS)
        await observe(kube)

    with pytest.raises(TesseraError, match="poddisruptionbudgets"):
        virtualtime.run(act())


async def carried_out(*names: str, output: str, most: int = 9, objects: tuple[Object, ...] = ()) -> None:
    kube = await filled(*objects)
    task = asyncio.create_task(Controlled(kube, replaced).run())
    await asyncio.sleep(0)
    given = {"filename": (), "pod": names, "resource": (), "priority": None}
    try:
        await execute(kube, given | {"max_moves": most, "output": output, "deadline_s": 60.0})
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def test_the_command_shows_the_moves_first_and_tells_each(capsys: pytest.CaptureFixture[str]) -> None:
    virtualtime.run(carried_out("ns/big", output="table", objects=(big(),)))
    told = capsys.readouterr()
    assert "1 move, 1 pod placed, 0 pending; fewer moves are not enough" in told.out
    assert told.err.splitlines() == [
        "evicting ns/web-0 from a",
        "waiting for the replacement of ns/web-0",
        "ns/web-0 is replaced",
        "waiting until the pods are bound",
        "1 of 1 moves made",
    ]


def test_the_command_tells_what_was_evicted_and_that_something_fits_nowhere(
    capsys: pytest.CaptureFixture[str],
) -> None:
    huge = pod("huge", {"tessera.dev/gpu-memory": 99}, node=None)
    with pytest.raises(Unsupported, match="pods ns/huge: it fits no node, even an empty one"):
        virtualtime.run(carried_out("ns/big", "ns/huge", output="json", objects=(big(), huge)))
    told = json.loads(capsys.readouterr().out)
    assert (told["executed"], told["evicted"]) == (True, ["ns/web-0"])


class Watched(MemoryKube):
    """Notes the taints of node a at each eviction, and may refuse changes of nodes."""

    conflicts = 0

    def __init__(self) -> None:
        super().__init__()
        self.taints: list[Any] = []

    async def evict(self, name: str, namespace: str, *, uid: str = "") -> None:
        self.taints.append(await taints_of(self, "a"))
        await super().evict(name, namespace, uid=uid)

    async def patch(self, kind: Kind, name: str, body: Object, **more: Any) -> Object:
        if kind == NODES and self.conflicts:
            self.conflicts -= 1
            raise Conflict("node", found="another", expected="the same")
        return await super().patch(kind, name, body, **more)


OTHER = {"key": "other", "effect": "PreferNoSchedule"}


async def taints_of(kube: Kube, name: str) -> Any:
    found = await kube.get(NODES, name)
    assert found is not None
    return found["spec"].get("taints")


async def two_nodes(conflicts: int) -> Watched:
    kube = Watched()
    for name in "ab":
        state = gpunode(name, gpu(0, node=name))
        await kube.create(NODES, node(name, UNITS) | {"spec": {"taints": [OTHER]}})
        await kube.create(GPU_NODES, {key: value for key, value in state.items() if key != "status"})
        await kube.patch(GPU_NODES, name, {"status": state["status"]}, subresource="status")
        await kube.create(PODS, owned(f"web-{name}", share(0, 10240, Mode.MPS), place=name))
    await kube.create(PODS, big())
    kube.conflicts = conflicts
    return kube


def test_the_node_that_a_pod_leaves_takes_no_new_pods_meanwhile() -> None:
    async def act() -> None:
        kube = await two_nodes(conflicts=2)
        await made(kube, lambda _, gone: owned(f"new-{gone}", share(0, 10240, Mode.MPS), place="b"), "ns/big")
        assert kube.taints == [[OTHER, TAINT]]
        assert await taints_of(kube, "a") == [OTHER]

    virtualtime.run(act())


def test_the_taint_is_removed_when_a_deadline_passes() -> None:
    async def act() -> None:
        kube = await two_nodes(conflicts=0)
        with pytest.raises(Unavailable, match="no replacement yet"):
            await made(kube, lambda _, __: None, "ns/big", binds=False)
        assert await taints_of(kube, "a") == [OTHER]

    virtualtime.run(act())


def test_a_node_that_changes_without_end_stops_it_before_anything_is_evicted() -> None:
    async def act() -> None:
        await made(await two_nodes(conflicts=99), replaced, "ns/big")

    with pytest.raises(Conflict, match="conflict on each try") as caught:
        virtualtime.run(act())
    assert caught.value.__notes__ == [""]
