"""What the kubelet itself does wrong with devices, and what heals it: docs/kubelet-races.md tells of it.

These are facts about the kubelet, on which the agent's own record of what it gave is built. A test that fails here says
that another kubelet behaves in another way, which would be good news.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc
import pytest

from harness.plugins import RESOURCE, ScriptedPlugin, connect, devices
from kube.pods import busybox, remove, run, until_allocatable
from tessera.clients.kubelet import PluginServer, PodResources, sockets
from tessera.clients.kubelet.wire import podresources_v1_pb2 as wire
from tessera.core.deviceplugin.containerresponse import ContainerResponse
from tessera.core.deviceplugin.offers.advertise import PluginDevice
from tessera.core.deviceplugin.offers.prefer import PreferenceRequest
from tessera.errors import Conflict
from testbed.cluster import Cluster
from testbed.node import Node

pytestmark = pytest.mark.anyio

ENDS_SLOWLY = "trap 'sleep 2; exit 0' TERM; while :; do sleep 0.2; done"
STAYS = "trap '' TERM; while :; do sleep 0.2; done"
UNKNOWN = "not found"


class Slow(ScriptedPlugin):
    """A plugin that gives the device a test names, holds its answer back when told so, and refuses what it must."""

    def __init__(self, *ids: str) -> None:
        super().__init__(*ids)
        self.preferred = ids[0]
        self.offered: list[tuple[str, ...]] = []
        self.inside = asyncio.Event()
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.held: set[str] = set()

    async def prefer(self, desired: PreferenceRequest) -> tuple[str, ...]:
        self.offered.append(tuple(sorted(desired.available)))
        return (self.preferred,) if self.preferred in desired.available else tuple(sorted(desired.available))[:1]

    async def allocate(self, ids: tuple[str, ...]) -> ContainerResponse:
        self.inside.set()
        await self.goes_on.wait()
        if self.held & set(ids):
            raise Conflict(f"device {ids}", found="a living pod that has it", expected="nobody")
        return ContainerResponse(env=(("IDS", ",".join(ids)),))


async def until(what: str, holds: Callable[[], Awaitable[bool]]) -> None:
    """Return when this holds: of a kubelet with other testbeds beside it half a minute is enough."""
    for _ in range(300):
        if await holds():
            return
        await asyncio.sleep(0.1)
    pytest.fail(f"not within half a minute: {what}")


class Bed:
    """The cluster, its node, and a plugin with three devices."""

    def __init__(self, cluster: Cluster, node: Node, plugin: Slow) -> None:
        self.cluster, self.node, self.plugin = cluster, node, plugin

    async def run(self, name: str, command: str = "exec sleep 3600") -> None:
        await asyncio.to_thread(run, self.cluster, self.pod(name, command))

    async def apply(self, name: str) -> None:
        await asyncio.to_thread(self.cluster.apply, self.pod(name, "exec sleep 3600"))

    async def kubectl(self, *arguments: str) -> str:
        return await asyncio.to_thread(self.cluster.kubectl, *arguments)

    def pod(self, name: str, command: str) -> dict[str, object]:
        return busybox(name, command=command, limits={RESOURCE: 1}, terminationGracePeriodSeconds=30)

    async def phase(self, name: str) -> tuple[str, str]:
        status = (await asyncio.to_thread(self.cluster.get, "pod", name))["status"]
        return status["phase"], status.get("reason", "")

    async def until_phase(self, name: str, *desired: str) -> None:
        async def is_desired() -> bool:
            return (await self.phase(name))[0] in desired

        await until(f"{name} is {desired}", is_desired)

    def checkpoint(self) -> list[str]:
        """Return the ids that pods have by the kubelet's checkpoint, sorted."""
        text = (self.node.device_plugins / "kubelet_internal_checkpoint").read_text()
        entries = json.loads(text)["Data"]["PodDeviceEntries"] or ()
        return sorted(each for entry in entries for ids in entry["DeviceIDs"].values() for each in ids)

    async def list(self) -> dict[str, tuple[str, ...]]:
        return {each.pod: each.device_ids for each in await PodResources(self.node.pod_resources).list()}

    def last_offered(self) -> set[str]:
        """Return the ids that the kubelet took for free when it asked last which to prefer."""
        return set(self.plugin.offered[-1])

    async def get(self, name: str) -> tuple[str, ...] | str:
        """Return the ids of a pod by PodResources' Get, or what it says."""
        async with sockets.channel(self.node.pod_resources) as channel:
            call = channel.unary_unary(
                "/v1.PodResourcesLister/Get",
                request_serializer=wire.GetPodResourcesRequest.SerializeToString,
                response_deserializer=wire.GetPodResourcesResponse.FromString,
            )
            try:
                answer = await call(wire.GetPodResourcesRequest(pod_name=name, pod_namespace="default"))
            except grpc.aio.AioRpcError as error:
                return str(error.details())
        containers = answer.pod_resources.containers
        return tuple(each for one in containers for devices in one.devices for each in devices.device_ids)

    async def list_others_during_allocate(self, *listed: PluginDevice) -> None:
        """Let the kubelet know of this list, of which a alone is healthy, when `Allocate` of b is answered."""
        self.plugin.preferred = "b"
        self.plugin.inside.clear()
        self.plugin.goes_on.clear()
        await self.apply("first")
        await self.plugin.inside.wait()
        self.plugin.push(*listed)
        record = PodResources(self.node.pod_resources)

        async def is_taken() -> bool:
            return (await record.allocatable())[RESOURCE] == {"a"}

        await until("the kubelet takes the list", is_taken)
        self.plugin.goes_on.set()

    async def allocate_while_another_ends(self, record: str) -> None:
        """Let `first` be in Allocate with device b while `ending`, which has a, ends; then ask for the record."""
        self.plugin.preferred = "a"
        await self.run("ending", ENDS_SLOWLY)
        await self.kubectl("delete", "pod", "ending", "--wait=false")
        self.plugin.preferred = "b"
        self.plugin.inside.clear()
        self.plugin.goes_on.clear()
        await self.apply("first")
        await self.plugin.inside.wait()
        await self.kubectl("wait", "--for=delete", "pod/ending", "--timeout=60s")
        assert await self.get("first") == (), "a pod in Allocate has no devices in the record yet"
        if record == "List":
            await self.list()
        self.plugin.goes_on.set()
        await self.until_phase("first", "Running")
        assert await self.get("first") == ("b",)


