"""What a node offers, advertised to a kubelet and handed to its containers."""

import asyncio
import contextlib
import json
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from builders.gpunodes import facts, sevenths, shared
from builders.nodeviews import of_the_host
from builders.signed import Trusting, signed
from judges.grants import shares_of
from tessera.agent.deviceplugin import AssignedPods, Paths, Plugins
from tessera.agent.nodeview import NodeView
from tessera.api.tessera.pods.assignments import write_shares
from tessera.clients.kube import Listing
from tessera.clients.kubelet import Container, DeviceCheckpoint, MemoryKubelet, PodResources
from tessera.core.cluster.advertise import NodeOffer, OfferOptions, offer
from tessera.core.cluster.snapshot import Share
from tessera.core.deviceplugin.edits import Mount
from tessera.core.deviceplugin.grant import Grant
from tessera.core.deviceplugin.holdings import given
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import GpuFacts, Instance, Inventory
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import AUTO, Mode, Sharing
from tessera.core.node.nodesharing import PluginOptions
from tessera.errors import Conflict, InvalidInput, Unavailable
from tessera.log import logger

pytestmark = pytest.mark.anyio

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
        self.cut: list[tuple[str, Placement]] = []
        self.able = True
        """Whether instances can be cut."""
        self.minors = root / "mig-minors"
        self.cdi = root / "cdi"
        self.record = PodResources(kubelet.pod_resources)
        self.proc = of_the_host(root / "proc")
        self.trust = Trusting()
        self.plugins = self.started()
        self.task: asyncio.Task[None] | None = None

    def started(self, *, driver_folder: str = "") -> Plugins:
        """Return the plugins of an agent that has just started."""
        paths = Paths(
            plugins=self.kubelet.plugins,
            cdi=self.cdi,
            driver_specs=(self.root / "nvidia.yaml",),
            driver_folder=driver_folder,
            minors=self.minors,
            memory=self.root / "shares.json",
            allocations=self.root / "allocations.json",
            mps_root=self.root / "mps",
            dev=self.root / "dev",
        )
        view = NodeView(self.seen, self.relist, DeviceCheckpoint(self.kubelet.plugins), self.record, proc=self.proc)
        assigned = AssignedPods(view.pods, self.correct, self.trust)
        return Plugins(paths, view, assigned, self, logger())

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
        """Change a pod; whoever watches is told at once, or later."""
        if self.silent:
            raise Unavailable("API server", found="silence", expected="an answer")
        if changed["metadata"]["name"] in self.full:
            raise InvalidInput("a pod", found="HTTP 422, Too long", expected="success")
        namespace, name = changed["metadata"]["namespace"], changed["metadata"]["name"]
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

    async def enforce(self, shares: tuple[Share, ...]) -> None:
        """Enforce nothing."""

    async def disable_mig(self, gpu: str) -> Inventory:
        """Switch MIG off."""
        await asyncio.sleep(0)
        self.inventory = Inventory(
            gpus=tuple(each if each.uuid != gpu else facts(each.index, each.model.name) for each in self.inventory.gpus)
        )
        return self.inventory

    async def create_instance(self, gpu: str, placement: Placement) -> Inventory:
        self.cut.append((gpu, placement))
        if not self.able:
            return self.inventory
        cut = Instance(placement=placement, uuid="MIG-new", gpu_instance=2, compute_instance=0, memory_mib=4864)
        self.inventory = Inventory(
            gpus=tuple(
                msgspec.structs.replace(each, instances=(*each.instances, cut)) if each.uuid == gpu else each
                for each in self.inventory.gpus
            )
        )
        return self.inventory

    def offered(self, *pairs: tuple[GpuFacts, Sharing], options: OfferOptions | None = None) -> NodeOffer:
        self.inventory = Inventory(gpus=tuple(gpu for gpu, _ in pairs))
        return offer([shared(gpu, sharing) for gpu, sharing in pairs], self.inventory, options or OfferOptions())

    def offers(self, *pairs: tuple[GpuFacts, Sharing]) -> list[str]:
        """Return the names of what is offered beside what pods were assigned."""
        options = OfferOptions(given=given(self.plugins.shares.assigned_requests(), self.inventory))
        return [resource.name for resource in self.offered(*pairs, options=options).resources]

    async def offer(
        self, *pairs: tuple[GpuFacts, Sharing], how: PluginOptions | None = None, options: OfferOptions | None = None
    ) -> None:
        """Offer GPUs and start the task that keeps them advertised."""
        if self.task is None:
            self.task = asyncio.create_task(self.plugins.run())
        found = self.offered(*pairs, options=options)
        assert await self.plugins.offer(found, self.inventory, how or PluginOptions())
        assert self.plugins.problems == ()
        for resource in found.resources:
            healthy = sum(device.healthy for device in resource.devices)
            await self.kubelet.until_allocatable(resource.name, healthy)

    async def kill(self) -> None:
        """End the agent as a signal does."""
        if self.task is not None:
            self.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.task
            self.task = None

    def assign(self, name: str, units: int, *shares: Share, compute_percent: int = 0) -> None:
        """Let the API server know a pod with an assignment."""
        asked = {NEED: str(units)} | ({"tessera.dev/gpu-compute": str(compute_percent)} if compute_percent else {})
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
                "containers": [{"name": "main", "resources": {"limits": asked}}],
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

    async def run(self, name: str, resource: str = GPU, count: int = 1) -> Grant:
        """Admit a pod and create its container."""
        if ("default", name) not in self.pods:
            self.ask(name, resource, count)
        await self.kubelet.admit("default", name, Container(name="main", limits=((resource, count),)))
        return await self.kubelet.create("default", name, "main")

    def spec(self, grant: Grant) -> dict[str, Any]:
        """Return the edits of the one CDI device of an answer, as the runtime finds them."""
        (desired,) = grant.cdi_devices
        kind, _, name = desired.partition("=")
        for path in self.cdi.glob("*.json"):
            written = json.loads(path.read_text())
            for device in written["devices"]:
                if (written["kind"], device["name"]) == (kind, name):
                    found: dict[str, Any] = device["containerEdits"]
                    return found
        pytest.fail(f"no CDI device {desired}")


@pytest.fixture
async def node(socket_folder: Path) -> AsyncIterator[Node]:
    async with MemoryKubelet(socket_folder) as kubelet:
        made = Node(kubelet, socket_folder)
        yield made
        await made.kill()


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


async def test_whole_gpus_by_environment(node: Node) -> None:
    pairs = (facts(0, "T4"), WHOLE), (facts(1, "T4"), WHOLE)
    await node.offer(*pairs)
    got = dict((await node.run("p", count=2)).env)
    assert got["NVIDIA_VISIBLE_DEVICES"] == got["TESSERA_GPU_UUIDS"] == f"{facts(0).uuid},{facts(1).uuid}"
    assert got["TESSERA_GPU_MODE"] == "whole,whole"


async def test_whole_gpus_by_index_and_device_nodes(node: Node) -> None:
    how = PluginOptions(id_strategy="index", pass_device_specs=True)
    await node.offer((facts(0, "T4"), WHOLE), (facts(1, "T4"), WHOLE), how=how)
    got = await node.run("p", count=2)
    assert dict(got.env)["NVIDIA_VISIBLE_DEVICES"] == "0,1"
    paths = [each.host_path for each in got.device_nodes]
    assert paths[:2] == ["/dev/nvidia0", "/dev/nvidia1"]
    assert "/dev/nvidiactl" in paths


