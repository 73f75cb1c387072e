"""What a node's exporter shows, from a driver in memory and the record of allocations."""

import asyncio
import contextlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from builders.gpunodes import shared
from builders.nodepods import ListedPods
from builders.nodeviews import RecordedPods, of_the_host
from harness.agentmachine import WatchedDriver
from tessera.agent.exporter import Exporter, NodeContainers
from tessera.agent.pods.podsview import PodsView
from tessera.api.tessera.usage.usagejson import read_usage
from tessera.clients.kube import Listing
from tessera.clients.kubelet import DeviceCheckpoint, PodResources
from tessera.core.cluster.gpunodestate import UnhealthyDevice
from tessera.core.cluster.snapshot import Gpu
from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation, AllocatedDevice, Exclusivity
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import GpuEvent, Inventory
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.node.health import Health, HealthPhase, HealthState
from tessera.core.usage.attribution import ENDED, Owner
from tessera.core.usage.rightsizing import Sizing, recommendations
from tessera.core.usage.usagereport import UsageReport
from tessera.errors import Unavailable
from tessera.log import logger

pytestmark = pytest.mark.anyio
HALF = Placement(4, 4, "3g.20gb")
ID = "ab" * 32
SAMPLE = re.compile(r'([a-z_A-Z]+)="((?:\\.|[^"\\])*)"')


class Node:
    """A node with a T4 and an A100-40GB, and what containers were allocated."""

    def __init__(self, folder: Path) -> None:
        self.driver = WatchedDriver.of("T4", "A100-40GB")
        self.view = RecordedPods()
        self.entries: list[AgentAllocation] = []
        self.gpus: tuple[Gpu, ...] = ()
        self.devices_of_orphans: tuple[UnhealthyDevice, ...] = ()
        self.proc = folder / "proc"
        of_the_host(self.proc)
        self.health = Health()
        containers = NodeContainers(self, self.view, self.proc, self)
        self.exporter = Exporter("n1", self.driver, containers, self, self, logger())

    async def uuids(self) -> tuple[str, ...]:
        return tuple(each.uuid for each in (await self.driver.inventory()).gpus)

    def allocate(self, pod: str, use: AllocatedDevice, *, ids: tuple[str, ...] = ("1",), initial: bool = False) -> None:
        entry = AgentAllocation(
            resource="r", ids=ids, uses=(use,), uid=f"uid-{pod}", pod=f"team/{pod}", container="c", initial=initial
        )
        self.entries.append(entry)

    def run(self, gpu: str, pid: int, pod: str, memory_mib: int, sm_percent: int = 0) -> None:
        self.driver.start_process(gpu, pid, memory_mib=memory_mib, sm_percent=sm_percent)
        self.group(pid, f"/kubepods/besteffort/poduid-{pod}/{ID}")

    def group(self, pid: int, path: str) -> None:
        (self.proc / str(pid)).mkdir(exist_ok=True)
        (self.proc / str(pid) / "cgroup").write_text(f"0::{path}\n")

    async def scrape(self) -> Callable[..., Mapping[tuple[str, ...], float]]:
        await self.exporter.observe()
        text = self.exporter.render().decode()

        def values(name: str, *labels: str) -> Mapping[tuple[str, ...], float]:
            found = {}
            for line in text.splitlines():
                if re.match(rf"{name}[{{ ]", line):
                    own = dict(SAMPLE.findall(line))
                    found[tuple(own.get(label, "") for label in labels)] = float(line.rpartition(" ")[2])
            return found

        return values


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_three_pods_on_a_shared_gpu_are_distinguished(node: Node) -> None:
    t4, _ = await node.uuids()
    for name in "abc":
        node.allocate(name, AllocatedDevice(device=DeviceId(t4), exclusivity=Exclusivity.MEMORY, memory_mib=4096))
    node.run(t4, 101, "a", 3000, 60)
    node.run(t4, 102, "b", 500, 20)
    node.driver.start_process(t4, 103, memory_mib=77)
    node.group(103, "/system.slice/display.service")
    values = await node.scrape()
    assert values("DCGM_FI_DEV_FB_USED", "gpu", "pod") == {
        ("0", ""): 77,
        ("0", "a"): 3000,
        ("0", "b"): 500,
        ("0", "c"): 0,
        ("1", ""): 0,
    }
    assert values("DCGM_FI_DEV_GPU_UTIL", "gpu", "pod") == {
        ("0", ""): 80,
        ("0", "a"): 60,
        ("0", "b"): 20,
        ("0", "c"): 0,
        ("1", ""): 0,
    }
    allocated = values("tessera_container_memory_allocated_bytes", "namespace", "pod", "container")
    assert allocated == {("team", name, "c"): 4096 << 20 for name in "abc"}


