"""What a node's exporter shows of a real GPU, while programs of two pods use it, against what nvidia-smi says."""

import asyncio
import contextlib
import math
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from bench.scrape import EVERY_S, FLOORS, scraped
from builders.gpunodes import shared
from builders.nodeviews import RecordedPods, of_the_host
from harness.realgpu import CudaProgram, ReadOnlyDriver, RealGpu, SmiGpu, note
from tessera.agent.exporter import Exporter, NodeContainers
from tessera.api.tessera.usage.usagejson import read_usage
from tessera.core.cluster.gpunodestate import UnhealthyDevice
from tessera.core.cluster.snapshot import Gpu
from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation, AllocatedDevice, Exclusivity
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import Inventory
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.node.health import Health
from tessera.core.usage.contention import SATURATED
from tessera.core.usage.throttling import ThrottleCause, causes
from tessera.log import logger
from tessera.processports import MetricsPort, serving_metrics

pytestmark = [pytest.mark.anyio, pytest.mark.gpu]
SAMPLE = re.compile(r"(?P<name>[a-zA-Z_]+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
LABEL = re.compile(r'([a-zA-Z_]+)="((?:\\.|[^"\\])*)"')
CGROUPS = Path("/sys/fs/cgroup/kubepods-tessera-test")
ID = "ab" * 32
_PRODUCTS = """
import torch
one, two = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
one @ two
torch.cuda.synchronize()
print("ready", flush=True)
while True:
    for _ in range(50):
        one @ two
    torch.cuda.synchronize()
"""


class PodsOnGpu:
    """The pods that share the GPU, and the exporter of their node."""

    def __init__(self, driver: ReadOnlyDriver, inventory: Inventory, folder: Path) -> None:
        self.view = RecordedPods()
        self.health = Health()
        self.devices_of_orphans: tuple[UnhealthyDevice, ...] = ()
        self.entries: list[AgentAllocation] = []
        self.uuid = inventory.gpus[0].uuid
        self.gpus: tuple[Gpu, ...] = tuple(map(shared, inventory.gpus))
        self.proc = Path("/proc")
        self._folder = folder
        containers = NodeContainers(self, self.view, self._table(), self)
        self.exporter = Exporter("n1", driver, containers, self, self, logger())

    def _table(self) -> Path:
        """Return the machine's process table where it lets us make control groups, else one of our own."""
        with contextlib.suppress(OSError):
            CGROUPS.mkdir(exist_ok=True)
        if not (CGROUPS / "cgroup.procs").exists():
            self.proc = of_the_host(self._folder / "proc")
        return self.proc

    def slice_time(self, replicas: int) -> None:
        """Share the GPU by time-slicing."""
        sharing = Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", replicas),))
        self.gpus = tuple(msgspec.structs.replace(gpu, sharing=sharing) for gpu in self.gpus)

    def allocate(self, pod: str, use: AllocatedDevice) -> None:
        """Give a pod a part of the GPU."""
        self.view.objects[pod] = {"metadata": {"namespace": "team", "name": pod, "uid": f"uid-{pod}"}}
        entry = AgentAllocation(
            resource="r", ids=(pod,), uses=(use,), uid=f"uid-{pod}", pod=f"team/{pod}", container="c"
        )
        self.entries.append(entry)

    def enter(self, pod: str, program: CudaProgram) -> None:
        """Put a program into the control group of a pod's container."""
        if self.proc == Path("/proc"):
            folder = CGROUPS / f"poduid-{pod}" / ID
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "cgroup.procs").write_text(str(program.pid))
        else:
            (self.proc / str(program.pid)).mkdir()
            (self.proc / str(program.pid) / "cgroup").write_text(f"0::/kubepods/poduid-{pod}/{ID}\n")

    def samples(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yield the samples of the last observation."""
        for line in self.exporter.render().decode().splitlines():
            if not line.startswith("#"):
                match = SAMPLE.fullmatch(line)
                assert match is not None, line
                yield match["name"], dict(LABEL.findall(match["labels"] or "")), float(match["value"])

    def value(self, name: str, **labels: str) -> float:
        """Return the one sample with a name and these labels."""
        found = [each for own, at, each in self.samples() if own == name and labels.items() <= at.items()]
        assert len(found) == 1, (name, labels, found)
        return found[0]

    def clear(self) -> None:
        """Remove the control groups, whose programs have ended."""
        for folder in sorted(CGROUPS.glob("**/"), reverse=True):
            with contextlib.suppress(OSError):
                folder.rmdir()


@pytest.fixture
async def pods(real_gpu: RealGpu, tmp_path: Path) -> AsyncIterator[PodsOnGpu]:
    async with await real_gpu.driver() as driver:
        made = PodsOnGpu(driver, await driver.inventory(), tmp_path)
        yield made
    made.clear()


@contextlib.contextmanager
def load(real_gpu: RealGpu, pods: PodsOnGpu, **memory_mib: int) -> Iterator[dict[str, CudaProgram]]:
    """Run a program for each pod, of so much memory."""
    with contextlib.ExitStack() as stack:
        made = {pod: stack.enter_context(real_gpu.cuda(mib=mib)) for pod, mib in memory_mib.items()}
        for pod, program in made.items():
            pods.enter(pod, program)
        yield made


def near(smi: SmiGpu, path: str, value: float, most: float) -> None:
    """Check that nvidia-smi says about the same; both are readings of a moment."""
    told = smi.number(path)
    assert told is not None, path
    assert abs(told - value) <= most, (path, told, value)


async def test_the_metrics_of_two_pods_are_nvidia_smis(real_gpu: RealGpu, pods: PodsOnGpu) -> None:
    pods.allocate("busy", AllocatedDevice(device=DeviceId(pods.uuid), exclusivity=Exclusivity.MEMORY, memory_mib=8192))
    pods.allocate("idle", AllocatedDevice(device=DeviceId(pods.uuid), exclusivity=Exclusivity.MEMORY, memory_mib=4096))
    with load(real_gpu, pods, busy=6144, idle=2048) as programs:
        programs["busy"].must("busy", seconds=1)
        await pods.exporter.observe()
        programs["busy"].tell("busy", seconds=5)
        await asyncio.sleep(3)
        await pods.exporter.observe()
        smi = real_gpu.smi()
        programs["busy"].answer()
        told = smi.processes()
        own = {pod: pods.value("DCGM_FI_DEV_FB_USED", pod=pod) for pod in ("busy", "idle")}
        percent = {pod: pods.value("DCGM_FI_DEV_GPU_UTIL", pod=pod) for pod in ("busy", "idle")}
        whole = {
            name: value
            for name, labels, value in pods.samples()
            if name.startswith("DCGM") and "pod" not in labels and "cause" not in labels
        }
        note(
            attribution="cgroups" if pods.proc == Path("/proc") else "a process table of the test",
            used_mib=own,
            smi_mib={pod: told.get(program.pid) for pod, program in programs.items()},
            percent=percent,
            whole=whole,
        )
        for pod, program in programs.items():
            assert abs(own[pod] - told[program.pid]) <= 1, pod
        assert (percent["busy"] > 50, percent["idle"]) == (True, 0)
        near(smi, "utilization/gpu_util", whole["DCGM_FI_DEV_GPU_UTIL"], 10)
        near(smi, "temperature/gpu_temp", whole["DCGM_FI_DEV_GPU_TEMP"], 3)
        near(smi, "gpu_power_readings/instant_power_draw", whole["DCGM_FI_DEV_POWER_USAGE"], 60)
        near(smi, "clocks/sm_clock", whole["DCGM_FI_DEV_SM_CLOCK"], 150)
        near(smi, "clocks/mem_clock", whole["DCGM_FI_DEV_MEM_CLOCK"], 5)
        near(smi, "ecc_errors/volatile/sram_correctable", whole["DCGM_FI_DEV_ECC_SBE_VOL_TOTAL"], 0)
        used = pods.value("tessera_device_memory_used_bytes") / (1 << 20)
        near(smi, "fb_memory_usage/used", used, 1)
        near(smi, "fb_memory_usage/free", pods.value("DCGM_FI_DEV_FB_FREE"), 2)
        assert whole["DCGM_FI_PROF_GR_ENGINE_ACTIVE"] > 0.9
        assert whole["DCGM_FI_PROF_SM_ACTIVE"] > 0.9
        assert whole["DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"] < 0.05
        reasons = int(whole["DCGM_FI_DEV_CLOCKS_EVENT_REASONS"])
        note(reasons=hex(reasons), causes=causes(reasons), smi=throttling(smi))
        shown = {cause for cause in ThrottleCause if pods.value("tessera_gpu_throttled", cause=cause.value)}
        assert shown == set(causes(reasons))


def throttling(smi: SmiGpu) -> list[str]:
    """Return the reasons that nvidia-smi shows as active."""
    found = smi.gpu.find("clocks_event_reasons")
    return [each.tag for each in found if each.text == "Active"] if found is not None else []


@contextlib.contextmanager
def products() -> Iterator[None]:
    """Multiply matrices by PyTorch, on tensor cores."""
    with subprocess.Popen(
        [sys.executable, "-c", _PRODUCTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as torch:
        assert torch.stdout is not None
        if not torch.stdout.readline():
            pytest.skip("PyTorch is not installed")
        yield
        torch.terminate()


async def test_work_of_tensor_cores_and_its_power_are_seen(real_gpu: RealGpu, pods: PodsOnGpu) -> None:
    with products():
        await pods.exporter.observe()
        await asyncio.sleep(5)
        await pods.exporter.observe()
        smi = real_gpu.smi()
        whole = {name: value for name, labels, value in pods.samples() if "cause" not in labels}
        throttled = {cause.value: pods.value("tessera_gpu_throttled", cause=cause.value) for cause in ThrottleCause}
        note(
            **{name: value for name, value in whole.items() if name.startswith(("DCGM_FI_PROF", "DCGM_FI_DEV_"))},
            throttled=throttled,
            smi=throttling(smi),
        )
        assert whole["DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"] > 0.3
        assert whole["DCGM_FI_PROF_DRAM_ACTIVE"] > 0.01
        near(smi, "gpu_power_readings/instant_power_draw", whole["DCGM_FI_DEV_POWER_USAGE"], 120)
        assert whole["DCGM_FI_DEV_POWER_USAGE"] > 400
    await pods.exporter.observe()
    energy = pods.value("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION")
    await asyncio.sleep(2)
    await pods.exporter.observe()
    assert pods.value("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION") > energy


async def test_no_metric_is_absurd(real_gpu: RealGpu, pods: PodsOnGpu) -> None:
    pods.allocate("busy", AllocatedDevice(device=DeviceId(pods.uuid), exclusivity=Exclusivity.MEMORY, memory_mib=8192))
    with load(real_gpu, pods, busy=1024) as programs:
        for _ in range(4):
            programs["busy"].must("busy", seconds=0.4)
            await pods.exporter.observe()
            for name, labels, value in pods.samples():
                assert math.isfinite(value), (name, labels, value)
                assert value >= 0, (name, labels, value)
                assert int(value) not in {(1 << 32) - 1, (1 << 63) - 1, (1 << 64) - 1}, (name, labels, value)
                if name.endswith(("_UTIL", "_ACTIVE")):
                    assert value <= (1 if "_PROF_" in name else 100), (name, labels, value)
        names = sorted({name for name, _, _ in pods.samples()})
        note(series=len(list(pods.samples())), names=len(names), failures=pods.value("tessera_exporter_failures_total"))
        assert pods.value("tessera_exporter_failures_total") == 0
        assert {"DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_DEV_XID_ERRORS"} <= set(names)


async def test_observing_and_scraping_cost_what_is_promised(real_gpu: RealGpu, pods: PodsOnGpu) -> None:
    pods.allocate("busy", AllocatedDevice(device=DeviceId(pods.uuid), exclusivity=Exclusivity.MEMORY, memory_mib=8192))
    with load(real_gpu, pods, busy=1024) as programs:
        programs["busy"].tell("busy", seconds=6)
        await pods.exporter.observe()
        walls: list[float] = []
        began = time.process_time()
        for _ in range(20):
            at = time.perf_counter()
            await pods.exporter.observe()
            walls.append(time.perf_counter() - at)
        observing = (time.process_time() - began) / len(walls)
        times: list[float] = []
        async with serving_metrics(MetricsPort(port=0), pods.exporter.render) as port:
            began = time.process_time()
            for _ in range(200):
                at = time.perf_counter()
                assert await scraped(port)
                times.append(time.perf_counter() - at)
            scraping = (time.process_time() - began) / len(times)
        programs["busy"].answer()
    walls, times = sorted(walls), sorted(times)
    found = {
        "scrape p99 ms": 1000 * times[int(len(times) * 0.99)],
        "core at 15 s, percent": 100 * (observing + scraping) / EVERY_S,
    }
    note(
        observation_ms={"p50": 1000 * walls[10], "most": 1000 * walls[-1], "cpu": 1000 * observing},
        scrape_p50_ms=1000 * times[100],
        **{name.replace(" ", "_"): value for name, value in found.items()},
    )
    for name, value in found.items():
        assert value <= FLOORS[name], name


async def test_programs_that_take_turns_both_progress_and_are_told_apart(real_gpu: RealGpu, pods: PodsOnGpu) -> None:
    """Time-slicing: two busy programs and an idle one, without MPS."""
    pods.slice_time(3)
    for pod in ("one", "two", "idle"):
        pods.allocate(pod, AllocatedDevice(device=DeviceId(pods.uuid), exclusivity=Exclusivity.REPLICA))
    with load(real_gpu, pods, one=512, two=512, idle=512) as programs:
        alone = programs["one"].must("busy", seconds=2)["rounds"]
        await pods.exporter.observe()
        for pod in ("one", "two"):
            programs[pod].tell("busy", seconds=8)
        await asyncio.sleep(6)
        await pods.exporter.observe()
        percent = {pod: pods.value("DCGM_FI_DEV_GPU_UTIL", pod=pod) for pod in ("one", "two", "idle")}
        report = read_usage(pods.exporter.report(), "the report")
        rounds = {pod: programs[pod].answer()["rounds"] for pod in ("one", "two")}
        note(alone_in_2_s=alone, together_in_8_s=rounds, percent=percent, contention=report.gpus[0].contention)
        # Each has about half, neither waits for the other's end.
        assert 0.5 <= rounds["one"] / rounds["two"] <= 2
        assert sum(rounds.values()) >= 0.6 * 4 * alone
        assert percent["idle"] == 0
        assert all(percent[pod] >= 20 for pod in ("one", "two")), percent
        saturated = [each for each in report.gpus[0].contention if each.cause == SATURATED]
        assert saturated
        assert {*saturated[0].evenly, *saturated[0].caused_by} == {"team/one/c", "team/two/c"}
        assert "team/idle/c" not in saturated[0].caused_by


async def test_a_pod_that_slows_another_is_named(real_gpu: RealGpu, pods: PodsOnGpu) -> None:
    pods.slice_time(2)
    for pod in ("busy", "quiet"):
        pods.allocate(pod, AllocatedDevice(device=DeviceId(pods.uuid), exclusivity=Exclusivity.REPLICA))
    with load(real_gpu, pods, busy=512, quiet=512) as programs:
        programs["busy"].must("busy", seconds=0.5)
        await pods.exporter.observe()
        programs["busy"].tell("busy", seconds=5)
        await asyncio.sleep(4)
        await pods.exporter.observe()
        report = read_usage(pods.exporter.report(), "the report")
        programs["busy"].answer()
        note(contention=report.gpus[0].contention, containers=report.gpus[0].devices[0].containers)
        (found,) = [each for each in report.gpus[0].contention if each.cause == SATURATED]
        assert (found.caused_by, found.affected) == (("team/busy/c",), ("team/quiet/c",))