async def test_device_nodes_that_the_host_has_not_are_left_out(node: Node) -> None:
    (node.root / "dev").mkdir()
    for name in ("nvidiactl", "nvidia-uvm-tools"):
        (node.root / "dev" / name).touch()
    await node.offer((facts(0, "T4"), WHOLE), how=PluginOptions(pass_device_specs=True))
    paths = [each.host_path for each in (await node.run("p")).device_nodes]
    assert paths == ["/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]


async def test_mig_instances_with_their_device_nodes_by_cdi(node: Node) -> None:
    layout = sevenths()[:2]
    gpu = facts(0, layout=layout)
    node.minors.write_text(MINORS)
    (node.root / "nvidia.yaml").write_text("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ncontainerEdits: {env: [LIB=1]}\n")
    await node.offer((gpu, mig(layout)), how=CDI)
    got = await node.run("p", SLICE)
    number = [each.uuid for each in gpu.instances].index(got.cdi_devices[0].partition("=")[2])
    assert "NVIDIA_VISIBLE_DEVICES" not in dict(got.env)
    nodes = [each["path"] for each in node.spec(got)["deviceNodes"]]
    caps = [("nvidia-cap30", "nvidia-cap31"), ("nvidia-cap39", "nvidia-cap40")][number]
    assert [path for path in nodes if "caps" in path] == [f"/dev/nvidia-caps/{each}" for each in caps]
    assert nodes[0] == "/dev/nvidia0"
    written = json.loads((node.cdi / "tessera.dev-gpu.json").read_text())
    assert (written["cdiVersion"], written["containerEdits"]) == ("0.5.0", {"env": ["LIB=1"]})
    assert len(written["devices"]) == 3


async def test_the_driver_s_folder_where_neither_a_runtime_nor_a_specification_brings_it(node: Node) -> None:
    node.plugins = node.started(driver_folder="/opt/driver")
    await node.offer((facts(0, "T4"), WHOLE))
    got = await node.run("p")
    assert got.mounts == (Mount(host_path="/opt/driver", container_path="/usr/local/nvidia", read_only=True),)
    assert got.device_nodes[0].host_path == "/dev/nvidia0"
    node.end("p")
    await node.offer((facts(0, "T4"), WHOLE), how=CDI)
    assert (await node.run("q")).mounts == ()
    spec = node.cdi / "tessera.dev-gpu.json"
    (mount,) = json.loads(spec.read_text())["containerEdits"]["mounts"]
    assert (mount["hostPath"], mount["containerPath"]) == ("/opt/driver", "/usr/local/nvidia")
    (node.root / "nvidia.yaml").write_text("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ncontainerEdits: {env: [LIB=1]}\n")
    await node.offer((facts(0, "T4"), WHOLE), how=CDI)
    assert json.loads(spec.read_text())["containerEdits"] == {"env": ["LIB=1"]}


async def test_mig_instances_by_index_as_the_driver_numbers_them(node: Node) -> None:
    layout = sevenths()[:2]
    gpu = facts(0, layout=layout)
    first, second = gpu.instances
    swapped = msgspec.structs.replace(
        gpu, instances=(msgspec.structs.replace(first, gpu_instance=9), msgspec.structs.replace(second, gpu_instance=3))
    )
    await node.offer((swapped, mig(layout)), how=PluginOptions(id_strategy="index"))
    got = dict((await node.run("p", SLICE)).env)
    want = {first.uuid: "0:1", second.uuid: "0:0"}
    assert got["NVIDIA_VISIBLE_DEVICES"] == want[got["TESSERA_GPU_UUIDS"]]


async def test_replicas_under_mps_get_their_limits(node: Node) -> None:
    options = PluginOptions(allocation_policy="packed")
    await node.offer((facts(0, "T4"), MPS), how=options)
    got = await node.run("p")
    env = dict(got.env)
    memory_mib = facts(0, "T4").memory_mib // 4
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={memory_mib}M"
    assert any(mount.host_path.startswith(str(node.root / "mps")) for mount in got.mounts)
    with pytest.raises(Conflict, match="more replicas of a shared GPU give a container no more"):
        await node.run("q", count=2)


async def test_replicas_are_spread(node: Node) -> None:
    await node.offer((facts(0, "T4"), SLICED), (facts(1, "T4"), SLICED))
    got = dict((await node.run("p", count=2)).env)
    assert len(got["NVIDIA_VISIBLE_DEVICES"].split(",")) == 2


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is withdrawn stay in the kubelet's lists for a moment only."""
    monkeypatch.setattr("tessera.core.deviceplugin.listing.STAYS_S", 0.5)


@pytest.mark.usefixtures("soon")
async def test_health_and_devices_that_come_and_go(node: Node) -> None:
    pairs = (facts(0, "T4"), WHOLE), (facts(1, "T4"), WHOLE)
    await node.offer(*pairs)
    await node.offer(*pairs, options=OfferOptions(unhealthy=frozenset({DeviceId(facts(0).uuid)})))
    assert (node.kubelet.capacity(GPU), node.kubelet.allocatable(GPU)) == (2, 1)
    await node.offer(*pairs)
    await node.offer(pairs[0])
    assert (node.kubelet.capacity(GPU), node.kubelet.allocatable(GPU)) == (2, 1), "the kubelet may have chosen it"
    await node.kubelet.until_capacity(GPU, 1)


@pytest.mark.usefixtures("soon")
async def test_a_resource_that_disappears_leaves_no_devices_and_may_come_back(node: Node) -> None:
    layout = sevenths()
    await node.offer((facts(0, layout=layout), mig(layout)))
    await node.offer((facts(0), WHOLE))
    await node.kubelet.until_allocatable(SLICE, 0)
    assert (node.kubelet.capacity(SLICE), node.kubelet.allocatable(GPU)) == (7, 1)
    await node.kubelet.until_capacity(SLICE, 0)
    await node.offer((facts(0), WHOLE))  # not before the other has ended
    assert [path.name for path in node.kubelet.plugins.glob("tessera-*")] == ["tessera-nvidia.com_gpu.sock"]
    await node.offer((facts(0, layout=layout), mig(layout)))
    await node.kubelet.until_allocatable(GPU, 0)


async def test_the_kubelet_restarts(node: Node) -> None:
    pairs = (facts(0, "T4"), WHOLE), (facts(1), MEMORY)
    await node.offer(*pairs)
    await node.run("p")
    await node.kubelet.restart()
    await node.kubelet.until_allocatable(GPU, 1)
    await node.kubelet.until_allocatable(NEED, facts(1).memory_mib // 1024)
    assert sorted(node.kubelet.registrations) == ["aliyun.com/gpu-mem", GPU, NEED]
    assert len(await node.record.list()) == 1


async def test_the_agent_is_killed_and_starts_again(node: Node) -> None:
    await node.offer((facts(0, "T4"), SLICED))
    await node.run("p")
    await node.kill()
    await node.kubelet.until_allocatable(GPU, 0)
    node.plugins = node.started()
    await node.offer((facts(0, "T4"), SLICED))
    assert len(await node.record.list()) == 1
    await node.run("q")


async def test_a_plugin_that_the_kubelet_forgot_registers_again(node: Node) -> None:
    """The kubelet disconnects whoever is registered when an earlier stream ends."""
    await node.offer((facts(0, "T4"), WHOLE))
    plugin = node.plugins._servers._servers[GPU].plugin  # what the kubelet did cannot be seen outside
    await node.kubelet._endpoints[GPU].close()  # as the kubelet does
    await node.kubelet.until_allocatable(GPU, 0)
    await node.kubelet.until_allocatable(GPU, 1, deadline_s=20)
    assert plugin.streams == 1


async def test_the_kubelet_is_not_there_yet(socket_folder: Path) -> None:
    kubelet = MemoryKubelet(socket_folder)
    kubelet.plugins.mkdir()
    node = Node(kubelet, socket_folder)
    with capture_logs() as logs:
        await node.plugins.offer(node.offered((facts(0, "T4"), WHOLE)), node.inventory, PluginOptions())
        task = asyncio.create_task(node.plugins.run())
        assert "kubelet.sock" in node.plugins.problems[0]
        async with kubelet:
            await kubelet.until_allocatable(GPU, 1)
            assert node.plugins.problems == ()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    assert [each["event"] for each in logs] == ["resource_not_advertised", "resource_advertised"]


async def test_a_folder_in_which_no_socket_can_be(socket_folder: Path) -> None:
    node = Node(MemoryKubelet(socket_folder), socket_folder)
    await node.plugins.offer(node.offered((facts(0, "T4"), WHOLE)), node.inventory, PluginOptions())
    assert "No such file or directory" in node.plugins.problems[0]


async def test_what_cannot_be_read_or_written_leaves_what_was(node: Node) -> None:
    layout = sevenths()[:1]
    pairs = (facts(0, layout=layout), mig(layout))
    node.minors.write_text(MINORS)
    await node.offer(pairs, how=CDI)
    before = (node.cdi / "tessera.dev-gpu.json").read_text()
    node.minors.write_text("nonsense")
    (node.root / "nvidia.yaml").write_text("[")
    with capture_logs() as logs:
        await node.offer(pairs, how=CDI)
        await node.offer(pairs, how=CDI)
        node.minors.write_bytes(b"\xff\xfe")
        (node.root / "nvidia.yaml").write_bytes(b"\xff")
        await node.offer(pairs, how=CDI)
    assert (node.cdi / "tessera.dev-gpu.json").read_text() == before
    assert [each["event"] for each in logs] == ["device_handover_impaired"] * 4
    got = await node.run("p", SLICE)
    assert "/dev/nvidia-caps/nvidia-cap30" in [each["path"] for each in node.spec(got)["deviceNodes"]]


# Shares by assignment


async def test_each_pod_gets_its_own_share_by_cdi_in_whatever_order_they_come(node: Node) -> None:
    await node.offer((facts(0), MEMORY), (facts(1, "T4"), MEMORY), how=CDI)
    for number in range(6):
        node.assign(f"p{number}", 2, share(number % 2, 2048))
    for number in reversed(range(6)):
        got = await node.run(f"p{number}", NEED, 2)
        edits = node.spec(got)
        env = dict(pair.split("=", 1) for pair in edits["env"])
        assert env["TESSERA_GPU_UUIDS"] == facts(number % 2).uuid
        assert env["NVIDIA_VISIBLE_DEVICES"] == "void"
        assert env["ALIYUN_COM_GPU_MEM_IDX"] == str(number % 2)
        assert edits["deviceNodes"][0]["path"] == f"/dev/nvidia{number % 2}"
        assert node.assigned(f"p{number}")[0]["gpu"] == number % 2
    assert await node.kubelet.create("default", "p3", "main") == await node.kubelet.create("default", "p3", "main")


async def test_equal_shares_that_were_mistaken_are_exchanged(node: Node) -> None:
    await node.offer((facts(0), MEMORY), (facts(1, "T4"), MEMORY))
    for number in range(4):
        node.assign(f"p{number}", 2, share(number % 2, 2048))
    for number in (3, 0, 2, 1):
        got = dict((await node.run(f"p{number}", NEED, 2)).env)
        assert got["NVIDIA_VISIBLE_DEVICES"] == facts(node.assigned(f"p{number}")[0]["gpu"]).uuid
        assert got["TESSERA_GPU_UUIDS"] == got["NVIDIA_VISIBLE_DEVICES"]
    gpus = [node.assigned(f"p{number}")[0]["gpu"] for number in range(4)]
    assert sorted(gpus) == [0, 0, 1, 1]


@pytest.mark.parametrize("seed", range(8))
async def test_exchanges_hold_while_the_watch_is_late(node: Node, seed: int) -> None:
    """Pods are admitted and created in any order, and changes of their annotations are seen whenever."""
    rng = random.Random(seed)
    await node.offer(*((facts(index), MEMORY) for index in range(3)))
    node.late = []
    for number in range(12):
        node.assign(f"p{number:02}", 1 + number % 2, share(number % 3, 1024 * (1 + number % 2)))
    waiting = [f"p{number:02}" for number in range(12)]
    rng.shuffle(waiting)
    admitted: list[str] = []
    got: dict[str, str] = {}
    while waiting or admitted:
        node.tell(rng.randrange(4))
        if waiting and (rng.random() < 0.6 or not admitted):
            name = waiting.pop()
            await node.kubelet.admit("default", name, Container(name="main", limits=((NEED, 1 + int(name[1:]) % 2),)))
            admitted.append(name)
        else:
            name = admitted.pop(rng.randrange(len(admitted)))
            got[name] = dict((await node.kubelet.create("default", name, "main")).env)["NVIDIA_VISIBLE_DEVICES"]
    node.tell(1000)
    assert {name: facts(node.assigned(name)[0]["gpu"]).uuid for name in got} == got
    gpus = Counter((node.assigned(name)[0]["gpu"], node.assigned(name)[0]["memoryMiB"]) for name in got)
    assert gpus == Counter((number % 3, 1024 * (1 + number % 2)) for number in range(12))


async def test_an_exchange_that_cannot_be_written_is_written_later_and_not_forgotten(node: Node) -> None:
    pairs = (facts(0), MEMORY), (facts(1, "T4"), MEMORY)
    await node.offer(*pairs)
    for number in range(3):
        node.assign(f"p{number}", 2, share(number % 2, 2048))
    node.silent = True
    await node.kubelet.admit("default", "p1", Container(name="main", limits=((NEED, 2),)))
    with pytest.raises(Conflict, match="API server: silence"):
        await node.kubelet.create("default", "p1", "main")
    await node.kubelet.admit("default", "p0", Container(name="main", limits=((NEED, 2),)))
    await node.kill()
    node.plugins = node.started()
    await node.offer(*pairs)
    node.silent = False
    got = {}
    for name in ("p1", "p0"):
        got[name] = dict((await node.kubelet.create("default", name, "main")).env)["NVIDIA_VISIBLE_DEVICES"]
    assert got == {name: facts(node.assigned(name)[0]["gpu"]).uuid for name in got}
    assert sorted(node.assigned(f"p{number}")[0]["gpu"] for number in range(3)) == [0, 0, 1]


async def test_a_pod_whose_assignment_cannot_be_corrected_is_refused_alone(node: Node) -> None:
    """As one whose annotations are as long as they may be: the API server takes no change of it, ever."""
    await node.offer(*((facts(index, "T4"), MEMORY) for index in range(4)))
    for number in range(4):
        node.assign(f"p{number}", 2, share(number, 2048))
    node.full = {"p1"}
    await node.kubelet.admit("default", "p1", Container(name="main", limits=((NEED, 2),)))
    with pytest.raises(Conflict, match="its assignment cannot be corrected: HTTP 422"):
        await node.kubelet.create("default", "p1", "main")
    for name in ("p2", "p0", "p3"):
        await node.kubelet.admit("default", name, Container(name="main", limits=((NEED, 2),)))
    got = {}
    for name in ("p2", "p0", "p3"):
        got[name] = dict((await node.kubelet.create("default", name, "main")).env)["NVIDIA_VISIBLE_DEVICES"]
    assert got == {name: facts(node.assigned(name)[0]["gpu"], "T4").uuid for name in got}
    assert len(set(got.values())) == 3
    assert {uid for uid, _ in node.plugins.gate._refused} == {"uid-p1"}


async def test_a_defect_in_a_turn_is_logged_each_time_with_its_traceback(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = 0

    async def tidy(_: object) -> None:
        nonlocal turns
        turns += 1
        raise KeyError("1g.5gb")

    monkeypatch.setattr("tessera.agent.deviceplugin.plugins._TIDY_S", 0.0)
    await node.offer((facts(0), MEMORY), how=CDI)
    monkeypatch.setattr(node.plugins.gate, "tidy", tidy)
    with capture_logs() as logs:
        while turns < 3:  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0.01)
    found = [each for each in logs if each["event"] == "device_handover_impaired"]
    assert len(found) >= 2
    assert all(isinstance(each["exc_info"], KeyError) and each["log_level"] == "error" for each in found)


async def test_ids_that_nobody_holds_are_not_made_ready(node: Node) -> None:
    await node.offer((facts(0), MEMORY), how=CDI)
    with pytest.raises(Unavailable, match="no container with these device ids"):
        await node.plugins.shares.pre_start(NEED, ("GPU-x-_-0",))


@pytest.mark.parametrize(
    ("units", "want"), [(None, "no container with these device ids"), (3, "an assignment to 3 units")]
)
async def test_an_assignment_that_went_or_changed(
    node: Node, monkeypatch: pytest.MonkeyPatch, units: int | None, want: str
) -> None:
    monkeypatch.setattr("tessera.agent.deviceplugin.shares._LATE_S", 0.1)
    await node.offer((facts(0), MEMORY), how=CDI)
    node.assign("p", 2, share(0, 2048))
    await node.kubelet.admit("default", "p", Container(name="main", limits=((NEED, 2),)))
    node.watched.clear()
    node.pods.clear()
    if units:
        node.assign("p", units, share(0, 3072))
    with pytest.raises(Conflict, match=want):
        await node.kubelet.create("default", "p", "main")


async def test_memory_that_cannot_be_written_is_said(node: Node) -> None:
    (node.root / f".shares.json.{os.getpid()}").mkdir()
    await node.offer((facts(0), MEMORY))
    node.assign("p", 2, share(0, 2048))
    with capture_logs() as logs:
        assert (await node.run("p", NEED, 2)).env
    assert "answers_not_kept" in [each["event"] for each in logs]


async def test_tidying_mends_what_the_agent_did_not_live_to_write(node: Node) -> None:
    await node.offer((facts(0), MEMORY), (facts(1, "T4"), MEMORY))
    for number in range(2):
        node.assign(f"p{number}", 2, share(number, 2048))
    await node.kubelet.admit("default", "p1", Container(name="main", limits=((NEED, 2),)))
    await node.plugins.shares.tidy()
    assert [node.assigned(name)[0]["gpu"] for name in ("p0", "p1")] == [1, 0]


async def test_pods_that_ask_the_same_may_change_shares_of_different_kinds(node: Node) -> None:
    cut = facts(1, layout=sevenths())
    await node.offer((facts(0), MEMORY), (cut, Sharing(layout=cut.layout)))
    node.assign("a", 2, share(0, 2048))
    node.assign("b", 2, share(1, 4864, profile="1g.5gb", start=3, mode=Mode.MIG))
    await node.kubelet.admit("default", "b", Container(name="main", limits=((NEED, 2),)))
    await node.kubelet.admit("default", "a", Container(name="main", limits=((NEED, 2),)))
    uuids = {}
    for name in ("b", "a"):
        uuids[name] = dict((await node.kubelet.create("default", name, "main")).env)["NVIDIA_VISIBLE_DEVICES"]
    assert [(node.assigned(name)[0]["gpu"], node.assigned(name)[0]["mode"]) for name in ("a", "b")] == [
        (1, "mig"),
        (0, "memory-share"),
    ]
    assert uuids == {"b": facts(0).uuid, "a": cut.instances[3].uuid}


async def test_a_share_that_another_ask_needs_is_not_exchanged(node: Node) -> None:
    await node.offer((facts(0), MEMORY), (facts(1, "T4"), MEMORY))
    node.assign("a", 2, share(0, 2048))
    node.assign("b", 2, share(1, 2048, compute_percent=30), compute_percent=30)
    await node.kubelet.admit("default", "b", Container(name="main", limits=((NEED, 2),)))
    with pytest.raises(Conflict, match="another size or kind"):
        await node.kubelet.create("default", "b", "main")
    assert [node.assigned(name)[0]["gpu"] for name in ("a", "b")] == [0, 1]


async def test_the_agent_is_killed_between_allocation_and_creation(node: Node) -> None:
    pairs = (facts(0), MEMORY), (facts(1, "T4"), MEMORY)
    await node.offer(*pairs)
    for number in range(2):
        node.assign(f"p{number}", 2, share(number, 2048))
    await node.kubelet.admit("default", "p1", Container(name="main", limits=((NEED, 2),)))
    await node.kill()
    node.plugins = node.started()
    await node.offer(*pairs)
    got = dict((await node.kubelet.create("default", "p1", "main")).env)
    assert got["NVIDIA_VISIBLE_DEVICES"] == facts(0).uuid
    assert [node.assigned(name)[0]["gpu"] for name in ("p0", "p1")] == [1, 0]
    got = dict((await node.run("p0", NEED, 2)).env)
    assert got["NVIDIA_VISIBLE_DEVICES"] == facts(1, "T4").uuid


async def test_an_instance_is_cut_before_its_container_is_created(node: Node) -> None:
    gpu = facts(0, layout=())
    node.minors.write_text(MINORS)
    await node.offer((gpu, Sharing(layout=())), how=CDI)
    place = sevenths()[3]
    node.assign("p", 4, share(0, 4864, mode=Mode.MIG, profile=place.profile, start=place.start))
    got = await node.run("p", NEED, 4)
    assert node.cut == [(gpu.uuid, place)]
    edits = node.spec(got)
    assert "TESSERA_GPU_UUIDS=MIG-new" in edits["env"]
    assert "/dev/nvidia-caps/nvidia-cap39" in [each["path"] for each in edits["deviceNodes"]]
    await node.kubelet.create("default", "p", "main")
    assert len(node.cut) == 1
    assert given(node.plugins.shares.assigned_requests(), node.inventory) == {(gpu.uuid, place)}
    assert sorted(node.offers((node.inventory.gpus[0], Sharing(layout=(place,))))) == ["aliyun.com/gpu-mem", NEED]


async def test_an_assignment_that_the_watch_does_not_show_yet_is_found(node: Node) -> None:
    await node.offer((facts(0), MEMORY), how=CDI)
    node.assign("p", 2, share(0, 2048))
    node.watched.clear()
    assert node.spec(await node.run("p", NEED, 2))


async def test_while_the_api_server_is_silent_the_watch_is_waited_for(node: Node) -> None:
    await node.offer((facts(0), MEMORY), how=CDI)
    node.silent = True
    node.looked.clear()
    running = asyncio.create_task(node.run("p", NEED, 2))
    await asyncio.wait_for(node.looked.wait(), 10)
    node.assign("p", 2, share(0, 2048))
    assert node.spec(await running)


# sentence: (units and shares of the pod's assignment, or None; units asked; what the pod's event says)
IMPOSSIBLE: dict[str, tuple[tuple[int, list[Share]] | None, int, str]] = {
    "no assignment": (None, 2, "no pod of this node with an assignment"),
    "an assignment to another size": ((3, [share(0, 3072)]), 2, "assigned pods request other amounts"),
    "a GPU that is not there": ((2, [share(5, 2048)]), 2, "GPU 5: no such GPU"),
    "an instance that cannot be": (
        (2, [share(1, 2048, mode=Mode.MIG, profile="9g.1gb", start=0)]),
        2,
        "GPU 1 .* profile '9g.1gb' at 0; expected a MIG instance that A100-40GB can have; hint: 1g.5gb, ",
    ),
    "a replica of an instance that cannot be": (
        (2, [share(1, 2048, mode=Mode.MIG_MPS, profile="9g.1gb")]),
        2,
        "GPU 1 .* profile '9g.1gb' at no start",
    ),
    "an instance that cannot be made now": (
        (2, [share(1, 2048, mode=Mode.MIG, profile="1g.5gb", start=0)]),
        2,
        "no MIG instance 1g.5gb at 0",
    ),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
async def test_shares_that_cannot_be_given(node: Node, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    monkeypatch.setattr("tessera.agent.deviceplugin.shares._LATE_S", 0.1)
    assignment, units, want = IMPOSSIBLE[case]

    node.able = False
    await node.offer((facts(0), MEMORY), (facts(1), MEMORY), how=CDI)
    if assignment:
        node.assign("p", assignment[0], *assignment[1])
    with pytest.raises(Conflict, match=want):
        await node.run("p", NEED, units)


async def test_an_assignment_that_cannot_be_harms_no_other_pod(node: Node) -> None:
    pairs = (facts(0), MEMORY), (facts(1, layout=sevenths()[:2]), mig(sevenths()[:2]))
    await node.offer(*pairs, how=CDI)
    node.assign("hostile", 2, share(1, 2048, mode=Mode.MIG_MPS, profile="no such", start=9))
    with pytest.raises(Conflict, match=r"GPU 1 .* profile 'no such' at 9"):
        await node.run("hostile", NEED, 2)
    assert node.cut == []
    node.assign("good", 3, share(0, 3072))
    assert node.spec(await node.run("good", NEED, 3))
    assert node.offers(*pairs) == ["aliyun.com/gpu-mem", SLICE, NEED]


async def test_a_lost_gpu_is_given_to_nobody(node: Node) -> None:
    lost = msgspec.structs.replace(facts(0), lost=True)
    await node.offer((lost, MEMORY), (facts(1), MEMORY), how=CDI)
    node.assign("p", 2, share(0, 2048))
    with pytest.raises(Conflict, match="a GPU that the driver has lost"):
        await node.run("p", NEED, 2)


async def test_what_no_container_needs_is_removed(node: Node) -> None:
    await node.offer((facts(0), AUTO), how=CDI)
    (node.cdi / "nvidia.json").write_text("{}")
    (node.cdi / "tessera.dev-share-stale.json").write_text("{}")
    node.assign("p", 2, share(0, 2048))
    await node.run("p", NEED, 2)
    node.assign("q", 2, share(0, 2048))
    await node.kubelet.admit("default", "q", Container(name="main", limits=((NEED, 2),)))
    desk = node.plugins.shares  # its task looks every half minute
    await desk.tidy()
    assert {path.name for path in node.cdi.iterdir()} >= {"nvidia.json", "tessera.dev-gpu.json"}
    assert len(list(node.cdi.glob("tessera.dev-share-*"))) == 1
    node.end("p")
    node.end("q")
    await desk.tidy()
    desk._unheld_s = dict.fromkeys(desk._unheld_s, -1e9)  # a minute later
    await desk.tidy()
    await desk.tidy()
    assert list(node.cdi.glob("tessera.dev-share-*")) == []


async def test_nothing_is_removed_while_the_record_lacks_a_running_pod(node: Node) -> None:
    """As just after the kubelet has started."""
    await node.offer((facts(0), MEMORY), how=CDI)
    node.assign("p", 2, share(0, 2048))
    got = await node.run("p", NEED, 2)
    node.watched["default", "p"] = {**node.pods["default", "p"], "status": {"phase": "Running"}}
    node.kubelet.remove("default", "p")
    for _ in range(3):
        await node.plugins.shares.tidy()  # its task looks every half minute
    assert node.spec(got)


async def test_more_than_a_gpu_has_is_given_to_nobody(node: Node) -> None:
    await node.offer((facts(0, "T4"), MEMORY), (facts(1, "T4"), MEMORY), how=CDI)
    node.assign("p", 15, share(0, facts(0, "T4").memory_mib))
    await node.run("p", NEED, 15)
    node.assign("q", 1, share(0, 1024))
    with pytest.raises(Conflict, match=r"more memory than the .*, used by pod default/p"):
        await node.run("q", NEED, 1)


async def test_memory_that_is_broken_is_left_and_said(node: Node) -> None:
    (node.root / "shares.json").write_text("{")
    with capture_logs() as logs:
        node.plugins = node.started()
    assert logs[0]["event"] == "answers_forgotten"
    await node.offer((facts(0), MEMORY))
    node.assign("p", 2, share(0, 2048))
    assert (await node.run("p", NEED, 2)).env


async def test_neither_of_the_kubelet_s_records_can_be_read(node: Node) -> None:
    await node.offer((facts(0), MEMORY), how=CDI)
    node.assign("p", 2, share(0, 2048))
    await node.kubelet.admit("default", "p", Container(name="main", limits=((NEED, 2),)))
    (node.kubelet.plugins / "kubelet_internal_checkpoint").write_bytes(b"\xff{")

    async def broken(*_: str) -> tuple[()]:
        raise Unavailable("socket", found="no answer", expected="the record")

    node.record.get = broken  # type: ignore[assignment,method-assign]  # a kubelet that hangs
    with pytest.raises(Conflict, match="no answer"):
        await node.kubelet.create("default", "p", "main")


# The last gate


async def test_a_device_that_the_kubelet_forgot_is_not_given_to_a_second_pod(node: Node) -> None:
    layout = sevenths()[:2]
    gpu = facts(0, layout=layout)
    await node.offer((gpu, mig(layout)))
    first = dict((await node.run("p", SLICE)).env)["NVIDIA_VISIBLE_DEVICES"]
    node.kubelet.forgotten.add(first)
    second = dict((await node.run("q", SLICE)).env)["NVIDIA_VISIBLE_DEVICES"]
    assert {first, second} == {each.uuid for each in gpu.instances}, "steered round the one that is in use"
    node.kubelet.forgotten.add(first)
    with pytest.raises(Conflict, match=f"device {first} of {SLICE}, used by pod default/p, container main"):
        await node.run("r", SLICE)
    node.end("q")
    assert dict((await node.run("s", SLICE)).env)["NVIDIA_VISIBLE_DEVICES"] == second, "the refusal healed the kubelet"


async def test_units_that_the_kubelet_forgot_are_not_given_twice(node: Node) -> None:
    await node.offer((facts(0, "T4"), MEMORY), how=CDI)
    for name in ("p", "q", "r"):
        node.assign(name, 5, share(0, 5120))
    await node.run("p", NEED, 5)
    node.kubelet.forgotten |= node.plugins.gate.taken(NEED)
    await node.run("q", NEED, 5)
    ids = [set(each.device_ids) for each in await node.record.list()]
    assert len(ids[0] | ids[1]) == 10
    node.kubelet.forgotten |= node.plugins.gate.taken(NEED)
    await node.run("r", NEED, 5)


async def test_the_record_holds_over_a_restart_of_the_agent(node: Node) -> None:
    pairs = (facts(0, "T4"), WHOLE)
    await node.offer(pairs)
    await node.run("p")
    await node.kill()
    node.plugins = node.started()
    node.kubelet.forgotten.add(facts(0).uuid)
    await node.offer(pairs)
    with pytest.raises(Conflict, match="used by pod default/p"):
        await node.run("q")


async def test_what_pods_had_before_there_was_a_record_is_taken_in(node: Node) -> None:
    pairs = (facts(0, "T4"), WHOLE), (facts(1), MEMORY)
    await node.offer(*pairs, how=CDI)
    node.assign("share", 2, share(1, 2048))
    await node.run("p")
    await node.run("share", NEED, 2)
    await node.kill()
    (node.root / "allocations.json").unlink()
    node.plugins = node.started()
    await node.offer(*pairs, how=CDI)
    assert sorted(each.pod for each in node.plugins.gate.entries) == ["default/p", "default/share"]
    node.kubelet.forgotten.add(facts(0).uuid)
    with pytest.raises(Conflict, match="used by pod default/p"):
        await node.run("q")


async def test_a_pod_that_is_deleted_by_force_keeps_its_device_until_its_last_process_ends(node: Node) -> None:
    await node.offer((facts(0, "T4"), WHOLE))
    await node.run("p")
    process = node.process_of("p")
    node.end("p")
    await node.kubelet.admit("default", "q", Container(name="main", limits=((GPU, 1),)))
    node.ask("q")
    creating = asyncio.ensure_future(node.kubelet.create("default", "q", "main"))
    await asyncio.wait([creating], timeout=0.3)
    assert not creating.done()
    (process / "cgroup").unlink()
    process.rmdir()
    assert dict((await creating).env)["NVIDIA_VISIBLE_DEVICES"] == facts(0).uuid


async def test_processes_that_do_not_end_keep_the_device(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tessera.agent.deviceplugin.gate._TERMINATION_WAIT_S", 0.2)
    await node.offer((facts(0, "T4"), WHOLE))
    await node.run("p")
    node.process_of("p")
    node.end("p")
    with pytest.raises(Conflict, match="used by pod default/p"):
        await node.run("q")


async def test_two_pods_on_one_device_are_found_and_neither_starts_again(node: Node) -> None:
    """As a kubelet leaves them behind that gave one device twice before there was a gate."""
    await node.offer((facts(0, "T4"), WHOLE))
    for name in ("p", "q"):
        node.ask(name)
        node.process_of(name, 100 + ord(name))
        held = Container(name="main", limits=((GPU, 1),))
        node.kubelet.record("default", name, held, (facts(0).uuid,))
    await node.plugins.gate.tidy(node.plugins._uses_of)
    ((later, clash),) = node.plugins.gate.conflicts()
    assert (later.pod, clash.other and clash.other.pod) == ("default/q", "default/p")
    with pytest.raises(Conflict, match="allocated by the kubelet to pods default/p and default/q"):
        await node.kubelet.create("default", "p", "main")


async def test_an_answer_that_no_container_used_is_forgotten(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    await node.offer((facts(0, "T4"), WHOLE))
    node.ask("p")
    await node.kubelet.admit("default", "p", Container(name="main", limits=((GPU, 1),)))
    node.end("p")
    assert node.plugins.gate.by_name == {DeviceId(facts(0).uuid)}
    monkeypatch.setattr("tessera.agent.deviceplugin.gate._UNCLAIMED_S", -1.0)
    await node.plugins.gate.tidy(node.plugins._uses_of)
    assert node.plugins.gate.by_name == frozenset()
    await node.run("q")


async def test_nothing_is_allocated_that_cannot_be_recorded(node: Node) -> None:
    await node.offer((facts(0, "T4"), WHOLE))
    (node.root / f".allocations.json.{os.getpid()}").mkdir()
    with pytest.raises(Conflict, match="a file that can be written before a device is allocated"):
        await node.run("p")
    (node.root / f".allocations.json.{os.getpid()}").rmdir()
    await node.run("q")


async def test_a_record_that_is_broken_is_left_and_said(node: Node) -> None:
    (node.root / "allocations.json").write_bytes(b"\xff[")
    with capture_logs() as logs:
        node.plugins = node.started()
    assert logs[0]["event"] == "allocations_forgotten"
    await node.offer((facts(0, "T4"), WHOLE))
    await node.run("p")


async def test_a_container_that_starts_again_passes(node: Node) -> None:
    await node.offer((facts(0, "T4"), WHOLE))
    first = await node.run("p")
    node.process_of("p")
    assert await node.kubelet.create("default", "p", "main") == first


async def test_pods_without_assignment_are_refused_at_once_and_hold_nobody_up(node: Node) -> None:
    await node.offer((facts(0), MEMORY), how=CDI)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    for number in range(20):
        with pytest.raises(Conflict, match="schedulerName: tessera-scheduler"):
            await node.run(f"stray{number}", NEED, 1)
    assert loop.time() - began_s < 3.0, "less than one of them was waited for before"
    node.assign("p", 2, share(0, 2048))
    assert node.spec(await node.run("p", NEED, 2))


async def test_a_container_is_given_what_its_pod_s_init_container_had(node: Node) -> None:
    await node.offer((facts(0, "T4"), WHOLE))
    node.ask("p")
    containers = node.pods["default", "p"]["spec"]
    containers["initContainers"] = [{**containers["containers"][0], "name": "init"}]
    for name in ("init", "main"):
        await node.kubelet.allocate("default", "p", Container(name=name, limits=((GPU, 1),)), (facts(0).uuid,))
    for name in ("init", "main"):
        assert dict((await node.kubelet.create("default", "p", name)).env)["NVIDIA_VISIBLE_DEVICES"] == facts(0).uuid
    node.ask("q")
    with pytest.raises(Conflict, match="used by pod default/p"):
        await node.kubelet.allocate("default", "q", Container(name="main", limits=((GPU, 1),)), (facts(0).uuid,))


async def test_shares_of_init_containers_are_those_of_their_pod(node: Node) -> None:
    await node.offer((facts(0, "T4"), MEMORY), how=CDI)
    node.assign("p", 8, share(0, 8192))
    containers = node.pods["default", "p"]["spec"]
    containers["initContainers"] = [{"name": "init", "resources": {"limits": {NEED: "0"}}}]
    await node.run("p", NEED, 8)
    node.assign("q", 7, share(0, 7168))
    assert node.spec(await node.run("q", NEED, 7))


@pytest.mark.usefixtures("soon")
async def test_a_container_starts_again_though_its_device_is_offered_no_more(node: Node) -> None:
    """As after a policy that has fewer replicas, other names, or another mode."""
    await node.offer((facts(0, "T4"), WHOLE), (facts(1, "T4"), WHOLE))
    first = await node.run("p")
    (other,) = {facts(0).uuid, facts(1).uuid} - {dict(first.env)["NVIDIA_VISIBLE_DEVICES"]}
    await node.offer((facts([facts(0).uuid, facts(1).uuid].index(other), "T4"), WHOLE))
    assert await node.kubelet.create("default", "p", "main") == first
    await node.offer((facts(2), MEMORY))
    await node.kubelet.until_capacity(GPU, 0)
    assert await node.kubelet.create("default", "p", "main") == first


async def test_a_kubelet_outlives_a_resource_that_is_withdrawn_while_it_waits_for_an_answer(node: Node) -> None:
    """It reads the devices that it chose when it has the answer; one that is not listed then ends it."""
    await node.offer((facts(0), MEMORY))
    node.looked.clear()
    node.silent = True  # so that the pod's assignment is waited for
    asking = asyncio.create_task(node.kubelet.admit("default", "p", Container(name="main", limits=((NEED, 2),))))
    await node.looked.wait()
    await node.offer((facts(0), WHOLE))
    await node.kubelet.until_allocatable(NEED, 0)
    node.assign("p", 2, share(0, 2048))
    await asking
    assert len(await node.record.list()) == 1


async def test_a_static_pod_is_known_by_the_uid_that_the_kubelet_gives_it(node: Node) -> None:
    await node.offer((facts(0, "T4"), WHOLE))
    node.ask("static")
    metadata = node.pods["default", "static"]["metadata"]
    metadata["annotations"] = {"kubernetes.io/config.mirror": "hash-of-the-file"}
    await node.kubelet.admit("default", "static", Container(name="main", limits=((GPU, 1),)), uid="hash-of-the-file")
    assert dict((await node.kubelet.create("default", "static", "main")).env)["NVIDIA_VISIBLE_DEVICES"] == facts(0).uuid
    assert [each.pod for each in node.plugins.gate.entries] == ["default/static"]


async def test_what_lies_across_a_device_in_use_is_not_preferred(node: Node) -> None:
    """A GPU that a pod has as a whole, and that was cut behind its back: the kubelet knows no instance to be taken."""
    await node.offer((facts(0), WHOLE), (facts(1), WHOLE))
    got = dict((await node.run("p")).env)["NVIDIA_VISIBLE_DEVICES"]
    layout = sevenths()[:1]
    await node.offer((facts(0, layout=layout), mig(layout)), (facts(1, layout=layout), mig(layout)))
    grant = dict((await node.run("q", SLICE)).env)["NVIDIA_VISIBLE_DEVICES"]
    (other,) = (facts(i, layout=layout) for i in (0, 1) if facts(i).uuid != got)
    assert grant == other.instances[0].uuid


async def test_the_pod_that_was_made_later_gives_way(node: Node) -> None:
    await node.offer((facts(0, "T4"), WHOLE))
    for name, made in (("a", "2026-01-31T12:00:09Z"), ("z", "2026-01-31T12:00:00Z")):
        node.ask(name)
        node.pods["default", name]["metadata"]["creationTimestamp"] = made
        node.kubelet.record("default", name, Container(name="main", limits=((GPU, 1),)), (facts(0).uuid,))
    await node.plugins.gate.tidy(node.plugins._uses_of)
    ((later, _),) = node.plugins.gate.conflicts()
    assert later.pod == "default/a"


async def test_where_the_checkpoint_cannot_be_read_the_kubelet_is_asked_about_each_pod(node: Node) -> None:
    await node.offer((facts(0, "T4"), WHOLE))
    node.ask("p")
    await node.kubelet.admit("default", "p", Container(name="main", limits=((GPU, 1),)))
    (node.kubelet.plugins / "kubelet_internal_checkpoint").write_bytes(b"\xff{")
    assert dict((await node.kubelet.create("default", "p", "main")).env)["NVIDIA_VISIBLE_DEVICES"] == facts(0).uuid
    assert [each.pod for each in node.plugins.gate.entries] == ["default/p"]


async def test_a_pod_that_named_its_node_takes_nothing_from_those_that_were_assigned(node: Node) -> None:
    """It comes beside honest ones of its size, so that Allocate cannot tell; no container of it is ever started."""
    await node.offer((facts(0), MEMORY), how=CDI)
    node.ask("stray", NEED, 2)
    node.assign("p", 2, share(0, 2048))
    await node.kubelet.admit("default", "stray", Container(name="main", limits=((NEED, 2),)))
    with pytest.raises(Conflict, match="not scheduled by tessera-scheduler"):
        await node.kubelet.create("default", "stray", "main")
    assert node.plugins.shares.unassigned == {"uid-stray": "default/stray"}
    assert node.spec(await node.run("p", NEED, 2))
    node.end("stray")
    await node.plugins.gate.view.refresh()
    await node.plugins.shares.tidy()
    assert node.plugins.shares.unassigned == {}


@pytest.mark.parametrize(("first", "then"), [(2, 2), (1, 2), (2, 1)])
async def test_an_init_container_has_its_pod_s_share_before_the_others(node: Node, first: int, then: int) -> None:
    await node.offer((facts(0), MEMORY), how=CDI)
    node.assign("p", then, share(0, 1024 * max(first, then)))
    init = {"name": "init", "resources": {"limits": {NEED: str(first)}}}
    node.pods["default", "p"]["spec"]["initContainers"] = [init]
    node.pods["default", "p"] = signed(node.pods["default", "p"])
    node.watched["default", "p"] = node.pods["default", "p"]
    ids = tuple(f"{facts(0).uuid}-_-{number}" for number in range(max(first, then)))
    for name, count in (("init", first), ("main", then)):
        await node.kubelet.allocate("default", "p", Container(name=name, limits=((NEED, count),)), ids[:count])
    for name in ("init", "main"):
        edits = node.spec(await node.kubelet.create("default", "p", name))
        assert f"TESSERA_GPU_UUIDS={facts(0).uuid}" in edits["env"]


@pytest.mark.parametrize("known", [True, False])
async def test_nobody_is_unassigned_while_no_server_s_key_is_known(node: Node, *, known: bool) -> None:
    """As where the servers' keys were deleted and the agent starts anew: no pod can be judged."""
    node.trust.knows_servers = known
    await node.offer((facts(0), MEMORY), how=CDI)
    node.assign("honest", 2, share(0, 2048))
    node.ask("p", NEED, 2)
    await node.kubelet.admit("default", "p", Container(name="main", limits=((NEED, 2),)))
    with pytest.raises(Conflict, match="schedulerName: tessera-scheduler"):
        await node.kubelet.create("default", "p", "main")
    assert list(node.plugins.shares.unassigned.values()) == (["default/p"] if known else [])


async def test_a_container_of_another_size_than_it_was_assigned_is_evicted_in_the_end(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.offer((facts(0), MEMORY), how=CDI)
    node.assign("p", 2, share(0, 2048))
    await node.kubelet.admit("default", "p", Container(name="main", limits=((NEED, 2),)))
    node.assign("p", 3, share(0, 3072))
    with pytest.raises(Conflict, match="an assignment to 3 units"):
        await node.kubelet.create("default", "p", "main")
    monkeypatch.setattr("tessera.agent.deviceplugin.gate._HELD_UP_S", -1.0)
    assert node.plugins.gate.held_up() == {"uid-p": ("default/p", "an assignment to 3 units, and it asks 2")}


async def test_with_envvar_too_an_unassigned_pod_keeps_nothing_from_those_that_were_assigned(node: Node) -> None:
    """`Allocate` took it for the honest one, and answered with what that was assigned."""
    await node.offer((facts(0, "T4"), MEMORY), (facts(1, "T4"), MEMORY))
    node.ask("stray", NEED, 10)
    node.assign("p", 10, share(0, 10240))
    await node.kubelet.admit("default", "stray", Container(name="main", limits=((NEED, 10),)))
    with pytest.raises(Conflict, match="not scheduled by tessera-scheduler"):
        await node.kubelet.create("default", "stray", "main")
    assert dict((await node.run("p", NEED, 10)).env)["TESSERA_GPU_UUIDS"] == facts(0, "T4").uuid


async def test_what_half_an_exchange_leaves_free_is_used_by_one_pod_alone(node: Node) -> None:
    """A server that saw one write of two may give the place away: whom it was for has not started, and does not."""
    await node.offer(*((facts(index, "T4"), MEMORY) for index in range(2)))
    for number in range(2):
        node.assign(f"p{number}", 10, share(number, 10240))
    node.full = {"p0"}
    given = dict((await node.run("p1", NEED, 10)).env)["NVIDIA_VISIBLE_DEVICES"]
    assert given == facts(0, "T4").uuid
    assert [node.assigned(f"p{number}")[0]["gpu"] for number in range(2)] == [0, 0], "one of two was written"
    node.assign("late", 8, share(1, 8192))
    assert dict((await node.run("late", NEED, 8)).env)["NVIDIA_VISIBLE_DEVICES"] == facts(1, "T4").uuid
    with pytest.raises(Conflict):
        await node.run("p0", NEED, 10)


async def test_a_pod_whose_image_never_comes_keeps_nothing_that_it_was_mistaken_for(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It named its node. What `Allocate` answered it was meant for an honest pod, whose turn comes after a minute."""
    await node.offer((facts(0, "T4"), MEMORY), (facts(1, "T4"), MEMORY))
    node.assign("p", 10, share(0, 10240))
    node.ask("stray", NEED, 10)
    await node.kubelet.admit("default", "stray", Container(name="main", limits=((NEED, 10),)))
    monkeypatch.setattr("tessera.agent.deviceplugin.gate._UNCLAIMED_S", -1.0)
    await node.plugins.gate.tidy(node.plugins._uses_of)
    assert [(each.pod, len(each.uses)) for each in node.plugins.gate.entries] == [("default/stray", 1)]
    node.end("p")
    node.assign("q", 10, share(0, 10240))
    assert dict((await node.run("q", NEED, 10)).env)["NVIDIA_VISIBLE_DEVICES"] == facts(0, "T4").uuid


async def test_a_pod_without_assignment_is_found_before_its_container_is_created(node: Node) -> None:
    pair = facts(0, "T4"), MEMORY
    await node.offer(pair)
    for name in ("started", "created", "stray", "late"):
        node.assign(name, 3, share(0, 3072))
        await node.kubelet.admit("default", name, Container(name="main", limits=((NEED, 3),)))
    await node.kubelet.create("default", "started", "main")
    await node.kill()
    assigned = node.pods["default", "late"]
    assigned["metadata"]["resourceVersion"] = "99"
    for name in ("started", "created", "stray", "late"):
        node.ask(name, NEED, 3)
    node.pods["default", "late"] = assigned  # the watch does not show it yet
    node.pods["default", "created"]["status"] = {
        "containerStatuses": [{"name": "main", "containerID": "containerd://1"}]
    }
    node.plugins = node.started()
    await node.offer(pair)
    node.silent = True
    await node.plugins.shares.tidy()
    assert node.plugins.shares.unassigned == {}, "nobody is blamed while the API server is silent"
    node.silent = False
    await node.plugins.shares.tidy()
    assert node.plugins.shares.unassigned == {"uid-stray": "default/stray"}


async def test_an_exchange_is_never_written_to_the_next_pod_of_a_name(node: Node) -> None:
    """As a StatefulSet makes them: the same name, another pod, another GPU."""
    await node.offer(*((facts(index, "T4"), MEMORY) for index in range(3)))
    node.assign("p", 2, share(0, 2048))
    node.assign("q", 2, share(1, 2048))
    await node.kubelet.admit("default", "q", Container(name="main", limits=((NEED, 2),)))
    node.silent = True  # that it was given the other's cannot be written
    with pytest.raises(Conflict):
        await node.kubelet.create("default", "q", "main")
    node.silent = False
    node.end("q")
    node.assign("q", 2, share(2, 2048))
    again = node.pods["default", "q"]
    again["metadata"]["uid"] = "uid-q-again"
    node.pods["default", "q"] = node.watched["default", "q"] = signed(again)
    await node.kubelet.admit("default", "q", Container(name="main", limits=((NEED, 2),)), uid="uid-q-again")
    assert [each["gpu"] for each in node.assigned("q")] == [2]


async def test_where_no_processes_can_be_seen_a_pod_has_its_device_until_the_api_server_shows_its_end(
    node: Node,
) -> None:
    """The kubelet forgets a pod that runs, and its record is written anew (docs/kubelet-races.md)."""
    (node.proc / "self/ns/pid").unlink()
    await node.offer((facts(0, "T4"), WHOLE))
    await node.run("p")
    node.kubelet.remove("default", "p")
    node.ask("q")
    with pytest.raises(Conflict, match="used by pod default/p"):
        await node.kubelet.admit("default", "q", Container(name="main", limits=((GPU, 1),)))
    assert node.plugins.gate.by_name == {DeviceId(facts(0, "T4").uuid)}
    del node.watched["default", "p"]
    node.plugins.gate.release()
    assert node.plugins.gate.by_name == {DeviceId(facts(0, "T4").uuid)}, "the watch may be late"
    del node.pods["default", "p"]
    node.version += 1
    await node.plugins.gate.tidy(node.plugins._uses_of)
    assert node.plugins.gate.by_name == frozenset()
    await node.kubelet.admit("default", "q", Container(name="main", limits=((GPU, 1),)))


async def test_a_pod_that_runs_uses_its_memory_though_its_assignment_went_while_no_agent_ran(node: Node) -> None:
    """Its tenant deletes the annotations; an agent that starts then has its own record alone to go by."""
    await node.offer((facts(0, "T4"), MEMORY), (facts(1, "T4"), MEMORY))
    node.assign("p", 8, share(0, 8192))
    await node.run("p", NEED, 8)
    node.process_of("p")
    node.pods["default", "p"]["metadata"]["annotations"].clear()
    await node.kill()
    node.plugins = node.started()
    await node.offer((facts(0, "T4"), MEMORY), (facts(1, "T4"), MEMORY))
    node.assign("q", 10, share(0, 10240))
    with pytest.raises(Conflict, match="more memory than"):
        await node.kubelet.admit("default", "q", Container(name="main", limits=((NEED, 10),)))


async def test_what_a_container_was_started_with_stays_counted_whatever_is_written_on_its_pod(node: Node) -> None:
    """Its other container is refused to start again; the pod is found without an assignment, and still uses both."""
    await node.offer((facts(0), MEMORY), (facts(1), MEMORY))
    node.assign("tenant", 16, share(0, 16384), share(0, 16384))
    pod = node.pods["default", "tenant"]
    pod["spec"]["containers"].append({**pod["spec"]["containers"][0], "name": "side"})
    await node.kubelet.admit("default", "tenant", *(Container(name=n, limits=((NEED, 16),)) for n in ("main", "side")))
    for name in ("main", "side"):
        await node.kubelet.create("default", "tenant", name)
    node.process_of("tenant")
    await node.kill()
    notes = pod["metadata"]["annotations"] | {"tessera.dev/gpu-memory-unit": "MiB"}
    spoiled = {**pod, "metadata": {**pod["metadata"], "annotations": notes}, "status": {"phase": "Running"}}
    node.pods["default", "tenant"] = node.watched["default", "tenant"] = spoiled
    node.version += 1
    node.plugins = node.started()
    await node.offer((facts(0), MEMORY), (facts(1), MEMORY))
    with contextlib.suppress(Conflict):
        await node.kubelet.create("default", "tenant", "side")
    node.assign("honest", 20, share(0, 20480))
    with pytest.raises(Conflict, match="used by pod default/tenant"):
        await node.run("honest", NEED, 20)
