"""Devices that change hands between kubelet and scheduler, with everybody writing at the worst moment."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from pathlib import Path

import msgspec
import pytest

from builders.deviceplugins import device_plugins
from builders.formerkind import FormerKind
from builders.gpunodes import facts, shared
from builders.kubeobjects import share
from builders.nodepods import AnnotatedPods, KnownResources, ListedPods
from builders.nodeviews import of_the_host
from builders.signed import SERVER, Trusting
from tessera.agent.deviceplugin import PluginPaths
from tessera.agent.deviceplugin.offers.deviceoffers import DeviceOffers, OfferableDevices
from tessera.agent.nodestate.gpunode import GpuNodeLink
from tessera.agent.nodestate.noderecord import NodeRecord
from tessera.agent.pods.nodepods import NodePods
from tessera.agent.pods.podsview import PodsView
from tessera.api.tessera.pods.assignments import write_shares
from tessera.api.tessera.v1alpha1.gpunodes import claims_field, read_gpu_node
from tessera.clients.kube import (
    EVERYTHING,
    GPU_NODES,
    NODES,
    PODS,
    Kind,
    Listing,
    MemoryKube,
    Object,
    Selection,
    WatchEvent,
)
from tessera.clients.kubelet import Container, DeviceCheckpoint, MemoryKubelet, PodResources
from tessera.core.cluster.gpunodestate import Claim, GpuNodeState
from tessera.core.cluster.protocols.allocators import OfferPlan, devices_one_by_one
from tessera.core.cluster.snapshot import NodeName
from tessera.core.deviceplugin.offers.advertise import NodeOffer, OfferOptions, offer
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import Inventory
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.node.nodesharing import PluginOptions
from tessera.core.workload.need import PodKey
from tessera.errors import Conflict, Unavailable
from tessera.log import logger

pytestmark = pytest.mark.anyio

RESOURCE, MEMORY = "nvidia.com/gpu", "tessera.dev/gpu-memory"
WHOLE = Sharing(modes=(Mode.WHOLE,))
GPUS = (facts(0, "T4"), facts(1, "T4"))
FIRST, SECOND = (DeviceId(gpu.uuid) for gpu in GPUS)
BOTH = frozenset({FIRST, SECOND})
ONE = frozenset({SECOND})
INVENTORY = Inventory(gpus=GPUS)
OF_THE_NODE = Selection(fields=(("spec.nodeName", "n1"),))

Act = Callable[[], Awaitable[None]]


class InterleavedKube(FormerKind):
    """Lets others act around a read of the GPUNode: between it and the write that is decided on it, for one."""

    def __init__(self) -> None:
        super().__init__()
        self.watched = asyncio.Event()
        """Whether watches show what comes."""
        self.watched.set()
        self.before_read: list[Act] = []
        self.after_read: list[Act] = []
        """Each for one read, in their order."""
        self.prunes = False

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Object | None:
        await self._let(self.before_read, kind)
        found = await super().get(kind, name, namespace)
        await self._let(self.after_read, kind)
        return found

    async def watch(self, kind: Kind, since: str, selection: Selection = EVERYTHING) -> AsyncIterator[WatchEvent]:
        async for event in super().watch(kind, since, selection):
            await self.watched.wait()
            yield event

    async def _let(self, acts: list[Act], kind: Kind) -> None:
        if kind == GPU_NODES and acts:
            await acts.pop(0)()


class Server:
    """A server that gives a pod GPU 0: it claims it, binds the pod, and then removes the claim."""

    def __init__(self, kube: MemoryKube) -> None:
        self._kube = kube

    async def claim(self) -> None:
        claim = Claim(uid="uid-p", pod=PodKey("default/p"), shares=(share(0, 15360),), attempt="server/1")
        await self._kube.patch(GPU_NODES, "n1", {"spec": {"claims": claims_field((claim,))}})

    async def bind(self) -> None:
        limits = {"limits": {MEMORY: "15"}}
        annotations = {"tessera.dev/assignment": write_shares((share(0, 15360),))}
        spec = {"containers": [{"name": "main", "image": "none", "resources": limits}]}
        pod = {"metadata": {"name": "p", "namespace": "default"}, "spec": spec}
        uid = (await self._kube.create(PODS, pod))["metadata"]["uid"]
        sealed = SERVER.sealed(annotations, uid=uid, node="n1")
        await self._kube.bind("p", "default", uid=uid, node="n1", annotations=sealed)

    async def remove_claim(self) -> None:
        await self._kube.patch(GPU_NODES, "n1", {"spec": {"claims": []}})


def observed_on(*gpus: DeviceId, unhealthy: Iterable[DeviceId] = ()) -> OfferableDevices:
    """Return what an agent observes where these GPUs shall be offered by name."""
    options = OfferOptions(unhealthy=frozenset(unhealthy))
    desired = tuple(gpu for gpu in GPUS if DeviceId(gpu.uuid) in gpus)
    offered = offer([shared(gpu, WHOLE) for gpu in desired], Inventory(gpus=desired), options)
    known = tuple(shared(gpu, WHOLE) for gpu in GPUS)
    return OfferableDevices(
        offered=offered, gpus=known, inventory=INVENTORY, node={"metadata": {"name": "n1", "uid": "uid-n1"}}
    )


class Node:
    """A node with two GPUs: all that `DeviceOffers` is made of, and whom it speaks to."""

    def __init__(self, kube: InterleavedKube, kubelet: MemoryKubelet, folder: Path) -> None:
        self.kube = kube
        self.kubelet = kubelet
        self.server = Server(kube)
        self.advertised = NodeOffer(resources=())
        self.watched: tuple[Object, ...] = ()
        """The pods as the agent's watch shows them: none, until a test says so."""
        log, record = logger(), PodResources(kubelet.pod_resources)
        self.link = GpuNodeLink(kube, "n1", log, wake=lambda: None)
        checkpoint, proc = DeviceCheckpoint(kubelet.plugins), of_the_host(folder / "proc")
        view = PodsView(ListedPods(lambda: self.watched, self._relist), checkpoint, record, proc=proc)
        paths = PluginPaths(
            plugins=kubelet.plugins,
            cdi=folder / "cdi",
            driver_specs=(),
            answers_file=None,
            allocations=None,
            dev=folder,
        )
        self.plugins = device_plugins(paths, view, AnnotatedPods(view.pods, self._correct), Trusting("n1"))
        self.gate = self.plugins.gate
        pods = NodePods(view, self.gate.record, self.plugins.shares, KnownResources(RESOURCE))
        self.offers = DeviceOffers(self.link, NodeRecord(kube, "n1", log), record, self.gate, pods, log)

    async def _relist(self) -> Listing:
        return await self.kube.list(PODS, OF_THE_NODE)

    async def _correct(self, pod: Object, annotations: Mapping[str, str]) -> Object:
        raise AssertionError((pod, annotations))

    async def before(self, *gpus: DeviceId) -> tuple[OfferableDevices, NodeOffer, OfferPlan]:
        """Decide what is advertised where these GPUs shall be offered by name, and no others."""
        look = observed_on(*gpus)
        return look, *await self.offers.plan_advertisement(look)

    async def advertise(self, now: NodeOffer, leaving: Iterable[DeviceId] = ()) -> None:
        """Let the kubelet have a list, and wait until it has."""
        assert await self.plugins.offer(now, INVENTORY, PluginOptions(), leaving=frozenset(leaving))
        count = sum(len(resource.devices) for resource in now.resources)
        await self.kubelet.until_allocatable(RESOURCE, count)

    async def offers_to_kubelet(self, now: NodeOffer, leaving: frozenset[DeviceId]) -> bool:
        """Let the kubelet have a list, as an agent does."""
        self.advertised = now
        return await self.plugins.offer(now, INVENTORY, PluginOptions(), leaving=leaving)

    async def start(self, name: str, gpu: str) -> None:
        """Let the kubelet allocate a GPU to a pod by name."""
        container = Container(name="main", limits=((RESOURCE, 1),))
        await self.kubelet.allocate("default", name, container, (gpu,))

    async def offered(self) -> frozenset[DeviceId]:
        """Return `status.offered` as it is stored."""
        return devices_one_by_one(read_gpu_node(await self.stored()).offered)

    async def stored(self) -> Object:
        found = await self.kube.get(GPU_NODES, "n1")
        assert found is not None
        return found

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return when the agent's watch of the GPUNode has shown something."""
        for _ in range(1000):
            if holds():
                return
            await asyncio.sleep(0)
        pytest.fail("the watch does not show it")


