"""Two servers and two real schedulers bind random pods while parts of the control plane break.

`judges.allocated` judges the allocations from API objects alone. `TESSERA_SOAK=20` in the environment makes it a
soak test with twenty times the nodes and pods; `TESSERA_SEED` sets the seed.
"""

import asyncio
import contextlib
import json
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from functools import partial
from typing import Any

import pytest

from judges.allocated import claimed_for, faults, free_mib, shares_of, unsettled, untrue
from kube.fakenodes import ALL_MADE, FakeNode, delete_pods, idle_pod, make_nodes, only_nodes
from kube.replicas import REPLICAS, Replica, Replicas, running
from tessera.clients.kube import GPU_NODES, NODES, PODS, HttpKube, Kube, Object, follow, name_of
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.errors import Conflict, InvalidInput, Unavailable
from testbed.cluster import Cluster

pytestmark = pytest.mark.anyio

SOAK = int(os.environ.get("TESSERA_SOAK", "1"))
SEED = os.environ.get("TESSERA_SEED", "")
PODS_EACH = 70 * SOAK
RECOVERED_S = 90.0 + 20 * SOAK
FLEET = [
    *(FakeNode(name=f"a100-{i}", gpus=4) for i in range(6 * SOAK)),
    *(FakeNode(name=f"h100-{i}", gpus=2, model="H100-80GB") for i in range(4 * SOAK)),
    *(FakeNode(name=f"t4-{i}", gpus=2, model="T4") for i in range(3 * SOAK)),
    *(
        FakeNode(name=f"whole-{i}", gpus=2, sharing=Sharing(modes=(Mode.WHOLE,)), more={"nvidia.com/gpu": 2})
        for i in range(2 * SOAK)
    ),
]
MEMORY, COMPUTE, COUNT = "tessera.dev/gpu-memory", "tessera.dev/gpu-compute", "tessera.dev/gpu-count"
REQUESTS: tuple[tuple[dict[str, int], str], ...] = (
    ({MEMORY: 4}, "none"),
    ({MEMORY: 9, COMPUTE: 20}, "none"),
    ({MEMORY: 8}, "hardware"),
    ({MEMORY: 4}, "hardware"),
    ({MEMORY: 12}, "driver"),
    ({MEMORY: 30}, "none"),
    ({MEMORY: 6, COUNT: 2}, "none"),
    ({MEMORY: 500}, "none"),
    ({"aliyun.com/gpu-mem": 3}, "none"),
    ({"aliyun.com/gpu-mem": 11}, "none"),
    ({"nvidia.com/gpu": 1}, "none"),
)


