"""No device is the kubelet's and the scheduler's at once, in any order of what agent, server, kubelet and pods do.

The agent stops before each of its calls of the API server and of the kubelet, and any step of the others may come
between two of them. DeviceOffers, GpuNodeLink, Gate, OfferedResource, NodePods and PodsView are those that agents run.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from builders.deviceplugins import gate
from builders.gpunodes import facts, shared
from builders.kubeobjects import share
from builders.nodepods import AnnotatedPods, KnownResources, ListedPods
from builders.offeredresources import IdsHandover
from builders.signed import SERVER, Trusting
from harness.virtualtime import run
from tessera.agent.deviceplugin import OfferedResource
from tessera.agent.deviceplugin.containers.assignedpods import AssignedPods
from tessera.agent.deviceplugin.offers.deviceoffers import DeviceOffers, OfferableDevices
from tessera.agent.nodestate.gpunode import GpuNodeLink
from tessera.agent.nodestate.noderecord import NodeRecord
from tessera.agent.pods.nodepods import NodePods
from tessera.agent.pods.podsview import PodsView
from tessera.api.tessera.pods.assignments import read_shares, write_shares
from tessera.api.tessera.pods.clusterpods import object_field
from tessera.api.tessera.v1alpha1.gpunodes import claims_field, read_gpu_node
from tessera.clients.kube import EVERYTHING, GPU_NODES, PODS, Kind, Listing, MemoryKube, Object, Selection, WatchEvent
from tessera.clients.kubelet import DeviceCheckpoint, PodResources
from tessera.core.cluster.gpunodestate import Claim, GpuNodeState
from tessera.core.cluster.protocols.allocators import devices_one_by_one
from tessera.core.cluster.snapshot import NodeName
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation
from tessera.core.deviceplugin.containerresponse import ContainerResponse
from tessera.core.deviceplugin.offers.advertise import ListedDevice, NodeOffer, OfferOptions, Resource, offer
from tessera.core.deviceplugin.offers.prefer import PreferenceRequest
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import Inventory
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.workload.need import PodKey
from tessera.errors import Conflict, InvalidInput, TesseraError
from tessera.log import logger

RESOURCE, MEMORY = "nvidia.com/gpu", "tessera.dev/gpu-memory"
WHOLE = Sharing(modes=(Mode.WHOLE,))
FACTS = (facts(0, "T4"), facts(1, "T4"))
UUIDS = tuple(each.uuid for each in FACTS)
GPUS = tuple(shared(each, WHOLE) for each in FACTS)
INVENTORY = Inventory(gpus=FACTS)
STATE = GpuNodeState(name=NodeName("n1"), gpus=GPUS, driver="580.1", reported=True)
OF_THE_NODE = Selection(fields=(("spec.nodeName", "n1"),))
SETTLED = 40
"""Turns of the event loop in which everybody comes to where he waits for somebody."""


class PacedKube(MemoryKube):
    """Lets the agent wait before each call, and its watches where they are to be late."""

    def __init__(self) -> None:
        super().__init__()
        self.agent: asyncio.Task[None] | None = None
        self.permits = asyncio.Semaphore(0)
        self.watched = asyncio.Event()
        self.watched.set()

    async def turn(self) -> None:
        """Wait for a permit, where the agent asks."""
        if asyncio.current_task() is self.agent:
            await self.permits.acquire()

    async def _reach(self, kind: Kind, namespace: str = "") -> None:
        await self.turn()
        await super()._reach(kind, namespace)

    async def watch(self, kind: Kind, since: str, selection: Selection = EVERYTHING) -> AsyncIterator[WatchEvent]:
        async for event in super().watch(kind, since, selection):
            await self.watched.wait()
            yield event


class Checkpoint(DeviceCheckpoint):
    """The kubelet's checkpoint, in this process."""

    def __init__(self) -> None:
        super().__init__(Path())
        self.entries: tuple[KubeletAllocation, ...] = ()

    def read(self) -> tuple[KubeletAllocation, ...]:
        return self.entries


class Kubelet(PodResources):
    """A kubelet that learns of a new list when a test says so, and chooses among what it knows."""

    def __init__(self, kube: PacedKube) -> None:
        super().__init__()
        self._kube = kube
        self.listed: tuple[ListedDevice, ...] = ()
        self.used: dict[str, str] = {}
        """Pod by device id."""

    @property
    def healthy(self) -> tuple[str, ...]:
        return tuple(device.id for device in self.listed if device.healthy)

    async def allocatable(self) -> dict[str, frozenset[str]]:
        await self._kube.turn()
        return {RESOURCE: frozenset(self.healthy)}