@pytest.fixture
async def node(socket_folder: Path) -> AsyncIterator[Node]:
    async with MemoryKubelet(socket_folder) as kubelet:
        kube = InterleavedKube()
        await kube.create(NODES, {"metadata": {"name": "n1"}})
        made = Node(kube, kubelet, socket_folder)
        running = asyncio.ensure_future(made.link.store.run())
        try:
            await made.link.known()
            await made.link.fresh(observed_on().node)  # the object is made
            yield made
        finally:
            await made.plugins.close()
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


# To the kubelet


async def test_what_is_free_is_offered_and_then_advertised(node: Node) -> None:
    _, now, plan = await node.before(*BOTH)
    assert (await node.offered(), plan.advertise) == (BOTH, BOTH)
    assert [len(resource.devices) for resource in now.resources] == [2]


async def test_a_gpu_that_is_claimed_between_read_and_write_is_not_offered(node: Node) -> None:
    node.kube.after_read = [node.server.claim]
    _, _, plan = await node.before(*BOTH)
    assert (await node.offered(), plan.advertise) == (ONE, ONE)


async def test_a_gpu_whose_claim_has_given_way_to_a_pod_that_the_watch_does_not_show_is_not_offered(node: Node) -> None:
    async def bind() -> None:
        await node.server.bind()
        await node.server.remove_claim()

    await node.server.claim()
    node.kube.before_read = [bind]
    _, _, plan = await node.before(*BOTH)
    assert (await node.offered(), plan.advertise) == (ONE, ONE)


