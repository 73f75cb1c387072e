"""Law: servers that bind at once, over an API that fails in every way it can, never grant beyond what there is.

What is allocated is judged by `judges.allocated`, from objects of the API alone.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builders.kubeobjects import gpu, pod, share
from harness import virtualtime
from harness.servers import Asked, make_node, make_pod, servers, settle
from judges.allocated import faults, shares_of, unsettled
from tessera.api.tessera.pods.assignments import write_shares
from tessera.clients.kube import EVERYTHING, GPU_NODES, PODS, Kind, Listing, MemoryKube, Object, Selection, Unanswered
from tessera.core.gpu.sharing import Mode
from tessera.errors import Unavailable

MODELS = ("A100-40GB", "H100-80GB", "T4")
MEMORY, COMPUTE, COUNT = "tessera.dev/gpu-memory", "tessera.dev/gpu-compute", "tessera.dev/gpu-count"
SHAPES = (
    ({MEMORY: 4}, "hardware"),
    ({MEMORY: 12}, "driver"),
    ({MEMORY: 20, COMPUTE: 40}, "none"),
    ({MEMORY: 9}, "none"),
    ({MEMORY: 39}, "hardware"),
    ({MEMORY: 6, COUNT: 2}, "none"),
    ({"aliyun.com/gpu-mem": 7}, "none"),
)


class Step(NamedTuple):
    """Something that happens, with numbers that say to whom and when."""

    what: str
    first: int
    second: int


class Plan(NamedTuple):
    """A fleet, pods, what happens to them in two lives of the servers, and how late answers of the API come."""

    nodes: list[list[str]]
    pods: list[int]
    lives: list[list[Step]]
    late: list[int]


NEVER = pod("never", {MEMORY: 5000}, node=None)
WITHIN_S = 65.0
"""Three sweeps: of the server that gives a claim up, again where another wrote meanwhile, and of those that look on."""
WHATS = (
    ("schedule",) * 6
    + ("settle",) * 3
    + ("wait",) * 2
    + ("break", "compact", "lose", "delete", "finish", "outage", "sweep", "report")
)
steps = st.lists(
    st.builds(Step, st.sampled_from(WHATS), st.integers(0, 40), st.integers(0, 40)), min_size=5, max_size=40
)
plans = st.builds(
    Plan,
    st.lists(st.lists(st.sampled_from(MODELS), min_size=1, max_size=3), min_size=1, max_size=3),
    st.lists(st.integers(0, len(SHAPES) - 1), min_size=4, max_size=20),
    st.lists(steps, min_size=1, max_size=2),
    st.lists(st.integers(0, 9), min_size=1, max_size=7),
)


class LateKube(MemoryKube):
    """An API whose answers arrive late, so that watches and other answers overtake them."""

    def __init__(self, late: Sequence[int]) -> None:
        super().__init__()
        self._late = itertools.cycle(late)

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Object | None:
        found = await super().get(kind, name, namespace)
        await settle(next(self._late))
        return found

    async def list(self, kind: Kind, selection: Selection = EVERYTHING) -> Listing:
        found = await super().list(kind, selection)
        await settle(next(self._late))
        return found


class Scene:
    """A plan as it is carried out."""

    def __init__(self, plan: Plan) -> None:
        self.kube = LateKube(plan.late)
        self.plan = plan
        self.pods: list[Object] = []
        self.names = [f"n{number}" for number in range(len(plan.nodes))]

    async def make(self) -> None:
        for name, models in zip(self.names, self.plan.nodes, strict=True):
            await make_node(self.kube, name, *(gpu(index, model) for index, model in enumerate(models)))
        for number, shape in enumerate(self.plan.pods):
            limits, grade = SHAPES[shape]
            self.pods.append(
                await make_pod(self.kube, f"p{number}", limits, annotations={"tessera.dev/isolation": grade})
            )

    async def live(self, life: Sequence[Step], running: list[Asked]) -> None:
        """Let the steps happen while pods are bound; at the end servers are gone in the middle of what they do."""
        binding = []
        for step in life:
            if step.what == "schedule":
                each, server = self.pods[step.first % len(self.pods)], running[step.second % len(running)]
                binding.append(asyncio.create_task(server.schedule(each, *self.names)))
            else:
                await self.happen(step, running)
            await self.check()
        for task in binding[::2]:
            task.cancel()
        await asyncio.gather(*binding, return_exceptions=True)

    async def happen(self, step: Step, running: list[Asked]) -> None:
        """Let one trouble happen, or time pass."""
        name = f"p{step.first % len(self.pods)}"
        match step.what:
            case "settle":
                await settle(step.first % 12)
            case "wait":
                await asyncio.sleep((0.1, 0.5, 3, 21)[step.first % 4])
            case "break":
                self.kube.break_watches()
            case "compact":
                self.kube.forget_history()
                self.kube.break_watches()
            case "lose":
                self.kube.lose_answers(1 + step.first % 3)
            case "delete":
                with contextlib.suppress(Unanswered):
                    await self.kube.delete(PODS, name, namespace="ns")
            case "finish":
                await self.finish(name)
            case "outage":
                self.kube.stop()
                await settle(step.first % 6)
                self.kube.start()
            case "sweep":
                with contextlib.suppress(Unavailable):
                    await running[step.second % len(running)].server.claimer.sweep()
            case _:
                await self.report(self.names[step.first % len(self.names)], step.second)

    async def finish(self, name: str) -> None:
        """Let a pod that runs end."""
        found = await self.kube.get(PODS, name, "ns")
        if found is not None and found["spec"].get("nodeName"):
            with contextlib.suppress(Unanswered):
                await self.kube.patch(
                    PODS, name, {"status": {"phase": "Succeeded"}}, namespace="ns", subresource="status"
                )

    async def report(self, name: str, used: int) -> None:
        """Let an agent write the object in which claims stand."""
        with contextlib.suppress(Unanswered):
            await self.kube.patch(GPU_NODES, name, {"status": {"driver": f"580.{used}"}}, subresource="status")

    async def check(self) -> None:
        """Look at the API alone."""
        with contextlib.suppress(Unavailable):
            gpu_nodes, pods = (await self.kube.list(GPU_NODES)).objects, (await self.kube.list(PODS)).objects
            assert not faults(gpu_nodes, pods)

    async def run(self) -> None:
        """Carry out the plan; the servers of the last life live on, and another comes."""
        clock = asyncio.get_running_loop().time
        await self.make()
        for life in self.plan.lives[:-1]:
            async with servers(self.kube, 2, clock) as running:
                await self.live(life, running)
            await self.check()
        async with servers(self.kube, 2, clock) as lasting:
            await self.live(self.plan.lives[-1], lasting)
            self.kube.lose_answers(0)
            async with servers(self.kube, 1, clock) as later:
                await self.recovered([*lasting, *later])

    async def recovered(self, running: list[Asked]) -> None:
        """Within seconds servers keep nothing but what the API has; within minutes no claim is left."""
        await asyncio.sleep(WITHIN_S)
        assert await self.known(running) == [await self.held(claimed=True)] * len(running)
        await asyncio.sleep(150)
        assert not unsettled((await self.kube.list(GPU_NODES)).objects)
        assert await self.known(running) == [await self.held()] * len(running)
        assert [each.server.view.ledger.impossible_shares for each in running] == [()] * len(running)

    async def known(self, running: list[Asked]) -> list[list[tuple[str, str]]]:
        """Return for each server the pods for which it keeps something, with their nodes."""
        for each in running:
            assert await each.fitting(NEVER, *self.names) == [], "what a question keeps for a moment is gone with this"
        ledgers = [each.server.view.ledger for each in running]
        return [
            sorted({(node, holder.key.partition("/")[2]) for node in self.names for holder in ledger.pods_on(node)})
            for ledger in ledgers
        ]

    async def held(self, *, claimed: bool = False) -> list[tuple[str, str]]:
        """Return the nodes and pods that hold something there by the API's objects, or are claimed for."""
        pods = (await self.kube.list(PODS)).objects
        held = {
            (each["spec"]["nodeName"], each["metadata"]["name"])
            for each in pods
            if each["spec"].get("nodeName") and each["status"].get("phase") != "Succeeded" and shares_of(each)
        }
        texts = unsettled((await self.kube.list(GPU_NODES)).objects) if claimed else ()
        places = (text.split(": ns/") for text in texts)
        return sorted(held | {(node, pod) for node, pod in places})


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plan=plans)
def test_servers_at_once_never_grant_too_much(plan: Plan) -> None:
    virtualtime.run(Scene(plan).run())