@pytest.fixture
async def bed(node_cluster: Cluster, node: Node) -> AsyncIterator[Bed]:
    plugin = Slow("a", "b", "c")
    server: PluginServer = await connect(plugin, node.device_plugins)
    await asyncio.to_thread(until_allocatable, node_cluster, node.name, [(RESOURCE, 3)])
    yield Bed(node_cluster, node, plugin)
    plugin.goes_on.set()
    await asyncio.to_thread(remove, node_cluster)
    await server.stop()


async def test_list_during_allocate_gives_a_device_twice_and_a_refusal_heals_it(bed: Bed) -> None:
    await bed.allocate_while_another_ends("List")
    bed.plugin.held = {"b"}
    await bed.apply("refused")
    await bed.until_phase("refused", "Failed")
    assert bed.last_offered() == {"a", "b", "c"}, "the kubelet believes that b, which first has, is free"
    assert await bed.phase("refused") == ("Failed", "UnexpectedAdmissionError")
    await bed.run("healed")
    assert bed.last_offered() == {"a", "c"}, "the refusal made it count again what pods have"
    assert bed.checkpoint() in (["a", "b"], ["b", "c"])


async def test_a_device_that_is_given_twice_ends_a_running_pod_when_the_kubelet_restarts(bed: Bed) -> None:
    await bed.allocate_while_another_ends("List")
    await bed.run("second")
    assert bed.checkpoint() == ["b", "b"]
    assert await bed.list() == {"first": ("b",), "second": ("b",)}
    await asyncio.to_thread(bed.node.restart_kubelet)
    await bed.until_phase("second", "Failed")
    assert await bed.phase("second") == ("Failed", f"OutOf{RESOURCE}")
    assert await bed.phase("first") == ("Running", "")


async def test_get_in_place_of_list_forgets_nothing(bed: Bed) -> None:
    await bed.allocate_while_another_ends("Get")
    await bed.run("second")
    assert bed.last_offered() == {"a", "c"}
    assert UNKNOWN in await bed.get("ending")
    assert UNKNOWN in await bed.get("never-there")


async def test_a_pod_deleted_by_force_leaves_its_device_while_its_container_runs(bed: Bed) -> None:
    await bed.run("old", STAYS)
    await bed.kubectl("delete", "pod", "old", "--force", "--grace-period=0")
    await bed.apply("new")

    async def both_run() -> bool:
        return len(holders("a", bed.node.cgroup)) == 2

    await until("the kubelet does not wait for the end of the old container", both_run)
    assert UNKNOWN in await bed.get("old")
    await bed.until_phase("new", "Running")


async def test_a_device_that_is_unhealthy_when_its_allocate_is_answered_is_the_pod_s(bed: Bed) -> None:
    await bed.list_others_during_allocate(*devices("a", "b", unhealthy=("b",)))
    await bed.until_phase("first", "Running")
    assert bed.checkpoint() == ["b"]


async def test_a_device_that_is_missing_when_its_allocate_is_answered_ends_the_kubelet(bed: Bed) -> None:
    log = bed.cluster.processes.log(f"{bed.node.name}-kubelet")
    before = log.read_text(errors="replace").count("\npanic: ")
    await bed.list_others_during_allocate(*devices("a"))

    async def has_ended() -> bool:
        return bed.node.process("kubelet") is None

    await until("the kubelet ends", has_ended)
    said = log.read_text(errors="replace")
    assert said.count("\npanic: ") == before + 1
    assert "nil pointer dereference" in said
    assert "allocateContainerResources" in said
    await asyncio.to_thread(bed.node.restart_kubelet)


def holders(device: str, cgroup: str) -> set[str]:
    """Return the names of the pods in whose containers' environment the plugin has put a device."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if cgroup not in (path / "cgroup").read_text():
                continue
            pairs = (path / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        environment = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        if environment.get("IDS") == device:
            found.add(environment["HOSTNAME"])
    return found