async def test_nothing_is_offered_where_servers_write_at_every_try(node: Node) -> None:
    numbers = iter(range(100))

    async def write() -> None:
        body = {"metadata": {"annotations": {"n": str(next(numbers))}}}
        await node.kube.patch(GPU_NODES, "n1", body)

    node.kube.after_read = [write] * 4
    _, now, _ = await node.before(*BOTH)
    assert (await node.offered(), now.resources, node.kube.after_read) == (frozenset(), (), [])
    assert "servers wrote claims to it at each of 4 tries: the agent tries again" in node.offers.problem
    await node.before(*BOTH)
    assert await node.offered() == BOTH


async def test_what_is_advertised_goes_on_where_the_api_server_does_not_answer(node: Node) -> None:
    _, now, _ = await node.before(FIRST)
    node.kube.stop()
    again, _ = await node.offers.plan_advertisement(observed_on(*BOTH))
    assert again == now
    node.kube.start()
    await node.before(*BOTH)
    assert await node.offered() == BOTH


async def test_what_cannot_be_written_down_is_said_and_not_offered(node: Node) -> None:
    """As where the kind is older than the agent, so that every write is accepted and forgotten."""
    node.kube.prunes = True
    for _ in range(3):
        done = await node.offers.move(observed_on(*BOTH), node.offers_to_kubelet)
        assert (node.advertised.resources, done.known, done.withdrawn) == ((), False, True)
        ((resource, reason),) = done.unwritten
        assert resource == RESOURCE
        assert reason.startswith("2 devices cannot be written to status.offered of the GPUNode: ")
        assert "GPUNode n1: its kind has no field status.offered, " in reason
    node.kube.prunes = False
    done = await node.offers.move(observed_on(*BOTH), node.offers_to_kubelet)
    assert (done.known, done.unwritten, await node.offered()) == (True, (), BOTH)