async def test_short_processes_hide_nobody_and_make_nobody_idle(node: Node) -> None:
    """One pod's processes end before their control groups are read, the other's run on."""
    t4, _ = await node.uuids()
    for name in "ab":
        node.allocate(name, AllocatedDevice(device=DeviceId(t4), exclusivity=Exclusivity.MEMORY, memory_mib=4096))
    node.run(t4, 101, "a", 3000, 40)
    node.driver.start_process(t4, 102, memory_mib=900, sm_percent=60)
    values = await node.scrape()
    assert values("DCGM_FI_DEV_FB_USED", "gpu", "pod") == {
        ("0", ""): 900,
        ("0", "a"): 3000,
        ("0", "b"): 0,
        ("1", ""): 0,
    }
    assert values("DCGM_FI_DEV_GPU_UTIL", "gpu", "pod")["0", "a"] == 40
    assert values("tessera_device_ended_processes_load", "gpu") == {("0",): 0.6, ("1",): 0}
    report = read_usage(node.exporter.report(), "agent")
    found = [each for gpu in report.gpus for device in gpu.devices for each in device.containers]
    assert [(each.peak_mib, each.mean_percent, each.observed_s) for each in found] == [(3000, None, 0), (0, None, 0)]
    assert {each.verdict for each in recommendations([report])} == {Sizing.UNKNOWN}
    (contention,) = report.gpus[0].contention
    assert (contention.cause, contention.caused_by, contention.ended) == ("saturated", (), True)


@pytest.mark.parametrize("how", ["of an unknown form", "not there", "not readable"])
async def test_usage_of_a_process_whose_container_is_unknown_is_absent_not_zero(node: Node, how: str) -> None:
    t4, _ = await node.uuids()
    for name in "ab":
        node.allocate(name, AllocatedDevice(device=DeviceId(t4), exclusivity=Exclusivity.MEMORY, memory_mib=8192))
    node.run(t4, 101, "a", 7000, 90)
    node.group(101, "/kubepods/of/another/form")
    if how != "of an unknown form":
        (node.proc / "101/cgroup").unlink()
    if how == "not readable":
        (node.proc / "101/cgroup").mkdir()
    values = await node.scrape()
    assert values("DCGM_FI_DEV_FB_USED", "gpu", "pod") == {("1", ""): 0}
    assert values("DCGM_FI_DEV_GPU_UTIL", "gpu", "pod") == {("0", ""): 90, ("1", ""): 0}
    assert values("tessera_device_memory_used_bytes", "gpu")[("0",)] == 7000 << 20
    report = read_usage(node.exporter.report(), "agent")
    found = [each for gpu in report.gpus for device in gpu.devices for each in device.containers]
    assert [(each.used_mib, each.peak_mib, each.mean_percent) for each in found] == [(None, None, None)] * 2


async def test_processes_have_their_pods_also_when_these_were_just_read_anew(node: Node, tmp_path: Path) -> None:
    """As before each allocation that waits for another pod's end."""
    pods = Listing(objects=({"metadata": {"namespace": "team", "name": "a", "uid": "uid-a"}},), resource_version="7")

    async def relist() -> Listing:
        return pods

    unused = tmp_path / "none"
    view = PodsView(ListedPods(tuple, relist), DeviceCheckpoint(unused), PodResources(unused), proc=node.proc)
    await view.refresh()
    node.run("GPU-1", 101, "a", 1)
    owners = await NodeContainers(node, view, node.proc, node).owners({101, 102})
    assert owners == {101: Owner(uid="uid-a"), 102: ENDED}


