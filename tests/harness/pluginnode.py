"""A node with a kubelet in memory, GPUs of the builders, pods, and the agent's plugins, which die and start again."""

import asyncio
import contextlib
import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from builders.deviceplugins import device_plugins
from builders.gpunodes import facts, shared
from builders.nodepods import AnnotatedPods, ListedPods
from builders.nodeviews import of_the_host
from builders.signed import Trusting, signed
from judges.allocated import shares_of
from tessera.agent.agenttimes import AgentTimes
from tessera.agent.deviceplugin import PluginPaths, Plugins
from tessera.agent.deviceplugin.containers.changerequests import ChangeRequest, CreateInstance, DisableMig
from tessera.agent.pods.podsview import PodsView
from tessera.api.tessera.pods.assignments import write_shares
from tessera.clients.gpu import MemoryDriver
from tessera.clients.kube import Listing
from tessera.clients.kubelet import Container, DeviceCheckpoint, MemoryKubelet, PodResources
from tessera.core.cluster.snapshot import Share
from tessera.core.deviceplugin.allocations.poddevices import assigned_instances
from tessera.core.deviceplugin.containerresponse import ContainerResponse
from tessera.core.deviceplugin.offers.advertise import NodeOffer, OfferOptions, offer
from tessera.core.gpu.inventory import GpuFacts, GpuProcess, Instance, Inventory
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.node.nodesharing import PluginOptions
from tessera.errors import Conflict, InvalidInput, Unavailable
from tessera.measures import Measures

GPU, NEED, SLICE = "nvidia.com/gpu", "tessera.dev/gpu-memory", "nvidia.com/mig-1g.5gb"
WHOLE = Sharing(modes=(Mode.WHOLE,))
SLICED = Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", 4),))
MPS = Sharing(modes=(Mode.MPS,), replicas=(("", 4),))
MEMORY = Sharing(modes=(Mode.MEMORY_SHARE, Mode.MPS))
CDI = PluginOptions(list_strategies=("cdi-cri",))
MINORS = "gpu0/gi1/access 30\ngpu0/gi1/ci0/access 31\ngpu0/gi2/access 39\ngpu0/gi2/ci0/access 40\n"