@pytest.fixture(scope="module")
def replicas(scheduling_plane: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    with running(scheduling_plane, tmp_path_factory.mktemp("replicas")) as found:
        yield found


@pytest.fixture(scope="module")
async def kube(scheduling_plane: Cluster) -> AsyncIterator[HttpKube]:
    """Give the API of a cluster with the fleet."""
    async with only_nodes(scheduling_plane, FLEET) as client:
        yield client


class Observed:
    """Looks at every pod that changes while a test runs, and at all that its node has then."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._pods: dict[str, Object] = {}
        self.faults: list[str] = []
        self.states = 0

    async def run(self) -> None:
        gpu_nodes = (await self._kube.list(GPU_NODES)).objects
        async for change in follow(self._kube, PODS, ALL_MADE):
            if change.object is None:
                continue
            uid = change.object["metadata"]["uid"]
            self._pods[uid] = change.object
            if change.gone:
                del self._pods[uid]
            where = change.object["spec"].get("nodeName")
            if where:
                self.states += 1
                there = [each for each in self._pods.values() if each["spec"].get("nodeName") == where]
                self.faults += faults(gpu_nodes, there)


async def kubelets(kube: Kube) -> None:
    """Do what kubelets and agents do for pods that request whole GPUs: admit each and write which GPU it was given.

    Two kube-schedulers count devices each for itself, so both may give away the last one of a node. The kubelet then
    refuses the pod that finds none.
    """
    while True:
        with contextlib.suppress(Unavailable, Conflict):
            await _admit_all(kube)
        await asyncio.sleep(0.3)


async def _admit_all(kube: Kube) -> None:
    pods = (await kube.list(PODS, ALL_MADE)).objects
    for node in (each for each in FLEET if each.name.startswith("whole-")):
        there = [each for each in pods if each["spec"].get("nodeName") == node.name and not refused(each)]
        free = set(range(node.gpus)) - {share["gpu"] for each in there for share in shares_of(each)}
        for each in there:
            name = each["metadata"]["name"]
            if shares_of(each):
                continue
            if free:
                await kube.patch(PODS, name, _given(min(free)), namespace="default")
                free.remove(min(free))
            else:
                await kube.patch(PODS, name, REFUSAL, namespace="default", subresource="status")


REFUSAL = {"status": {"phase": "Failed", "reason": "OutOfnvidia.com/gpu"}}


def refused(pod: Object) -> bool:
    """Return whether a kubelet refused a pod."""
    return bool(pod["status"].get("phase") == "Failed")


def _given(index: int) -> Object:
    share = {
        "gpu": index,
        "mode": "whole",
        "memoryMiB": 40960,
        "computePercent": 100,
        "isolation": "hardware",
        "resource": "nvidia.com/gpu",
        "container": "main",
    }
    return {"metadata": {"annotations": {"tessera.dev/assignment": json.dumps({"version": 1, "shares": [share]})}}}


def random_pod(rng: random.Random, name: str) -> Object:
    limits, grade = rng.choice(REQUESTS)
    return idle_pod(name, limits, {"tessera.dev/isolation": grade}, schedulerName=rng.choice(REPLICAS).scheduler)


async def insisting(do: Callable[[], Awaitable[object]]) -> None:
    """Do something until the API server has done it: who makes pods does not give up at an outage either."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(Conflict):
                try:
                    await do()
                except Unavailable:
                    await asyncio.sleep(0.3)
                    continue
            return


async def load(kube: Kube, rng: random.Random, prefix: str, number: int = PODS_EACH) -> set[str]:
    """Create pods and delete some of them meanwhile, for some seconds; return the names of those that shall live."""
    living: list[str] = []
    for index in range(number):
        name = f"{prefix}-{index}"
        await insisting(partial(kube.create, PODS, random_pod(rng, name)))
        living.append(name)
        if rng.random() < 0.3:
            gone = living.pop(rng.randrange(len(living)))
            await insisting(partial(kube.delete, PODS, gone, namespace="default", grace_s=0))
        await asyncio.sleep(0.03)
    return set(living)


async def look(kube: Kube) -> tuple[tuple[Object, ...], tuple[Object, ...]]:
    return (await kube.list(GPU_NODES)).objects, (await kube.list(PODS, ALL_MADE)).objects


async def recovered(kube: Kube, living: set[str], within_s: float = RECOVERED_S) -> Counter[str]:
    """Wait until every pod is bound, waits with a true reason, or was refused by a kubelet; return how many are what.

    A bound pod has an assignment; it is missing where it stays without.
    """
    deadline_s = time.monotonic() + within_s
    while True:
        with contextlib.suppress(Unavailable):
            gpu_nodes, pods = await look(kube)
            assert not faults(gpu_nodes, pods)
            assert {each["metadata"]["name"] for each in pods} == living, "a pod is lost"
            waiting = [each for each in pods if not each["spec"].get("nodeName")]
            held = [each for each in pods if each["spec"].get("nodeName") and not refused(each)]
            troubles = [
                *(f"{name_of(each)[1]} waits without a reason" for each in waiting if not reason(each)),
                *untrue(gpu_nodes, waiting and pods),
                *(f"{name_of(each)[1]} is bound without a share" for each in held if not shares_of(each)),
            ]
            if not troubles:
                return Counter(bound=len(held), waiting=len(waiting), refused=len(pods) - len(held) - len(waiting))
        assert time.monotonic() < deadline_s, troubles
        await asyncio.sleep(0.5)


def reason(pod: Object) -> str:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((each.get("message", "") for each in conditions if each["type"] == "PodScheduled"), "")


async def equals_the_api(kube: Kube, replicas: Replicas) -> None:
    """Ask both servers what is free on each node: exactly what the API's objects say, and not a GiB more.

    A place that is kept for a pod that was looked at, and did not come, is free again within seconds. One that was
    claimed for a pod that is gone, or was given up by another server, is after three looks at claims, each 20 s. A
    claim that stands on a node, for a pod that waits after a lost answer, counts for two minutes.
    """
    for each in REPLICAS:
        deadline_s = time.monotonic() + 70
        while different := await differences(kube, replicas, each):
            if time.monotonic() > deadline_s:
                texts = [f"{key}: {text}" for key, text in different.items()]
                pytest.fail("\n".join([each.server, *texts, *await published(kube, {name for name, _ in different})]))
            await asyncio.sleep(0.5)


async def published(kube: Kube, nodes: set[str]) -> list[str]:
    """Return what the API has of nodes, for the message of a test that fails."""
    gpu_nodes, pods = await look(kube)
    there = [each for each in pods if each["spec"].get("nodeName") in nodes]
    held = [f"{name_of(each)[1]} on {each['spec']['nodeName']}: {shares_of(each)}" for each in there]
    return [json.dumps(each["spec"]) for each in gpu_nodes if name_of(each)[1] in nodes] + held


async def differences(kube: Kube, replicas: Replicas, replica: Replica) -> dict[tuple[str, int], str]:
    gpu_nodes, pods = await look(kube)
    free_by_node = free_mib(gpu_nodes, [*pods, *claimed_for(gpu_nodes, pods)])
    free = {name: mib // 1024 for name, mib in free_by_node.items() if not name.startswith("whole-")}
    want = {(name, gib): gib == most for name, most in free.items() for gib in (most, most + 1) if gib}
    answers = await asyncio.to_thread(replicas.ask, replica, [("/filter", question(*key)) for key in want])
    return {
        key: text for key, text in zip(want, answers, strict=True) if bool(json.loads(text)["NodeNames"]) != want[key]
    }


def question(name: str, gib: int) -> dict[str, Any]:
    """Return kube-scheduler's question whether a share of so much fits on a node."""
    container = {"name": "main", "resources": {"limits": {"aliyun.com/gpu-mem": str(gib)}}}
    metadata = {"name": "asking", "namespace": "default", "uid": f"asking-{name}-{gib}"}
    # Two names, so that no place is kept for what is the only answer.
    return {"Pod": {"metadata": metadata, "spec": {"containers": [container]}}, "NodeNames": [name, "nowhere"]}


@contextlib.asynccontextmanager
async def beside(*loops: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Let loops run meanwhile; the end of one, which none should have, ends what they run beside."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in loops]
        yield
        for task in tasks:
            task.cancel()


async def nothing(_: Replicas) -> None: ...


async def api_server_killed(replicas: Replicas) -> None:
    await asyncio.sleep(1.5)
    await asyncio.to_thread(replicas.kill, "apiserver")
    await asyncio.sleep(1)
    await asyncio.to_thread(replicas.start_api_server)


async def etcd_paused(replicas: Replicas) -> None:
    for _ in range(2):
        await asyncio.sleep(1)
        replicas.pause("etcd")
        await asyncio.sleep(4)
        replicas.resume("etcd")


async def server_killed_during_binds(replicas: Replicas) -> None:
    rounds = min(SOAK, 2)  # a server takes seconds to start, and without a soak all pods are made before a second round
    for each in REPLICAS * rounds:
        await asyncio.sleep(0.5)
        await asyncio.to_thread(replicas.kill, each.server)
        await asyncio.to_thread(replicas.start_server, each)


async def watches_cut(replicas: Replicas) -> None:
    for each in (*REPLICAS, *REPLICAS):
        await asyncio.sleep(0.5)
        await asyncio.to_thread(replicas.cut, each)
        await asyncio.sleep(0.7)
        await asyncio.to_thread(replicas.mend, each)


async def clock_wrong(replicas: Replicas) -> None:
    """Put one server's wall clock three hours ahead, the other's two days back, both in the middle of binding."""
    for each, skew_s in zip(REPLICAS, (3 * 3600, -2 * 86400), strict=True):
        await asyncio.to_thread(replicas.kill, each.server)
        await asyncio.to_thread(replicas.start_server, each, skew_s)
        await asyncio.sleep(0.5)


TROUBLES = {
    "no trouble": nothing,
    "the API server is killed and started again": api_server_killed,
    "etcd stands still": etcd_paused,
    "servers are killed during binds": server_killed_during_binds,
    "watches are cut": watches_cut,
    "wall clocks go wrong": clock_wrong,
}


@pytest.mark.parametrize("case", TROUBLES)
async def test_nothing_is_allocated_twice_and_no_pod_is_lost(replicas: Replicas, kube: HttpKube, case: str) -> None:
    rng, observed = random.Random(case + SEED), Observed(kube)
    await insisting(lambda: delete_pods(kube))
    async with beside(observed.run(), kubelets(kube)):
        making = asyncio.create_task(load(kube, rng, f"p{list(TROUBLES).index(case)}"))
        await TROUBLES[case](replicas)
        count = await recovered(kube, await making)
    assert not observed.faults
    assert observed.states > count["bound"] > 0, count
    await equals_the_api(kube, replicas)


async def test_requests_that_make_no_sense_bind_and_claim_nothing(replicas: Replicas, kube: HttpKube) -> None:
    """Wrong bodies, a pod that is not there, a pod of another UID, and a node that vanished after it was found fit."""
    await insisting(lambda: delete_pods(kube))
    await make_nodes(kube, [FakeNode(name="brief", gpus=1)])
    body = random_pod(random.Random(0), "asked")
    body["spec"] |= {"schedulerName": "nobody"}
    body["spec"]["containers"][0]["resources"]["limits"] = {MEMORY: "4"}
    waiting = await kube.create(PODS, body)
    fits = {"Pod": waiting, "Nodes": None, "NodeNames": ["brief"]}
    target = {"PodName": "asked", "PodNamespace": "default", "PodUID": waiting["metadata"]["uid"], "Node": "brief"}
    (found,) = await asyncio.to_thread(replicas.ask, REPLICAS[0], [("/filter", fits)])
    assert json.loads(found)["NodeNames"] == ["brief"]
    for kind in (NODES, GPU_NODES):
        await kube.delete(kind, "brief")
    requests = [
        ("/filter", json.dumps(fits)[:-20]),
        ("/prioritize", "[]"),
        ("/bind", json.dumps(target)[:30]),
        ("/bind", target | {"PodName": "unknown"}),
        ("/bind", target | {"PodUID": "another", "Node": "a100-0"}),
        ("/bind", target | {"Node": "never-there"}),
        ("/bind", target),
    ]
    for each in REPLICAS:
        await forgotten(replicas, each, fits)
        answers = await asyncio.to_thread(replicas.ask, each, requests)
        assert all(json.loads(text)["Error"] for text in answers), answers
        assert await asyncio.to_thread(replicas.ready, each)
    gpu_nodes, pods = await look(kube)
    assert [each["spec"].get("nodeName") for each in pods] == [None]
    assert not [text for text in unsettled(gpu_nodes) if text.endswith(("default/asked", "default/unknown"))]
    assert "brief" not in {name_of(each)[1] for each in gpu_nodes}


async def forgotten(replicas: Replicas, each: Replica, fits: Object) -> None:
    """Wait until a server's watch has told it of the end of the one node that it is asked about."""
    deadline_s = time.monotonic() + 30
    while True:
        (answer,) = await asyncio.to_thread(replicas.ask, each, [("/filter", fits)])
        if not json.loads(answer)["NodeNames"]:
            return
        assert time.monotonic() < deadline_s, answer
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("field", [{MEMORY: "-1"}, {MEMORY: "1500m"}, {MEMORY: "4", "tessera.dev/gpu-compute": "0.5"}])
async def test_amounts_that_make_no_sense_are_refused_before_they_reach_a_server(
    kube: HttpKube, field: dict[str, str]
) -> None:
    body = random_pod(random.Random(0), "nonsense")
    body["spec"]["containers"][0]["resources"]["limits"] = field
    with pytest.raises(InvalidInput):
        await kube.create(PODS, body)


async def test_no_claim_is_left(kube: HttpKube) -> None:
    """The last of this module: what all the trouble before has left of claims is swept away."""
    await insisting(lambda: delete_pods(kube))
    deadline_s = time.monotonic() + 60
    while left := unsettled((await kube.list(GPU_NODES)).objects):
        assert time.monotonic() < deadline_s, left
        await asyncio.sleep(0.5)