async def test_of_what_is_offered_in_part_the_rest_is_said(node: Node) -> None:
    await node.offers.move(observed_on(FIRST), node.offers_to_kubelet)
    node.kube.stop()
    done = await node.offers.move(observed_on(*BOTH), node.offers_to_kubelet)
    assert [len(each.devices) for each in node.advertised.resources] == [1]
    assert [(name, reason[:8]) for name, reason in done.unwritten] == [(RESOURCE, "1 device")]
    node.kube.start()


# To the scheduler


async def test_a_gpu_is_released_only_when_the_kubelet_knows_it_no_more(node: Node) -> None:
    _, now, _ = await node.before(*BOTH)
    await node.advertise(now)
    look, now, plan = await node.before(SECOND)
    assert plan.withdrawing == {FIRST}
    assert await node.offers.devices_let_go(look, plan) == frozenset(), "the kubelet lists it still"
    await node.advertise(now, plan.withdrawing)
    released = await node.offers.devices_let_go(look, plan)
    assert released == {FIRST}
    assert await node.offered() == BOTH
    await node.offers.release(look, released)
    assert await node.offered() == {SECOND}


async def test_a_pod_that_was_admitted_without_what_it_asks_keeps_no_gpu_from_the_scheduler(node: Node) -> None:
    """A kubelet admits a pod that names its node without resources that are unknown; a tenant may ask any number."""
    await node.offers.move(observed_on(*BOTH), node.offers_to_kubelet)
    limits = {"resources": {"limits": {RESOURCE: "2147483647"}}}
    spec = {"nodeName": "n1", "containers": [{"name": "main", **limits}]}
    waiting = {"name": "main", "state": {"waiting": {"reason": "ImagePullBackOff"}}}
    await node.kube.create(PODS, {"metadata": {"name": "p", "namespace": "tenant"}, "spec": spec})
    await node.offers.move(observed_on(SECOND), node.offers_to_kubelet)
    assert [len(each.devices) for each in node.advertised.resources] == [2], "the kubelet may admit it yet"
    status = {"status": {"containerStatuses": [waiting]}}
    await node.kube.patch(PODS, "p", status, namespace="tenant", subresource="status")
    await node.offers.move(observed_on(SECOND), node.offers_to_kubelet)
    assert [len(each.devices) for each in node.advertised.resources] == [1]


async def test_a_gpu_stays_for_a_bound_pod_beside_one_that_has_its_own_and_has_not_started(node: Node) -> None:
    await node.offers.move(observed_on(*BOTH), node.offers_to_kubelet)
    await node.kubelet.until_allocatable(RESOURCE, 2)
    waiting = {"name": "main", "state": {"waiting": {"reason": "PodInitializing"}}}
    main = {"name": "main", "resources": {"limits": {RESOURCE: "1"}}}
    for name, statuses in (("admitted", [waiting]), ("bound", [])):
        bound = {"metadata": {"name": name, "namespace": "default"}, "spec": {"nodeName": "n1", "containers": [main]}}
        await node.kube.create(PODS, bound | {"status": {"containerStatuses": statuses}})
    await node.start("admitted", FIRST.gpu)
    await node.offers.move(observed_on(), node.offers_to_kubelet)
    assert [each.device for resource in node.advertised.resources for each in resource.devices] == [SECOND]