async def test_replicas_are_granted_their_part_and_whole_devices_all_of_it(node: Node) -> None:
    t4, a100 = await node.uuids()
    await node.driver.set_mig(a100, enabled=True)
    await node.driver.create_instance(a100, HALF)
    inventory = await node.driver.inventory()
    sharing = Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", 4),))
    node.gpus = (msgspec.structs.replace(shared(inventory.gpus[0]), sharing=sharing), shared(inventory.gpus[1]))
    node.allocate("a", AllocatedDevice(device=DeviceId(a100, HALF)))
    node.allocate(
        "b", AllocatedDevice(device=DeviceId(t4), exclusivity=Exclusivity.REPLICA), ids=(f"{t4}::0", f"{t4}::1")
    )
    node.allocate(
        "gone", AllocatedDevice(device=DeviceId(a100, Placement(0, 1, "1g.5gb")), exclusivity=Exclusivity.REPLICA)
    )
    allocated = (await node.scrape())("tessera_container_memory_allocated_bytes", "pod", "GPU_I_PROFILE", "part")
    half = next(each.memory_mib for each in inventory.gpus[1].instances)
    t4_mib = next(each.memory_mib for each in node.gpus[0].devices)
    assert allocated == {("a", "3g.20gb", ""): half << 20, ("b", "", "replica"): (2 * t4_mib) << 20}


async def test_what_is_allocated_of_a_gpu_of_unknown_memory_is_unknown(node: Node) -> None:
    t4, a100 = await node.uuids()
    inventory = await node.driver.inventory()
    unknown = msgspec.structs.replace(inventory.gpus[0], memory_mib=0)
    node.allocate("a", AllocatedDevice(device=DeviceId(t4)))
    node.allocate("b", AllocatedDevice(device=DeviceId(a100)))
    gpus = msgspec.structs.replace(inventory, gpus=(unknown, inventory.gpus[1]))
    allocations = NodeContainers(node, node.view, node.proc, node).allocations(gpus, node.gpus)
    assert {each.pod: each.allocated_mib for each in allocations} == {"a": None, "b": inventory.gpus[1].memory_mib}


async def test_an_init_container_has_its_device_until_the_others_start(node: Node) -> None:
    t4, _ = await node.uuids()
    use = AllocatedDevice(device=DeviceId(t4))
    node.allocate("a", use, initial=True)
    assert (await node.scrape())("tessera_device_containers", "gpu") == {("0",): 1, ("1",): 0}
    node.entries.append(
        AgentAllocation(resource="r", ids=("1",), uses=(use,))
    )  # `Allocate` was answered for nobody yet
    assert (await node.scrape())("tessera_device_containers", "gpu") == {("0",): 1, ("1",): 0}
    node.entries.append(AgentAllocation(resource="r", ids=(), uses=(use,), uid="uid-gone", container="process 7"))
    assert (await node.scrape())("tessera_device_containers", "gpu") == {("0",): 1, ("1",): 0}
    node.entries.append(
        AgentAllocation(resource="r", ids=("1",), uses=(use,), uid="uid-a", pod="team/a", container="main")
    )
    values = await node.scrape()
    assert values("tessera_container_memory_allocated_bytes", "container").keys() == {("main",)}


async def test_processes_that_cannot_be_seen_are_nobody_s_and_the_exporter_says_so(node: Node) -> None:
    t4, _ = await node.uuids()
    node.allocate("a", AllocatedDevice(device=DeviceId(t4), exclusivity=Exclusivity.MEMORY, memory_mib=4096))
    node.run(t4, 101, "a", 3000)
    node.view.blind = True
    values = await node.scrape()
    assert values("DCGM_FI_DEV_FB_USED", "gpu", "pod") == {("1", ""): 0}
    assert values("tessera_exporter_process_attribution") == {(): 0}
    assert values("tessera_device_memory_used_bytes", "gpu")[("0",)] == 3000 << 20