class Units:
    """Nobody asks for units here."""

    async def forget_former(self) -> None:
        return None

    async def allocate(self, resource: str, ids: tuple[str, ...]) -> ContainerResponse:
        raise AssertionError((resource, ids))

    async def pre_start(self, resource: str, ids: tuple[str, ...]) -> None:
        raise AssertionError((resource, ids))


class Assigned:
    """The assignments of the pods in view."""

    def __init__(self, view: PodsView, assigned: AssignedPods) -> None:
        self.assigned_requests = assigned.assigned_requests
        self.refresh = view.refresh


class Node:
    """A node with two GPUs, and all who want them."""

    def __init__(self) -> None:
        self.kube = PacedKube()
        self.desired = frozenset[DeviceId]()
        """What the policy offers by name."""
        self.shown: tuple[Object, ...] = ()
        """The pods as the agent's watch shows them."""
        self.verified: tuple[str, tuple[Claim, ...], int] | None = None
        """What the server is about to write: version, claims that there are, the GPU that it chose."""
        self.chosen: tuple[Object, tuple[str, ...]] | None = None
        """What the kubelet is about to allocate: a pod's metadata, ids."""
        self.names = iter(range(1000))
        self.advertised = False
        log = logger()
        self.checkpoint, self.kubelet = Checkpoint(), Kubelet(self.kube)
        self.view = PodsView(
            ListedPods(lambda: self.shown, self._relist), self.checkpoint, self.kubelet, proc=Path("no-proc")
        )
        self.gate = gate(self.view)
        nothing = Resource(name=RESOURCE, devices=())
        self.plugin = OfferedResource(nothing, IdsHandover(), self.gate, Units())
        self.link = GpuNodeLink(self.kube, "n1", log, wake=lambda: None)
        assigned = Assigned(
            self.view, AssignedPods(AnnotatedPods(self.view.pods, self._correct), Trusting("n1"), self.gate.record)
        )
        pods = NodePods(self.view, self.gate.record, assigned, KnownResources(RESOURCE))
        self.offers = DeviceOffers(self.link, NodeRecord(self.kube, "n1", log), self.kubelet, self.gate, pods, log)

    async def _relist(self) -> Listing:
        return await self.kube.list(PODS, OF_THE_NODE)

    async def _correct(self, *_: object) -> Object:
        raise AssertionError

    # The agent

    async def reconcile(self) -> None:
        """Do what an agent does each time it looks, until something refuses."""
        desired = tuple(each for each in FACTS if DeviceId(each.uuid) in self.desired)
        offered = offer([shared(each, WHOLE) for each in desired], Inventory(gpus=desired), OfferOptions())
        look = OfferableDevices(
            offered=offered, gpus=GPUS, inventory=INVENTORY, node={"metadata": {"name": "n1", "uid": "u"}}
        )
        self.advertised = False
        try:
            await self.view.refresh()
            self.gate.record.release(all_listed=True)
            await self.offers.move(look, self.advertise)
            await self.link.report(STATE, look.node, generation=0)
        except TesseraError:
            return  # it looks again

    async def advertise(self, now: NodeOffer, leaving: frozenset[DeviceId]) -> bool:
        if self.advertised:
            await self.kube.turn()  # it waits until nobody else changes what is offered
        self.advertised = True  # in this look
        named = {resource.name: resource for resource in now.resources}
        self.plugin.update(named.get(RESOURCE, Resource(name=RESOURCE, devices=())), leaving=leaving)
        return True

    async def agent_goes_on(self) -> None:
        """Let the agent make its next call, and come to the one after it."""
        if self.kube.agent is None or self.kube.agent.done():
            self.kube.agent = asyncio.ensure_future(self.reconcile())
            await self.settle()
        self.kube.permits.release()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(SETTLED):
            await asyncio.sleep(0)

    async def agent_looks(self) -> None:
        """Let the agent come to the end of its look."""
        for _ in range(30):
            await self.agent_goes_on()
            if self.kube.agent is not None and self.kube.agent.done():
                return

    async def policy_changes(self, number: int) -> None:
        self.desired ^= {DeviceId(UUIDS[number])}

    async def pods_are_shown(self) -> None:
        self.shown = (await self.kube.list(PODS, OF_THE_NODE)).objects

    async def gpunode_watch_stops_or_goes_on(self) -> None:
        (self.kube.watched.clear if self.kube.watched.is_set() else self.kube.watched.set)()
        await self.settle()

    async def time_passes(self) -> None:
        await asyncio.sleep(3)
        self.plugin.drop_unchosen(frozenset(self.kubelet.healthy), asyncio.get_running_loop().time())

    # A server

    async def server_looks(self) -> None:
        """Choose a GPU that is free by the object and the pods of the node; what is desired does not stop it."""
        found = await self.kube.get(GPU_NODES, "n1")
        state = read_gpu_node(found or {"metadata": {"name": "n1"}})
        taken = {*devices_one_by_one(state.offered), *self.claimed(state), *await self.assigned()}
        free = [number for number, uuid in enumerate(UUIDS) if DeviceId(uuid) not in taken]
        self.verified = (state.version, state.claims, free[0]) if free and state.gpus else None

    async def server_claims(self) -> None:
        if self.verified is None:
            return
        (version, claims, number), self.verified = self.verified, None
        pod = await self.made({MEMORY: "15"})
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        claim = Claim(uid=uid, pod=PodKey(f"ns/{name}"), shares=(share(number, 15360),), attempt=f"server/{name}")
        body = {"metadata": {"resourceVersion": version}, "spec": {"claims": claims_field((*claims, claim))}}
        try:
            await self.kube.patch(GPU_NODES, "n1", body)
        except Conflict:
            await self.kube.delete(PODS, name, namespace="ns")

    async def server_binds(self) -> None:
        """Bind the pods of all claims."""
        for claim in (await self.state()).claims:
            pod = await self.kube.get(PODS, claim.pod.partition("/")[2], "ns")
            if pod is not None and not pod["spec"].get("nodeName"):
                annotations = {"tessera.dev/assignment": write_shares(claim.shares)}
                sealed = SERVER.sealed(annotations, uid=claim.uid, node="n1")
                await self.kube.bind(pod["metadata"]["name"], "ns", uid=claim.uid, node="n1", annotations=sealed)

    async def server_sweeps(self) -> None:
        """Remove the claims of pods that are bound or gone."""
        state = await self.state()
        left = []
        for claim in state.claims:
            pod = await self.kube.get(PODS, claim.pod.partition("/")[2], "ns")
            left += [claim] if pod is not None and not pod["spec"].get("nodeName") else []
        if len(left) < len(state.claims):
            await self.kube.patch(GPU_NODES, "n1", {"spec": {"claims": claims_field(left)}})

    async def share_ends(self) -> None:
        for pod in await self.pods(MEMORY):
            await self.kube.delete(PODS, pod["metadata"]["name"], namespace="ns")
            return

    async def gpunode_is_deleted(self) -> None:
        """Delete the object; claims in it are given up by those who made them."""
        if await self.kube.get(GPU_NODES, "n1") is not None:
            await self.kube.delete(GPU_NODES, "n1")

    # The kubelet, and pods by name

    async def pod_is_bound(self) -> None:
        if self.kubelet.healthy:
            pod = await self.made({RESOURCE: "1"})
            await self.kube.bind(pod["metadata"]["name"], "ns", uid=pod["metadata"]["uid"], node="n1", annotations={})

    async def kubelet_learns(self) -> None:
        stream = self.plugin.watch()
        self.kubelet.listed = await anext(stream)
        await stream.aclose()

    async def kubelet_chooses(self) -> None:
        """Let the kubelet choose for the first pod that has nothing yet, by the list that it knows."""
        waiting = [
            pod for pod in await self.pods(RESOURCE) if pod["metadata"]["name"] not in self.kubelet.used.values()
        ]
        free = tuple(each for each in self.kubelet.healthy if each not in self.kubelet.used)
        if waiting and free:
            self.chosen = waiting[0]["metadata"], await self.plugin.prefer(PreferenceRequest(available=free, size=1))

    async def kubelet_allocates(self) -> None:
        if self.chosen is None:
            return
        (metadata, ids), self.chosen = self.chosen, None
        try:
            await self.plugin.allocate(ids)
        except (Conflict, InvalidInput):  # UnexpectedAdmissionError
            await self.kube.delete(PODS, metadata["name"], namespace="ns")
            return
        assert set(ids) <= {device.id for device in self.kubelet.listed}, "the kubelet panics"
        self.kubelet.used |= dict.fromkeys(ids, str(metadata["name"]))
        entry = KubeletAllocation(uid=metadata["uid"], container="main", resource=RESOURCE, device_ids=ids)
        self.checkpoint.entries = (*self.checkpoint.entries, entry)
        await self.plugin.pre_start(ids)

    async def pod_ends(self) -> None:
        for name in [*self.kubelet.used.values()][:1]:
            await self.kube.delete(PODS, name, namespace="ns")
            self.kubelet.used = {each: pod for each, pod in self.kubelet.used.items() if pod != name}

    # What there is

    async def made(self, limits: dict[str, str]) -> Object:
        spec = {"containers": [{"name": "main", "image": "none", "resources": {"limits": limits}}]}
        metadata = {"name": f"p{next(self.names)}", "namespace": "ns"}
        return await self.kube.create(PODS, {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}})

    async def pods(self, resource: str) -> list[Object]:
        """Return the pods that are bound here and ask for this."""
        bound = (await self.kube.list(PODS, OF_THE_NODE)).objects
        return [pod for pod in bound if resource in pod["spec"]["containers"][0]["resources"]["limits"]]

    async def state(self) -> GpuNodeState:
        return read_gpu_node(await self.kube.get(GPU_NODES, "n1") or {"metadata": {"name": "n1"}})

    def claimed(self, state: GpuNodeState) -> set[DeviceId]:
        return {DeviceId(UUIDS[each.gpu]) for claim in state.claims for each in claim.shares}

    async def assigned(self) -> set[DeviceId]:
        pods = await self.pods(MEMORY)
        return {DeviceId(UUIDS[each.gpu]) for pod in pods for each in read_shares(object_field("Pod", pod), None) or ()}

    async def check(self) -> None:
        """Nothing is the kubelet's, or used by name, that a claim or an assignment names."""
        state = await self.state()
        scheduled = self.claimed(state) | await self.assigned()
        assert not devices_one_by_one(state.offered) & scheduled, "offered by name, and the scheduler's"
        assert not set(map(DeviceId, self.kubelet.used)) & scheduled, "used by name, and the scheduler's"


