"""Managed GPUs in a whole agent: devices that are desired come, pods get what they were assigned."""

import asyncio
from typing import Any

import msgspec
import pytest

from builders.kubeobjects import amount
from harness.agentmachine import Machine
from tessera.api.tessera.v1alpha1.gpunodes import desired_field, read_gpu_node
from tessera.clients.kube import CUSTOM_RESOURCE_DEFINITIONS, GPU_NODES, PODS, Object
from tessera.core.cluster.gpunodestate import DesiredDevices, GpuNodeState
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.mig import Layout, Placement, placements_of
from tessera.errors import Conflict

pytestmark = pytest.mark.anyio

A100 = model("A100-40GB")
UNITS = "tessera.dev/gpu-memory"
AUTO = {"apiVersion": "tessera.dev/v1alpha1", "kind": "NodePolicy", "gpus": [{"sharing": "auto"}]}
ALL_UNITS = 2 * (A100.memory_mib // 1024)


def place(profile: str, start: int) -> Placement:
    return next(each for each in placements_of(A100, profile) if each.start == start)


SMALL = tuple(place("1g.5gb", start) for start in range(7))
HALVES = place("3g.20gb", 0), place("3g.20gb", 4)


class Scheduled:
    """A node whose GPUs are managed, by a GPUPolicy."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.uuids: tuple[str, ...] = ()

    async def begin(self) -> None:
        """Say so in the node's GPUNode."""
        self.uuids = tuple(gpu.uuid for gpu in (await self.machine.driver.inventory()).gpus)
        await self.machine.kube.create(
            GPU_NODES,
            {"metadata": {"name": "n1"}, "spec": {"policy": {"name": "all", "document": AUTO}}},
        )

    async def want(self, *desired: DesiredDevices) -> None:
        await self.machine.kube.patch(GPU_NODES, "n1", {"spec": {"desired": desired_field(desired)}})

    async def object(self) -> Object:
        found = await self.machine.kube.get(GPU_NODES, "n1")
        assert found is not None
        return found

    async def state(self) -> GpuNodeState:
        return read_gpu_node(await self.object())

    async def until_acted_on(self) -> None:
        """Return when the agent reports that it has acted on what the object asks now."""
        generation = (await self.object())["metadata"]["generation"]
        for _ in range(1000):
            if (await self.object())["status"]["observedGeneration"] == generation:
                return
            await asyncio.sleep(0.02)
        pytest.fail(f"generation {generation} is not acted on")

    async def layouts(self) -> list[Layout | None]:
        return [gpu.layout for gpu in (await self.machine.driver.inventory()).gpus]

    async def until_layouts(self, *want: Layout | None) -> None:
        for _ in range(1000):
            if await self.layouts() == list(want):
                return
            await asyncio.sleep(0.02)
        pytest.fail(f"after 20 s: {await self.layouts()}")


@pytest.fixture
async def scheduled(machine: Machine) -> Scheduled:
    made = Scheduled(machine)
    await made.begin()
    return made


async def test_desired_devices_are_cut_and_offered(scheduled: Scheduled) -> None:
    kubelet, (first, second) = scheduled.machine.kubelet, scheduled.uuids
    async with scheduled.machine.agent():
        await kubelet.until_allocatable(UNITS, ALL_UNITS)
        assert (kubelet.capacity("nvidia.com/gpu"), kubelet.capacity("nvidia.com/mig-1g.5gb")) == (0, 0)
        await scheduled.want(DesiredDevices(gpu=first, instances=SMALL[:2]), DesiredDevices(gpu=second, whole=True))
        await kubelet.until_allocatable("nvidia.com/mig-1g.5gb", 2)
        await kubelet.until_allocatable("nvidia.com/gpu", 1)
        assert await scheduled.layouts() == [SMALL[:2], None]
        await scheduled.machine.pod("p", {"nvidia.com/mig-1g.5gb": 1})
        uuid = (await scheduled.machine.start("p", "nvidia.com/mig-1g.5gb"))["NVIDIA_VISIBLE_DEVICES"]
        await scheduled.want(DesiredDevices(gpu=first, instances=HALVES))
        await kubelet.until_allocatable("nvidia.com/mig-3g.20gb", 1)
        await kubelet.until_allocatable("nvidia.com/mig-1g.5gb", 1)
        await kubelet.until_allocatable("nvidia.com/gpu", 0)
        instances = (await scheduled.machine.driver.inventory()).gpus[0].instances
        assert uuid in {each.uuid for each in instances}
        assert kubelet.allocatable(UNITS) == ALL_UNITS


async def test_mig_is_switched_off_for_a_desired_whole_gpu(scheduled: Scheduled) -> None:
    kubelet, (first, _) = scheduled.machine.kubelet, scheduled.uuids
    async with scheduled.machine.agent():
        await scheduled.want(DesiredDevices(gpu=first, instances=SMALL))
        await kubelet.until_allocatable("nvidia.com/mig-1g.5gb", 7)
        await scheduled.want(DesiredDevices(gpu=first, whole=True))
        await kubelet.until_allocatable("nvidia.com/gpu", 1)
        assert await scheduled.layouts() == [None, None]


async def test_an_assigned_instance_is_cut_where_mig_is_off_or_others_are_in_the_way(scheduled: Scheduled) -> None:
    machine, (first, _) = scheduled.machine, scheduled.uuids
    async with machine.agent():
        await machine.kubelet.until_allocatable(UNITS, ALL_UNITS)
        await scheduled.want(DesiredDevices(gpu=first, instances=SMALL))
        await machine.kubelet.until_allocatable("nvidia.com/mig-1g.5gb", 7)
        for number, gpu in enumerate((0, 1)):
            await machine.pod(f"p{number}", {UNITS: 10}, (amount(gpu, HALVES[1], memory_mib=10240, container="c"),))
            visible = (await machine.start(f"p{number}", UNITS, 10))["NVIDIA_VISIBLE_DEVICES"]
            facts = (await machine.driver.inventory()).gpus[gpu]
            assert [each.placement for each in facts.instances if each.uuid == visible] == [HALVES[1]]
        assert await scheduled.layouts() == [(*SMALL[:4], HALVES[1]), (HALVES[1],)]
        await machine.kubelet.until_allocatable("nvidia.com/mig-1g.5gb", 4)
        assert machine.kubelet.allocatable("nvidia.com/mig-3g.20gb") == 0


async def test_mig_is_switched_off_for_an_amount_of_the_gpu(scheduled: Scheduled) -> None:
    machine, (first, _) = scheduled.machine, scheduled.uuids
    async with machine.agent():
        await scheduled.want(DesiredDevices(gpu=first, instances=SMALL[:1]))
        await machine.kubelet.until_allocatable("nvidia.com/mig-1g.5gb", 1)
        await scheduled.want()
        await machine.kubelet.until_allocatable("nvidia.com/mig-1g.5gb", 0)
        await machine.pod("p", {UNITS: 4}, (amount(0, container="c"),))
        visible = (await machine.start("p", UNITS, 4))["NVIDIA_VISIBLE_DEVICES"]
        assert visible == first
        assert await scheduled.layouts() == [None, None]


async def test_what_others_use_is_refused_clearly_and_granted_once_they_are_gone(scheduled: Scheduled) -> None:
    machine, (first, _) = scheduled.machine, scheduled.uuids
    async with machine.agent():
        await scheduled.want(DesiredDevices(gpu=first, instances=SMALL[:1]))
        await machine.kubelet.until_allocatable("nvidia.com/mig-1g.5gb", 1)
        await machine.pod("user", {"nvidia.com/mig-1g.5gb": 1})
        await machine.start("user", "nvidia.com/mig-1g.5gb")
        await machine.pod("amount", {UNITS: 4}, (amount(0, container="c"),))
        with pytest.raises(Conflict, match="of pod default/user uses"):
            await machine.start("amount", UNITS, 4)
        await machine.pod("slice", {UNITS: 10}, (amount(0, HALVES[0], container="c"),))
        with pytest.raises(Conflict, match="of pod default/user uses"):
            await machine.start("slice", UNITS, 10)
        for name in ("user", "slice"):
            machine.kubelet.remove("default", name)
            await machine.kube.delete(PODS, name, namespace="default")
        machine.kubelet.remove("default", "amount")
        assert (await machine.start("amount", UNITS, 4))["NVIDIA_VISIBLE_DEVICES"] == first


async def test_a_label_takes_the_gpus_out_of_tessera_s_hands(scheduled: Scheduled) -> None:
    machine, (first, second) = scheduled.machine, scheduled.uuids
    async with machine.agent():
        await machine.label(config="all-3g.20gb")
        await machine.until_state("success")
        await machine.kubelet.until_allocatable("nvidia.com/mig-3g.20gb", 4)
        await machine.kubelet.until_allocatable(UNITS, 0)
        await machine.pod("p", {UNITS: 4}, (amount(0, container="c"),))
        await scheduled.want(DesiredDevices(gpu=first, whole=True), DesiredDevices(gpu=second, instances=SMALL))
        await scheduled.until_acted_on()
        await machine.until_observed()
        assert await scheduled.layouts() == [HALVES, HALVES]
        state = await scheduled.state()
        assert [gpu.sharing.managed for gpu in state.gpus] == [False, False]


async def test_without_the_kind_all_is_as_it_was(machine: Machine) -> None:
    machine.kube.uninstall(GPU_NODES)
    (machine.folder / "policy.yaml").write_text(msgspec.json.encode(AUTO).decode())
    uuid = (await machine.driver.inventory()).gpus[0].uuid
    await machine.driver.set_mig(uuid, enabled=True)
    await machine.driver.create_instance(uuid, SMALL[0])
    async with machine.agent():
        await machine.kubelet.until_allocatable("nvidia.com/mig-1g.5gb", 1)
        await machine.kubelet.until_allocatable(UNITS, ALL_UNITS)
        definition: dict[str, Any] = {"metadata": {"name": "gpunodes.tessera.dev"}}
        await machine.kube.create(CUSTOM_RESOURCE_DEFINITIONS, definition)
        await machine.kubelet.until_allocatable("nvidia.com/mig-1g.5gb", 0, deadline_s=20)
        assert machine.kubelet.allocatable(UNITS) == ALL_UNITS


async def test_a_layout_that_waits_for_a_pod_to_end_is_reported_until_it_is_there(scheduled: Scheduled) -> None:
    machine, fixed = scheduled.machine, {**AUTO, "gpus": [{"sharing": {"mig": "all-3g.20gb"}}]}
    async with machine.agent():
        await machine.kubelet.until_allocatable(UNITS, ALL_UNITS)
        await machine.pod("p", {UNITS: 10}, (amount(0, memory_mib=10240, container="c"),))
        await machine.start("p", UNITS, 10)
        await machine.kube.patch(GPU_NODES, "n1", {"spec": {"policy": {"name": "all", "document": fixed}}})
        await scheduled.until_layouts(None, HALVES)

        def impaired(node: Object) -> list[tuple[str, str]]:
            return [(each["kind"], each["subject"]) for each in node.get("status", {}).get("impaired", ())]

        await machine.until_object(GPU_NODES, "n1", lambda node: impaired(node) == [("Withheld", "GPU 0")])
        await machine.kube.delete(PODS, "p", namespace="default")
        machine.kubelet.remove("default", "p")
        await scheduled.until_layouts(HALVES, HALVES)
        await machine.until_object(GPU_NODES, "n1", lambda node: not impaired(node))