@pytest.mark.parametrize("case", ["an init container has the other", "processes of a deleted pod have the other"])
async def test_a_gpu_stays_for_a_bound_pod_whoever_has_the_other(node: Node, case: str) -> None:
    await node.offers.move(observed_on(*BOTH), node.offers_to_kubelet)
    await node.kubelet.until_allocatable(RESOURCE, 2)
    limits = {"resources": {"limits": {RESOURCE: "1"}}}
    name = "init" if case.startswith("an init") else "main"
    containers = {"initContainers": [{"name": "init", **limits}], "containers": [{"name": "main"}]}
    spec = containers if name == "init" else {"containers": [{"name": "main", **limits}]}
    status = {"containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "PodInitializing"}}}]}
    first = {"metadata": {"name": "first", "namespace": "default"}, "spec": {"nodeName": "n1", **spec}}
    uid = (await node.kube.create(PODS, first | {"status": status}))["metadata"]["uid"]
    bound = {"nodeName": "n1", "containers": [{"name": "main", **limits}]}
    await node.kube.create(PODS, {"metadata": {"name": "bound", "namespace": "default"}, "spec": bound})
    container = Container(name=name, limits=((RESOURCE, 1),))
    await node.kubelet.allocate("default", "first", container, (FIRST.gpu,))
    if name == "main":
        record = node.gate.record
        seen = {"uid": uid, "pod": "default/first", "container": name}
        record.keep(tuple(msgspec.structs.replace(each, **seen) for each in record.entries))
        await node.kube.delete(PODS, "first", namespace="default")
    await node.offers.move(observed_on(), node.offers_to_kubelet)
    assert SECOND in {each.device for resource in node.advertised.resources for each in resource.devices}


async def test_an_unhealthy_gpu_is_not_one_that_a_bound_pod_may_get_nor_does_the_node_count_it(node: Node) -> None:
    """The pod would fail: the kubelet has no healthy GPU left for it."""
    await node.offers.move(observed_on(*BOTH, unhealthy=ONE), node.offers_to_kubelet)
    await node.kubelet.until_allocatable(RESOURCE, 1)
    allocatable = {"status": {"allocatable": {RESOURCE: "1"}}}
    await node.kube.patch(NODES, "n1", allocatable, subresource="status")
    main = {"name": "main", "resources": {"limits": {RESOURCE: "1"}}}
    spec = {"nodeName": "n1", "containers": [main]}
    await node.kube.create(PODS, {"metadata": {"name": "bound", "namespace": "default"}, "spec": spec})
    look = msgspec.structs.replace(observed_on(SECOND, unhealthy=ONE), node=await node.kube.get(NODES, "n1") or {})
    await node.offers.move(look, node.offers_to_kubelet)
    assert ((await node.kube.get(NODES, "n1")) or {})["status"]["allocatable"] == {RESOURCE: "0"}
    assert FIRST in {each.device for resource in node.advertised.resources for each in resource.devices}
    await node.start("bound", FIRST.gpu)


async def test_a_gpu_that_a_pod_was_allocated_in_the_last_moment_stays_the_kubelets(node: Node) -> None:
    _, now, _ = await node.before(*BOTH)
    await node.advertise(now)
    look, now, plan = await node.before(SECOND)
    await node.advertise(now, plan.withdrawing)
    released = await node.offers.devices_let_go(look, plan)
    await node.start("late", FIRST.gpu)
    await node.offers.release(look, released)
    assert await node.offered() == BOTH
    assert await node.offers.devices_let_go(look, plan) == frozenset(), "a pod has it"


async def test_a_gpu_that_the_scheduler_gets_goes_on_the_version_it_was_decided_on(node: Node) -> None:
    _, now, _ = await node.before(*BOTH)
    await node.advertise(now)
    look, now, plan = await node.before(SECOND)
    await node.advertise(now, plan.withdrawing)
    node.kube.after_read = [node.server.claim]
    with pytest.raises(Conflict):
        await node.offers.release(look, await node.offers.devices_let_go(look, plan))
    assert await node.offered() == BOTH


async def test_nothing_is_released_where_the_kubelet_does_not_answer(node: Node) -> None:
    _, now, _ = await node.before(*BOTH)
    await node.advertise(now)
    look, _, plan = await node.before(SECOND)
    await node.kubelet.stop()
    with pytest.raises(Unavailable):
        await node.offers.devices_let_go(look, plan)
    assert await node.offered() == BOTH
    await node.kubelet.start()


# Somebody deletes the GPUNode


@pytest.fixture
async def running(node: Node) -> Node:
    """A node on which a pod has the first GPU, while the second is to be offered alone."""
    _, now, _ = await node.before(*BOTH)
    await node.advertise(now)
    await node.start("runs", FIRST.gpu)
    return node


async def test_what_was_the_kubelets_when_the_gpunode_was_deleted_is_the_kubelets_in_the_next_one(
    running: Node,
) -> None:
    await running.kube.delete(GPU_NODES, "n1")
    await running.until(lambda: bool(running.link.lost))
    _, _, plan = await running.before(SECOND)
    assert (await running.offered(), plan.advertise) == (BOTH, ONE)


async def test_the_same_where_the_watch_does_not_show_the_deletion_yet(running: Node) -> None:
    running.kube.watched.clear()
    await running.kube.delete(GPU_NODES, "n1")
    _, _, plan = await running.before(FIRST)  # nothing is to be written but what is withdrawn
    assert plan.withdrawing == {SECOND}
    running.kube.watched.set()
    await running.until(lambda: bool(running.link.lost))
    await running.before(FIRST)
    assert await running.offered() == BOTH


async def test_the_same_where_the_next_one_is_made_for_another_device(node: Node) -> None:
    _, now, _ = await node.before(FIRST)
    await node.advertise(now)
    await node.start("runs", FIRST.gpu)
    node.kube.watched.clear()
    await node.kube.delete(GPU_NODES, "n1")
    _, _, plan = await node.before(SECOND)
    assert (await node.offered(), plan.advertise) == (BOTH, ONE)
    assert (node.link.offered(), node.link.lost) == (BOTH, frozenset()), "the watch shows the one of before"


async def test_the_same_where_another_gpu_is_released_at_that_moment(running: Node) -> None:
    look, now, plan = await running.before(FIRST)
    await running.advertise(now, plan.withdrawing)
    released = await running.offers.devices_let_go(look, plan)
    assert released == {SECOND}
    running.kube.watched.clear()
    await running.kube.delete(GPU_NODES, "n1")
    await running.offers.release(look, released)
    assert await running.offered() == {FIRST}


async def test_the_same_where_a_server_makes_the_next_one(running: Node) -> None:
    await running.kube.delete(GPU_NODES, "n1")
    await running.kube.create(GPU_NODES, {"metadata": {"name": "n1"}, "spec": {"policy": {"name": "seen"}}})
    await running.until(lambda: running.link.request().policy_name == "seen")
    assert running.link.offered() == BOTH
    await running.before(SECOND)
    assert await running.offered() == BOTH


async def test_no_gpus_are_reported_before_the_next_one_has_what_is_the_kubelets(running: Node) -> None:
    """Servers claim what is free as soon as GPUs are reported."""
    gpus = tuple(shared(gpu, WHOLE) for gpu in GPUS)
    state = GpuNodeState(name=NodeName("n1"), gpus=gpus, driver="580.1", reported=True)
    await running.link.report(state, {}, generation=0)
    assert read_gpu_node(await running.stored()).gpus == gpus
    await running.kube.delete(GPU_NODES, "n1")
    await running.until(lambda: bool(running.link.lost))
    await running.link.report(state, {}, generation=0)
    assert read_gpu_node(await running.stored()).gpus == ()
    await running.before(*BOTH)
    await running.link.report(state, {}, generation=0)
    found = read_gpu_node(await running.stored())
    assert (found.gpus, devices_one_by_one(found.offered)) == (gpus, BOTH)