Step = Callable[[Node], Awaitable[None]]

STEPS: dict[str, Step] = {
    "agent": Node.agent_goes_on,
    "agent looks": Node.agent_looks,
    "policy 0": lambda node: node.policy_changes(0),
    "policy 1": lambda node: node.policy_changes(1),
    "pods shown": Node.pods_are_shown,
    "watch": Node.gpunode_watch_stops_or_goes_on,
    "time": Node.time_passes,
    "server looks": Node.server_looks,
    "server claims": Node.server_claims,
    "server binds": Node.server_binds,
    "server sweeps": Node.server_sweeps,
    "share ends": Node.share_ends,
    "deleted": Node.gpunode_is_deleted,
    "pod bound": Node.pod_is_bound,
    "kubelet learns": Node.kubelet_learns,
    "chooses": Node.kubelet_chooses,
    "allocates": Node.kubelet_allocates,
    "pod ends": Node.pod_ends,
}
OFFERED = ["policy 0", "agent looks", "kubelet learns"]
RUNNING = [*OFFERED, "pod bound", "chooses", "allocates"]
CLAIMED = ["agent looks", "server looks", "server claims"]


async def walk(names: list[str]) -> None:
    node = Node()
    following = asyncio.ensure_future(node.link.store.run())
    await node.link.known()
    try:
        for name in names:
            await STEPS[name](node)
            await node.check()
    finally:
        for task in (following, node.kube.agent):
            if task is not None:
                task.cancel()
        await node.settle()