class Node:
    """A node with a kubelet, some GPUs, and the pods that the API server knows."""

    def __init__(self, kubelet: MemoryKubelet, root: Path) -> None:
        self.kubelet = kubelet
        self.root = root
        self.pods: dict[tuple[str, str], dict[str, Any]] = {}
        self.node: dict[str, Any] = {}
        """The Node object; empty where there is none."""
        self.watched: dict[tuple[str, str], dict[str, Any]] = {}
        """The pods as the agent's watch shows them."""
        self.late: list[tuple[tuple[str, str], dict[str, Any]]] | None = None
        """Changes that the watch does not show yet; None where it shows all at once."""
        self.looked = asyncio.Event()
        """Whether the agent looked at its pods."""
        self.version = 100
        self.silent = False
        """Whether the API server does not answer."""
        self.full: set[str] = set()
        """Pods of which it takes no change."""
        self.inventory = Inventory(gpus=())
        self.created: list[tuple[str, Placement]] = []
        self.impaired = False
        """Whether problems of the plugins are expected."""
        self.able = True
        """Whether instances can be created."""
        self.minors = root / "mig-minors"
        self.cdi = root / "cdi"
        self.record = PodResources(kubelet.pod_resources)
        self.proc = of_the_host(root / "proc")
        self.driver = MemoryDriver(())
        """Lists the processes on GPUs; none of a GPU that it does not have."""
        self.trust = Trusting()
        self.passed_s = 0.0
        """By how much the agent's clock is ahead of this machine's."""
        self.times = AgentTimes(clock_s=lambda: time.monotonic() + self.passed_s)
        self.plugins = self.started()
        self.task: asyncio.Task[None] | None = None

    def hurry(self, **waits: float) -> None:
        """Let calls of the kubelet wait as long as this, from now on."""
        self.times = msgspec.structs.replace(self.times, **waits)
        self.plugins = self.started()

    def started(self, *, driver_folder: str = "") -> Plugins:
        """Return the plugins of an agent that has just started."""
        paths = PluginPaths(
            plugins=self.kubelet.plugins,
            cdi=self.cdi,
            driver_specs=(self.root / "nvidia.yaml",),
            driver_folder=driver_folder,
            minors=self.minors,
            answers_file=self.root / "shares.json",
            allocations=self.root / "allocations.json",
            mps_root=self.root / "mps",
            dev=self.root / "dev",
        )
        view = PodsView(
            ListedPods(self.seen, self.relist, lambda: self.node),
            DeviceCheckpoint(self.kubelet.plugins),
            self.record,
            proc=self.proc,
            clock_s=self.times.clock_s,
        )
        pods = AnnotatedPods(view.pods, self.correct)
        return device_plugins(paths, view, pods, self.trust, gpus=self, times=self.times)

    async def processes(self, gpu: str) -> tuple[GpuProcess, ...]:
        """Return the processes on a GPU as the driver lists them now."""
        return await self.driver.processes(gpu)

    def seen(self) -> Iterable[dict[str, Any]]:
        """Return the pods to the agent."""
        self.looked.set()
        return self.watched.values()

    async def relist(self) -> Listing:
        """Return the pods as the API server has them."""
        if self.silent:
            raise Unavailable("API server", found="silence", expected="an answer")
        return Listing(objects=tuple(self.pods.values()), resource_version=str(self.version))

    def process_of(self, name: str, number: int = 100) -> Path:
        """Let a process of a pod run; return what to remove when it ends."""
        folder = self.proc / str(number)
        folder.mkdir(parents=True)
        uid = self.pods["default", name]["metadata"]["uid"]
        (folder / "cgroup").write_text(f"0::/kubepods/besteffort/pod{uid}/abc\n")
        return folder

    def end(self, name: str) -> None:
        """Let a pod be gone, for the API server and for the kubelet."""
        del self.pods["default", name], self.watched["default", name]
        self.kubelet.remove("default", name)

    async def correct(self, changed: dict[str, Any], annotations: Mapping[str, str]) -> dict[str, Any] | None:
        """Change a pod; watchers receive it at once, or later."""
        if self.silent:
            raise Unavailable("API server", found="silence", expected="an answer")
        if changed["metadata"]["name"] in self.full:
            raise InvalidInput("a pod", found="HTTP 422, Too long", expected="success")
        namespace, name = changed["metadata"]["namespace"], changed["metadata"]["name"]
        if (namespace, name) not in self.pods:
            raise Conflict(f"pod {namespace}/{name}", found="HTTP 404", expected="success")
        pod = self.pods[namespace, name]
        assert pod["metadata"]["uid"] == changed["metadata"]["uid"]
        self.version += 1
        metadata = {
            **pod["metadata"],
            "annotations": {**pod["metadata"]["annotations"], **annotations},
            "resourceVersion": str(self.version),
        }
        self.pods[namespace, name] = {**pod, "metadata": metadata}
        if self.late is None:
            self.watched[namespace, name] = self.pods[namespace, name]
            return None
        self.late.append(((namespace, name), self.pods[namespace, name]))
        return self.pods[namespace, name]

    def tell(self, count: int) -> None:
        """Let the watch show so many of the changes that are late, in their order."""
        for name, pod in (self.late or [])[:count]:
            self.watched[name] = pod
        self.late = (self.late or [])[count:]

    async def change(self, request: ChangeRequest) -> Inventory:
        """Change the GPUs as a container needs them that is about to start."""
        match request:
            case DisableMig(gpu=gpu):
                await asyncio.sleep(0)
                self.inventory = Inventory(
                    gpus=tuple(
                        each if each.uuid != gpu else facts(each.index, each.model.name) for each in self.inventory.gpus
                    )
                )
            case CreateInstance(gpu=gpu, placement=placement):
                self.created.append((gpu, placement))
                if self.able:
                    self._create(gpu, placement)
        return self.inventory

    def _create(self, gpu: str, placement: Placement) -> None:
        instance = Instance(
            placement=placement,
            gpu_instance=2,
            compute_instance=0,
            memory_mib=4864,
            uuid=f"MIG-new-{placement.start}",
        )
        self.inventory = Inventory(
            gpus=tuple(
                msgspec.structs.replace(each, instances=(*each.instances, instance)) if each.uuid == gpu else each
                for each in self.inventory.gpus
            )
        )

    def offered(self, *pairs: tuple[GpuFacts, Sharing], options: OfferOptions | None = None) -> NodeOffer:
        self.inventory = Inventory(gpus=tuple(gpu for gpu, _ in pairs))
        return offer([shared(gpu, sharing) for gpu, sharing in pairs], self.inventory, options or OfferOptions())

    def offers(self, *pairs: tuple[GpuFacts, Sharing]) -> list[str]:
        """Return the names of what is offered beside what pods were assigned."""
        options = OfferOptions(
            assigned_instances=assigned_instances(self.plugins.shares.assigned_requests(), self.inventory)
        )
        return [resource.name for resource in self.offered(*pairs, options=options).resources]

    async def offer(
        self,
        *pairs: tuple[GpuFacts, Sharing],
        how: PluginOptions | None = None,
        options: OfferOptions | None = None,
        withheld: int = 0,
    ) -> None:
        """Offer GPUs, of which so many devices are withheld, and start the task that keeps them advertised."""
        if self.task is None:
            self.task = asyncio.create_task(self.plugins.run(Measures()))
        found = self.offered(*pairs, options=options)
        assert await self.plugins.offer(found, self.inventory, how or PluginOptions())
        assert self.plugins.problems == () or self.impaired
        for resource in found.resources:
            healthy = sum(device.healthy for device in resource.devices)
            if healthy == withheld:  # a killed agent leaves none healthy, too: wait for this one's list
                await self.kubelet.until_capacity(resource.name, len(resource.devices))
            await self.kubelet.until_allocatable(resource.name, healthy - withheld)

    async def kill(self) -> None:
        """End the agent as a signal does."""
        if self.task is not None:
            self.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.task
            self.task = None

    def assign(self, name: str, units: int, *shares: Share, compute_percent: int = 0, resource: str = NEED) -> None:
        """Let the API server know a pod with an assignment."""
        requested = {resource: str(units)} | (
            {"tessera.dev/gpu-compute": str(compute_percent)} if compute_percent else {}
        )
        pod = {
            "metadata": {
                "namespace": "default",
                "name": name,
                "uid": f"uid-{name}",
                "creationTimestamp": "2026-01-31T12:00:00Z",
                "annotations": {"tessera.dev/assignment": write_shares(shares)},
            },
            "spec": {
                "nodeName": "n",
                "containers": [{"name": "main", "resources": {"limits": requested}}],
            },
        }
        self.pods["default", name] = self.watched["default", name] = signed(pod)

    def assigned(self, name: str) -> list[dict[str, Any]]:
        """Return the shares on record for a pod."""
        return shares_of(self.pods["default", name])

    def ask(self, name: str, resource: str = GPU, count: int = 1) -> None:
        """Let the API server know a pod that asks for devices by name."""
        self.pods["default", name] = {
            "metadata": {"namespace": "default", "name": name, "uid": f"uid-{name}", "annotations": {}},
            "spec": {
                "nodeName": "n",
                "containers": [{"name": "main", "resources": {"limits": {resource: str(count)}}}],
            },
        }
        self.watched["default", name] = self.pods["default", name]

    async def run(self, name: str, resource: str = GPU, count: int = 1) -> ContainerResponse:
        """Admit a pod and create its container."""
        if ("default", name) not in self.pods:
            self.ask(name, resource, count)
        await self.kubelet.admit("default", name, Container(name="main", limits=((resource, count),)))
        return await self.kubelet.create("default", name, "main")

    def spec(self, response: ContainerResponse) -> dict[str, Any]:
        """Return the edits of the one CDI device of an answer, as the runtime finds them."""
        (desired,) = response.cdi_devices
        kind, _, name = desired.partition("=")
        for path in self.cdi.glob("*.json"):
            written = json.loads(path.read_text())
            for device in written["devices"]:
                if (written["kind"], device["name"]) == (kind, name):
                    found: dict[str, Any] = device["containerEdits"]
                    return found
        pytest.fail(f"no CDI device {desired}")


def share(gpu: int, memory_mib: int = 1024, **changes: Any) -> Share:
    mode = Mode.MEMORY_SHARE
    plain = Share(
        gpu=gpu,
        mode=mode,
        memory_mib=memory_mib,
        compute_percent=0,
        isolation=mode.isolation,
        resource=NEED,
        container="main",
    )
    return msgspec.structs.replace(plain, **changes)


def mig(layout: Iterable[Placement]) -> Sharing:
    return Sharing(modes=(Mode.MIG,), layout=tuple(layout), allow_repartition=False)
