"""A cluster in memory with servers in this process, asked as kube-scheduler asks; and an independent look at it."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
import msgspec

from builders.kubeobjects import gpu, gpunode, node, pod
from builders.signed import AGENT
from judges.allocated import shares_of
from tessera.api.tessera.pods.assignments import write_shares
from tessera.api.tessera.pods.signatures import keys_text
from tessera.clients.kube import GPU_NODES, NODES, PODS, Kube, MemoryKube, Object
from tessera.core.cluster.snapshot import Gpu, Share
from tessera.core.gpu.mig import Placement, is_legal
from tessera.server.binder import ServerClocks
from tessera.server.run import Server
from tessera.server.settings import ServerLimits, ServerSettings

NEED = {"tessera.dev/gpu-memory": 10}
FULL = {"tessera.dev/gpu-memory": 40}
"""More than half of a GPU: it has no room for a `NEED` beside one."""
LARGE = {"tessera.dev/gpu-memory": 30}
"""One of these is all that a GPU holds."""
SHARE = {"aliyun.com/gpu-mem": 6}


class Clock:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Asked:
    """A server as its callers see it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._client = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=server.app), base_url="http://server")

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        answer = await self._client.post(path, content=content)
        return answer.status_code, msgspec.json.decode(answer.content)

    async def get(self, path: str) -> tuple[int, str]:
        answer = await self._client.get(path)
        return answer.status_code, answer.text

    async def fitting(self, each: Object, *names: str, path: str = "/filter") -> list[str]:
        _, answer = await self.post(path, {"Pod": each, "Nodes": None, "NodeNames": names})
        found: list[str] = answer["NodeNames"]
        return found

    async def bind(self, each: Object, node_name: str, path: str = "/bind") -> str:
        metadata = each["metadata"]
        body = {"PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"]}
        _, answer = await self.post(path, body | {"Node": node_name})
        error: str = answer["Error"]
        return error

    async def schedule(self, each: Object, *names: str) -> str:
        """Place a pod as kube-scheduler does, and return what went wrong."""
        fitting = await self.fitting(each, *names)
        if not fitting:
            return "nowhere"
        _, scores = await self.post("/prioritize", {"Pod": each, "NodeNames": fitting})
        return await self.bind(each, max(scores, key=lambda score: int(score["Score"]))["Host"])


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


async def claims(kube: MemoryKube, name: str = "a") -> list[str]:
    found = await kube.get(GPU_NODES, name)
    assert found is not None
    return [each["pod"] for each in found["spec"]["claims"]]


async def nodes_of(kube: MemoryKube) -> dict[str, str]:
    pods = (await kube.list(PODS)).objects
    return {each["metadata"]["name"]: each["spec"].get("nodeName", "") for each in pods}


async def make_node(kube: MemoryKube, name: str, *gpus: Gpu) -> None:
    """Create a node whose agent has reported these GPUs."""
    await kube.create(NODES, node(name))
    own = (msgspec.structs.replace(each, uuid=f"GPU-{name}-{each.index}") for each in gpus)
    body = gpunode(name, *own, assignment_keys=keys_text([AGENT.public]))
    await kube.create(GPU_NODES, {key: value for key, value in body.items() if key != "status"})
    await kube.patch(GPU_NODES, name, {"status": body["status"]}, subresource="status")


async def make_pod(kube: MemoryKube, name: str, limits: Mapping[str, str | int], **more: Any) -> Object:
    """Create a pod that waits."""
    return await kube.create(PODS, pod(name, limits, node=None, **more))


async def hold(kube: MemoryKube, name: str, limits: Mapping[str, str | int], *shares: Share, node: str) -> Object:
    """Create a pod that was bound with shares, which the node's agent has signed since."""
    made = await make_pod(kube, name, limits)
    await kube.bind(name, "ns", uid=made["metadata"]["uid"], node=node, annotations={})
    return await regrant(kube, name, *shares)


async def regrant(kube: MemoryKube, name: str, *shares: Share) -> Object:
    """Write shares on a bound pod as its node's agent does."""
    found = await kube.get(PODS, name, "ns")
    assert found is not None
    annotations = {"tessera.dev/assignment": write_shares(shares)}
    sealed = AGENT.sealed(annotations, uid=found["metadata"]["uid"], node=found["spec"]["nodeName"])
    return await kube.patch(PODS, name, {"metadata": {"annotations": sealed}}, namespace="ns")


@asynccontextmanager
async def servers(
    kube: Kube,
    number: int = 1,
    clock: Callable[[], float] | None = None,
    limits: ServerLimits | None = None,
    *,
    synced: bool = True,
) -> AsyncIterator[list[Asked]]:
    """Give servers that have read the cluster, or begin to."""
    async with AsyncExitStack() as stack:
        made = []
        for index in range(number):
            settings = ServerSettings(replica=f"r{index}", limits=limits or ServerLimits())
            server = Server(settings, kube, ServerClocks(clock or Clock(), lambda: 1_700_000_000_000_000_000))
            await stack.enter_async_context(server.following())
            made.append(Asked(server))
        for each in made if synced else ():
            await each.server.synced()
        yield made


async def settle(rounds: int = 30) -> None:
    """Let watches arrive."""
    for _ in range(rounds):
        await asyncio.sleep(0)


async def check(kube: Kube) -> Counter[str]:
    """Look at the API alone: nothing is allocated beyond what a GPU has. Return how many pods each node has."""
    states = {each["metadata"]["name"]: each for each in (await kube.list(GPU_NODES)).objects}
    held: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    count: Counter[str] = Counter()
    for each in (await kube.list(PODS)).objects:
        where = each["spec"].get("nodeName")
        if where and each["status"].get("phase") not in {"Succeeded", "Failed"}:
            count[where] += 1
            for share in shares_of(each):
                held[where, share["gpu"]].append(share)
    for (where, index), shares in held.items():
        known = next(each for each in states[where]["status"]["gpus"] if each["index"] == index)
        _check_gpu(known, shares)
    return count


def _check_gpu(known: dict[str, Any], shares: list[dict[str, Any]]) -> None:
    modes = {share["mode"] for share in shares}
    assert len(modes) == 1, f"modes {modes} on one GPU"
    assert "whole" not in modes or len(shares) == 1, "a whole GPU is held twice"
    assert sum(share["memoryMiB"] for share in shares) <= known["memoryMiB"]
    assert sum(share["computePercent"] for share in shares) <= 100
    if modes == {"mig"}:
        model = gpu(0, known["model"]).model
        sizes = {profile.name: profile.size for profile in model.profiles}
        places = {(share["start"], sizes[share["profile"]], share["profile"]) for share in shares}
        assert len(places) == len(shares), "an instance is held twice"
        assert is_legal(model, tuple(sorted(Placement(*place) for place in places)))