# Often together, in one order: the server's way to a GPU, the kubelet's, and the end of whoever has one.
_COMMON = (
    ["server looks", "server claims"],
    ["server binds", "server sweeps"],
    ["pod bound", "chooses"],
    ["kubelet learns", "agent", "allocates"],
    ["agent looks", "kubelet learns"],
    ["share ends", "pod ends"],
    ["policy 0", "agent"],
    ["agent", "agent"],
)
_BEGINNINGS = st.sampled_from([[], OFFERED, RUNNING, CLAIMED, [*CLAIMED, "policy 0"], [*RUNNING, "policy 0"]])
_PARTS = st.sampled_from([*([name] for name in STEPS), *[["agent"]] * 8, *_COMMON * 2])
_STEPS = st.lists(_PARTS, min_size=30, max_size=60).map(lambda parts: list(itertools.chain(*parts)))


@given(_BEGINNINGS, _STEPS)
@example([*CLAIMED, "policy 0", "agent", "agent", "agent"], ["server binds", "server sweeps", "agent looks"])
@example(
    [*OFFERED, "policy 0", "agent", "agent", "pod bound", "chooses", "kubelet learns", "agent", "allocates"],
    ["agent looks", "server looks", "server claims"],
)
@example(
    [*RUNNING, "policy 0", "agent looks", "deleted"], ["agent looks", "agent looks", "server looks", "server claims"]
)
def test_no_device_is_the_kubelets_and_the_schedulers_at_once(beginning: list[str], names: list[str]) -> None:
    run(walk([*beginning, *names]))