def test_the_judge_finds_what_is_granted_twice() -> None:
    """Each kind of fault is found: a judge that says yes to everything proves nothing."""

    async def judged(*held: tuple[int, int, Mode]) -> list[str]:
        kube = MemoryKube()
        await make_node(kube, "a", gpu(0))
        for number, (index, mib, mode) in enumerate(held):
            body = await make_pod(kube, f"p{number}", {MEMORY: 1})
            text = write_shares((share(index, mib, mode),))
            await kube.bind(
                body["metadata"]["name"],
                "ns",
                uid=body["metadata"]["uid"],
                node="a",
                annotations={"tessera.dev/assignment": text},
            )
        return faults((await kube.list(GPU_NODES)).objects, (await kube.list(PODS)).objects)

    share_of = Mode.MEMORY_SHARE
    assert asyncio.run(judged((0, 20000, share_of), (0, 20000, share_of))) == []
    assert "allocated 41000" in asyncio.run(judged((0, 21000, share_of), (0, 20000, share_of)))[0]
    assert "exclude each other" in asyncio.run(judged((0, 2000, share_of), (0, 2000, Mode.MPS)))[0]
    assert "held twice" in asyncio.run(judged((0, 2000, Mode.WHOLE), (0, 2000, Mode.WHOLE)))[0]
    assert "no such GPU" in asyncio.run(judged((1, 2000, share_of)))[0]
    assert "asked for" in asyncio.run(judged((0, 20, share_of)))[0]
