"""Shares by assignment under a real kubelet: annotation, kubelet's record and container's environment agree."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from gpunodes import facts, shared
from kube.gpunode import GpuNode
from kube.pods import environment, pod, run, until_allocatable
from tessera.agent.deviceplugin import Outside, Paths, Plugins
from tessera.api.assignments import write_shares
from tessera.api.dues import read_dues
from tessera.clients.kube import PODS, LightkubeKube, Object, Selection, Store
from tessera.clients.kubelet import PodResources
from tessera.core.advertise import OfferOptions, offer
from tessera.core.inventory import Inventory
from tessera.core.mig import Placement
from tessera.core.nodesharing import ListStrategy, PluginOptions
from tessera.core.sharing import Mode, Sharing
from tessera.core.snapshot import Share
from tessera.log import logger

pytestmark = pytest.mark.anyio

GPUS = ("A100-40GB",) * 4
RESOURCE = "tessera.dev/gpu-memory"
CARDS = tuple(facts(index) for index in range(4))
PODS_AT_ONCE = 50


class Shares:
    """The device plugins of a node, in this process, with the real kubelet and API server."""

    def __init__(self, gpu_node: GpuNode, kube: LightkubeKube) -> None:
        node = gpu_node.node
        self.kube = kube
        self.gpu_node = gpu_node
        self.store = Store(kube, PODS, Selection(fields=(("spec.nodeName", node.name),)))
        self.record = PodResources(node.pod_resources)
        self.paths = Paths(
            plugins=node.device_plugins,
            cdi=node.path("/var/run/cdi"),
            driver_spec=node.path("/etc") / "none.yaml",
            minors=node.path("/run") / "none",
            memory=node.path("/run") / "tessera-shares.json",
        )
        self.plugins = self.started()

    def started(self) -> Plugins:
        """Return the plugins of an agent that has just started."""
        outside = Outside(
            pods=self.store.objects.values, record=self.record.list, correct=self.correct, instance=self.instance
        )
        return Plugins(self.paths, outside, logger())

    async def correct(self, namespace: str, name: str, annotations: Mapping[str, str]) -> Object:
        return await self.kube.patch(PODS, name, {"metadata": {"annotations": dict(annotations)}}, namespace=namespace)

    async def instance(self, gpu: str, placement: Placement) -> Inventory:
        raise AssertionError(gpu, placement)

    async def offer(self, strategy: ListStrategy) -> None:
        sharing = Sharing(modes=(Mode.MEMORY_SHARE,))
        inventory = Inventory(gpus=CARDS)
        found = offer([shared(card, sharing) for card in CARDS], inventory, OfferOptions())
        await self.plugins.offer(found, inventory, PluginOptions(list_strategies=(strategy,)))


@pytest.fixture
async def shares(gpu_node: GpuNode) -> AsyncIterator[Shares]:
    async with LightkubeKube.connect(gpu_node.cluster.kubeconfig) as kube, asyncio.TaskGroup() as tasks:
        made = Shares(gpu_node, kube)
        running = [tasks.create_task(made.store.run()), tasks.create_task(made.plugins.run())]
        await asyncio.wait_for(made.store.synced(), 30)
        yield made
        for task in running:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*running)


def assigned(name: str, node: str, units: int, gpu: int) -> dict[str, Any]:
    """Return a pod that a scheduler placed: bound, with its assignment."""
    share = Share(
        gpu=gpu,
        mode=Mode.MEMORY_SHARE,
        memory_mib=units * 1024,
        compute_percent=0,
        isolation=Mode.MEMORY_SHARE.isolation,
        resource=RESOURCE,
        container="main",
    )
    made = pod(name, limits={RESOURCE: units}, nodeName=node)
    made["metadata"]["annotations"] = {"tessera.dev/assignment": write_shares((share,))}
    return made


@pytest.mark.parametrize("strategy", ["cdi-cri", "envvar"])
async def test_fifty_pods_at_once_get_what_their_assignments_say(shares: Shares, strategy: ListStrategy) -> None:
    gpu_node, cluster = shares.gpu_node, shares.gpu_node.cluster
    await shares.offer(strategy)
    total = sum(card.memory_mib // 1024 for card in CARDS)
    await asyncio.to_thread(until_allocatable, cluster, gpu_node.node.name, [(RESOURCE, total)])
    sizes = [1, 2, 3] * (PODS_AT_ONCE // 3) + [3] * (PODS_AT_ONCE % 3)
    wanted = [assigned(f"p{n:02}", gpu_node.node.name, size, n % 4) for n, size in enumerate(sizes)]
    random.Random(strategy).shuffle(wanted)  # the order of their creation
    await asyncio.to_thread(lambda: run(cluster, *wanted, timeout_s=300))
    held = {each.pod: each for each in await shares.record.list()}
    listed = (await shares.kube.list(PODS, Selection(namespace="default"))).objects
    dues = {due.key.pod: due for due in read_dues(listed).dues}
    assert len(held) == len(dues) == PODS_AT_ONCE
    for name, due in dues.items():
        got = await asyncio.to_thread(environment, cluster, name)
        visible = got["TESSERA_GPU_UUIDS"] if strategy == "cdi-cri" else got["NVIDIA_VISIBLE_DEVICES"]
        assert visible == CARDS[due.shares[0].gpu].uuid, name
        assert int(got["TESSERA_GPU_MEMORY_MIB"]) == due.shares[0].memory_mib == 1024 * len(held[name].device_ids)
    for gpu in range(4):
        own = sum(due.shares[0].memory_mib for due in dues.values() if due.shares[0].gpu == gpu)
        assert own == sum(1024 * size for n, size in enumerate(sizes) if n % 4 == gpu), "the ledger as a whole is kept"