async def test_an_error_before_the_first_observation_is_counted(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    t4, a100 = await node.uuids()
    found, ready = await node.driver.inventory(), asyncio.Event()

    async def loading() -> Inventory:
        await ready.wait()
        return found

    monkeypatch.setattr(node.driver, "inventory", loading)
    running = asyncio.ensure_future(node.exporter.run(0.01))
    for number in range(500):
        node.driver.report(GpuEvent(gpu=f"GPU-unknown-{number}" if number else t4, xid=79))
    await asyncio.sleep(0.1)
    ready.set()
    values = await node.scrape()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    by_gpu = values("tessera_gpu_xid_errors_total", "UUID", "class")
    assert {uuid for uuid, _ in by_gpu} == {t4, a100}, "those that are not there have no series"
    assert by_gpu[t4, "hardware"] == 1


async def test_layout_changes_and_errors_are_counted(node: Node) -> None:
    t4, a100 = await node.uuids()
    await node.scrape()
    await node.driver.set_mig(a100, enabled=True)
    await node.scrape()
    await node.driver.create_instance(a100, HALF)
    running = asyncio.ensure_future(node.exporter.run(0.01))
    for number in (13, 79):
        node.driver.report(GpuEvent(gpu=t4, xid=number))
    node.driver.report(GpuEvent(gpu="GPU-unknown", xid=79))
    node.driver.report(GpuEvent(gpu=t4))
    values = await node.scrape()
    for _ in range(500):
        values = await node.scrape()
        if sum(values("tessera_gpu_xid_errors_total").values()) or values("DCGM_FI_DEV_XID_ERRORS", "gpu")[("0",)]:
            break
        await asyncio.sleep(0.01)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert values("DCGM_FI_DEV_XID_ERRORS", "gpu") == {("0",): 79, ("1",): 0}
    by_class = values("tessera_gpu_xid_errors_total", "gpu", "class")
    assert {key for key, value in by_class.items() if value} == {("0", "application"), ("0", "hardware")}
    assert values("tessera_gpu_layout_changes_total", "gpu") == {("0",): 0, ("1",): 2}
    node.driver.lose(a100)
    values = await node.scrape()
    assert values("tessera_gpu_layout_changes_total", "gpu") == {("0",): 0, ("1",): 2}, "what is lost has no layout"


async def test_an_event_that_breaks_the_exporter_is_said_and_later_ones_are_counted(node: Node) -> None:
    t4, _ = await node.uuids()
    await node.scrape()
    with capture_logs() as logs:
        running = asyncio.ensure_future(node.exporter.run(0.01))
        node.driver.report(GpuEvent(gpu=t4, xid=[13]))  # type: ignore[arg-type]  # no driver should
        node.driver.report(GpuEvent(gpu=t4, xid=79))
        values = await node.scrape()
        async with asyncio.timeout(10):
            while not (counted := values("DCGM_FI_DEV_XID_ERRORS", "gpu")[("0",)]):
                values = await node.scrape()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    assert counted == 79
    assert values("tessera_exporter_failures_total") == {(): 1}
    assert [each["event"] for each in logs] == ["gpu_event_not_counted"]


async def test_a_gpu_that_vanishes_while_it_is_measured_has_no_values_and_the_others_have(node: Node) -> None:
    t4, _ = await node.uuids()
    lost = Unavailable("GPU 0", found="lost", expected="an answer")
    node.driver.fail("measure", lost)
    with capture_logs() as logs:
        values = await node.scrape()
    assert values("DCGM_FI_DEV_FB_USED", "gpu") == {("1",): 0}
    assert values("tessera_exporter_failures_total") == {(): 1}
    assert [each["event"] for each in logs] == ["gpus_not_observed"]
    node.driver.lose(t4)
    values = await node.scrape()
    assert values("tessera_gpu_lost", "gpu") == {("0",): 1, ("1",): 0}
    assert values("tessera_device_healthy", "gpu") == {("0",): 0, ("1",): 1}
    assert values("DCGM_FI_DEV_FB_USED", "gpu") == {("1",): 0}


async def test_a_gpu_that_was_lost_before_the_agent_started_is_still_counted_and_lost(node: Node) -> None:
    node.driver.unseen = (2,)
    values = await node.scrape()
    assert values("tessera_gpu_lost", "gpu", "hostname") == {("0", "n1"): 0, ("1", "n1"): 0, ("2", "n1"): 1}
    assert values("tessera_device_healthy", "gpu", "hostname") == {("0", "n1"): 1, ("1", "n1"): 1, ("2", "n1"): 0}


async def test_a_gpu_that_a_pod_left_processes_on_is_counted_and_not_healthy(node: Node) -> None:
    t4, _ = await node.uuids()
    node.devices_of_orphans = (UnhealthyDevice(device=DeviceId(t4), reason="pod ml/a is gone"),)
    values = await node.scrape()
    assert values("tessera_device_orphaned", "gpu") == {("0",): 1, ("1",): 0}
    assert values("tessera_device_healthy", "gpu") == {("0",): 0, ("1",): 1}
    state = HealthState(phase=HealthPhase.UNHEALTHY, reason="XID 79", since_s=0.0, until_s=9.0)
    node.health = Health(states=((DeviceId(t4), state),))
    values = await node.scrape()
    assert values("tessera_device_orphaned", "gpu") == {("0",): 0, ("1",): 0}, "its error is what operators act on"
    assert values("tessera_device_healthy", "gpu") == {("0",): 0, ("1",): 1}


async def test_absurd_values_reach_no_metric(node: Node) -> None:
    t4, _ = await node.uuids()
    node.driver.set_measured(t4, temperature_c=2**32 - 1, power_watts=float("nan"), memory_used_mib=-5, energy_mj=7)
    values = await node.scrape()
    for name in ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_FB_FREE"):
        assert ("0",) not in values(name, "gpu"), name
    assert values("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "gpu") == {("0",): 7}


async def test_what_was_observed_too_long_ago_is_not_shown(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    assert b"tessera_exporter_age_seconds" not in node.exporter.render()
    await node.exporter.observe()
    assert b"DCGM_FI_DEV_FB_USED" in node.exporter.render()
    loop = asyncio.get_running_loop()
    later_s = loop.time() + 61
    monkeypatch.setattr(loop, "time", lambda: later_s)
    text = node.exporter.render()
    assert b"DCGM_FI_DEV_FB_USED" not in text
    assert b"tessera_exporter_age_seconds " in text


async def test_a_driver_that_never_answered_has_an_age(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent() -> Inventory:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(node.driver, "inventory", silent)
    running = asyncio.ensure_future(node.exporter.run(0.01))
    await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    later_s = loop.time() + 61
    monkeypatch.setattr(loop, "time", lambda: later_s)
    text = node.exporter.render().decode()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    (age,) = (line for line in text.splitlines() if line.startswith("tessera_exporter_age_seconds "))
    assert float(age.split()[1]) >= 60
    assert "tessera_exporter_duration_seconds " not in text


async def test_a_process_is_its_container_s_by_the_runtime_s_id(node: Node) -> None:
    t4, _ = await node.uuids()
    status = {"containerStatuses": [{"name": "c", "containerID": f"containerd://{ID}"}]}
    node.view.objects["a"] = {"metadata": {"namespace": "team", "name": "a", "uid": "uid-a"}, "status": status}
    use = AllocatedDevice(device=DeviceId(t4), exclusivity=Exclusivity.MEMORY, memory_mib=4096)
    node.allocate("a", use)
    node.entries.append(
        AgentAllocation(resource="r", ids=("2",), uses=(use,), uid="uid-a", pod="team/a", container="side")
    )
    node.run(t4, 101, "a", 3000)
    used = (await node.scrape())("DCGM_FI_DEV_FB_USED", "container")
    assert (used[("c",)], used[("side",)]) == (3000, 0)


async def test_the_report_names_who_drives_a_throttled_gpu_within_two_observations(node: Node) -> None:
    t4, _ = await node.uuids()
    assert read_usage(node.exporter.report(), "agent") == UsageReport(node="n1")
    for name in "ab":
        node.allocate(name, AllocatedDevice(device=DeviceId(t4), exclusivity=Exclusivity.MEMORY, memory_mib=4096))
    node.run(t4, 101, "a", 3000, 90)
    node.run(t4, 102, "b", 500, 5)
    await node.exporter.observe()
    node.driver.set_measured(t4, clocks_event_reasons=0x20, temperature_c=92)
    await node.exporter.observe()
    report = read_usage(node.exporter.report(), "agent")
    assert (report.node, report.age_s is not None) == ("n1", True)
    gpu = report.gpus[0]
    assert (gpu.throttled, gpu.temperature_c) == (("thermal",), 92)
    contention = {each.cause: (each.caused_by, each.affected) for each in gpu.contention}
    assert contention == dict.fromkeys(("thermal", "saturated"), (("team/a/c",), ("team/b/c",)))
    first = gpu.devices[0].containers[0]
    assert (first.name, first.used_mib, first.peak_mib, first.mean_percent) == ("team/a/c", 3000, 3000, 90)
    assert first.observed_s >= 0


async def test_a_driver_that_does_not_answer_ends_no_exporter(node: Node) -> None:
    node.driver.fail("inventory", Unavailable("GPU driver", found="none", expected="an answer"))
    running = asyncio.ensure_future(node.exporter.run(0.01))
    for _ in range(500):
        if b"DCGM_FI_DEV_FB_USED" in node.exporter.render():
            break
        await asyncio.sleep(0.01)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert b"tessera_exporter_failures_total 1\n" in node.exporter.render()


async def partitioned(node: Node, gpu: str) -> Placement:
    await node.driver.set_mig(gpu, enabled=True)
    await node.driver.create_instance(gpu, HALF)
    return HALF


def lost(node: Node, gpu: str) -> None:
    node.driver.lose(gpu)


def failing(node: Node, gpu: str) -> None:
    del gpu
    for _ in range(2):  # of both GPUs
        node.driver.fail("measure", Unavailable("GPU", found="busy", expected="an answer"))


def refusing(node: Node, gpu: str) -> None:
    node.driver.set_measured(gpu, processes=None)


@pytest.mark.parametrize("part", [False, True], ids=["whole", "instance"])
@pytest.mark.parametrize("trouble", [lost, failing, refusing])
async def test_what_is_not_measured_of_a_shared_device_is_unknown_and_not_0(
    node: Node, trouble: Callable[[Node, str], None], *, part: bool
) -> None:
    _, a100 = await node.uuids()
    placement = await partitioned(node, a100) if part else None
    for name in "ab":
        use = AllocatedDevice(device=DeviceId(a100, placement), exclusivity=Exclusivity.MEMORY, memory_mib=4096)
        node.allocate(name, use)
    trouble(node, a100)
    values = await node.scrape()
    assert not {key for key in values("DCGM_FI_DEV_FB_USED", "gpu", "pod") if key[1]}
    assert not {key for key in values("DCGM_FI_DEV_GPU_UTIL", "gpu", "pod") if key[1]}
    report = read_usage(node.exporter.report(), "agent")
    found = [each for gpu in report.gpus for device in gpu.devices for each in device.containers]
    assert [(each.used_mib, each.peak_mib, each.mean_percent) for each in found] == [(None, None, None)] * 2
    assert {each.verdict for each in recommendations([report])} == {Sizing.UNKNOWN}


async def test_one_failed_measurement_lowers_no_mean(node: Node) -> None:
    t4, _ = await node.uuids()
    for name in "ab":
        node.allocate(name, AllocatedDevice(device=DeviceId(t4), exclusivity=Exclusivity.MEMORY, memory_mib=4096))
    node.run(t4, 101, "a", 3000, 60)
    await node.scrape()
    failing(node, t4)
    await node.scrape()
    report = read_usage(node.exporter.report(), "agent")
    found = {each.pod: each for gpu in report.gpus for device in gpu.devices for each in device.containers}
    assert (found["a"].used_mib, found["a"].peak_mib, found["a"].mean_percent) == (None, 3000, 60)
