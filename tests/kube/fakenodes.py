"""Nodes that are objects alone, with GPUs as their agents would report them: by hundreds and thousands, in seconds."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from tessera.api.tessera.v1alpha1 import gpunodes
from tessera.clients.kube import GPU_NODES, NODES, PODS, HttpKube, Kube, Object, Selection
from tessera.core.cluster.gpunodestate import GpuNodeState
from tessera.core.cluster.snapshot import Gpu, NodeName
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.sharing import AUTO, Mode, Sharing
from testbed.cluster import Cluster

__all__ = [
    "ALL_MADE",
    "FakeNode",
    "connected",
    "delete_nodes",
    "delete_pods",
    "idle_pod",
    "make_nodes",
    "only_nodes",
    "report",
]

MADE = ("made-by", "test")
ALL_MADE = Selection(labels=(MADE,))
TOGETHER = 48
"""Requests that are under way at once."""


class FakeNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node without kubelet and agent."""

    name: str
    gpus: int = 8
    model: str = "A100-40GB"
    sharing: Sharing = AUTO
    labels: dict[str, str] = {}
    cpu: int = 96
    memory_gib: int = 1024
    more: dict[str, int] = {}
    """What it offers besides units of GPU memory: `nvidia.com/gpu`."""
    unit_mib: int = 1024

    def state(self) -> GpuNodeState:
        """Return what its agent would report."""
        known = model(self.model)
        gpus = tuple(
            Gpu(
                index=index,
                model=known,
                memory_mib=known.memory_mib,
                sharing=self.sharing,
                uuid=f"GPU-{self.name}-{index}",
            )
            for index in range(self.gpus)
        )
        return GpuNodeState(name=NodeName(self.name), gpus=gpus, unit_mib=self.unit_mib, driver="580.65.06")

    def node(self) -> Object:
        """Return its Node object."""
        whole = self.sharing.modes == (Mode.WHOLE,)
        units = 0 if whole else sum(gpu.memory_mib // self.unit_mib for gpu in self.state().gpus)
        shares = {name: str(units) for name in ("tessera.dev/gpu-memory", "aliyun.com/gpu-mem") if units}
        amounts = {"cpu": str(self.cpu), "memory": f"{self.memory_gib}Gi", "pods": "110", **shares}
        amounts |= {name: str(count) for name, count in self.more.items()}
        ready = {"type": "Ready", "status": "True", "reason": "Test", "message": "an object alone"}
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.name, "labels": {MADE[0]: MADE[1], **self.labels}},
            "status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]},
        }


@asynccontextmanager
async def connected(cluster: Cluster) -> AsyncIterator[HttpKube]:
    """Give a client with the administrator's rights."""
    async with HttpKube.connect(cluster.kubeconfig) as kube:
        yield kube


@asynccontextmanager
async def only_nodes(cluster: Cluster, nodes: Sequence[FakeNode]) -> AsyncIterator[HttpKube]:
    """Give a client of a cluster that has these nodes and no pods of tests, and has neither afterwards."""
    async with connected(cluster) as kube:
        await delete_pods(kube)
        await delete_nodes(kube)
        await make_nodes(kube, nodes)
        yield kube
        await delete_pods(kube)
        await delete_nodes(kube)


async def make_nodes(kube: Kube, nodes: Sequence[FakeNode]) -> None:
    """Create nodes and what their agents would report; about a thousand in ten seconds.

    Nobody renews their leases: a control plane without kubelets has no controller that would miss them.
    """
    await _each(nodes, lambda each: _make(kube, each))


async def _make(kube: Kube, each: FakeNode) -> None:
    made = await kube.create(NODES, each.node())
    # Admission taints every new node, and the controller that would take the taint away does not run.
    await kube.patch(NODES, each.name, {"spec": {"taints": None}})
    await kube.create(GPU_NODES, gpunodes.new_object(each.name, made["metadata"]["uid"]))
    await report(kube, each.state())


def idle_pod(name: str, limits: dict[str, int], annotations: dict[str, str] | None = None, **spec: Any) -> Object:
    """Return a pod for such a node, on which its container never starts."""
    resources = {"limits": {key: str(count) for key, count in limits.items()}}
    container = {"name": "main", "image": "none", "resources": resources}
    metadata = {"name": name, "namespace": "default", "labels": dict([MADE]), "annotations": annotations or {}}
    return {"metadata": metadata, "spec": {"containers": [container], **spec}}


async def report(kube: Kube, state: GpuNodeState) -> None:
    """Write a node's GPUs as its agent would."""
    await kube.patch(GPU_NODES, state.name, {"status": gpunodes.status_fields(state)}, subresource="status")


async def delete_nodes(kube: Kube) -> None:
    """Delete all nodes of tests, and their GPUNode objects, which the collector of garbage would delete later."""
    names = [each["metadata"]["name"] for each in (await kube.list(NODES, ALL_MADE)).objects]
    await _each(names, lambda name: kube.delete(NODES, name))
    await _each(names, lambda name: kube.delete(GPU_NODES, name))


async def delete_pods(kube: Kube, selection: Selection = ALL_MADE) -> None:
    """Delete pods at once: no kubelet would ever tell that they have ended."""
    found = (await kube.list(PODS, selection)).objects
    keys = [(each["metadata"]["name"], each["metadata"]["namespace"]) for each in found]
    await _each(keys, lambda key: kube.delete(PODS, key[0], namespace=key[1], grace_s=0))


async def _each(items: Iterable[Any], do: Callable[[Any], Awaitable[Any]]) -> None:
    """Do it with every item, with some at once."""
    gate = asyncio.Semaphore(TOGETHER)

    async def one(item: Any) -> None:
        async with gate:
            await do(item)

    async with asyncio.TaskGroup() as tasks:
        for item in items:
            tasks.create_task(one(item))
