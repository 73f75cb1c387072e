"""GPUs by NVML, over the simulated library: the conformance suite, and what only NVML can do."""

import ctypes
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pynvml
import pytest

from conformance.gpusuite import GpuSuite
from tessera.clients.gpu import Deadlines, NvmlDriver
from tessera.core.inventory import GpuFacts
from tessera.core.mig import Placement
from tessera.sim.nvmlsim import Machine, Process, create_state, library

QUICK = Deadlines(events_s=0.01)


class NvmlWorld:
    """A simulated machine, and NVML's view of it."""

    def __init__(self, machine: Machine, driver: NvmlDriver) -> None:
        self.machine = machine
        self.driver = driver

    def start_process(self, gpu: GpuFacts, pid: int, placement: Placement | None = None, memory_mib: int = 0) -> None:
        process = Process(pid=pid, memory_mib=memory_mib)
        for each in gpu.instances:
            if each.placement == placement:
                process = Process(pid=pid, memory_mib=memory_mib, gpu_instance=each.gpu_instance, compute_instance=0)
        self.machine.add_process(gpu.index, process)

    def end_process(self, pid: int) -> None:
        self.machine.remove_process(pid)

    def fail_half_way(self) -> None:
        self.machine.fault("nvmlGpuInstanceCreateComputeInstance*", code=pynvml.NVML_ERROR_UNKNOWN)
        self.machine.fault("nvmlGpuInstanceDestroy", code=pynvml.NVML_ERROR_UNKNOWN)

    def xid(self, gpu: GpuFacts, number: int, placement: Placement | None = None) -> None:
        on = [each for each in gpu.instances if each.placement == placement]
        names = {"gpu_instance": on[0].gpu_instance, "compute_instance": on[0].compute_instance} if on else {}
        self.machine.inject_xid(gpu.index, number, **names)

    def lose(self, gpu: GpuFacts) -> None:
        self.machine.lose(gpu.index)

    def require_reset(self, gpu: GpuFacts) -> None:
        self.machine.set(gpu.index, "mig_needs_reset", 1)

    def reset(self, gpu: GpuFacts) -> None:
        self.machine.reset_gpu(gpu.index)


@pytest.fixture(scope="session")
def simulated() -> None:
    """Load the simulator before pynvml asks for it: one of the same name that is there already is not loaded again."""
    ctypes.CDLL(str(library()))


@pytest.fixture
def machine(simulated: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    del simulated
    create_state(tmp_path / "state", ("A100-40GB", "T4"))
    monkeypatch.setenv("TESSERA_NVMLSIM_STATE", str(tmp_path / "state"))
    with Machine(tmp_path / "state") as machine:
        yield machine


@pytest.fixture
async def world(machine: Machine) -> AsyncIterator[NvmlWorld]:
    async with await NvmlDriver.open(deadlines=QUICK) as driver:
        yield NvmlWorld(machine, driver)


class TestNvmlDriver(GpuSuite):
    pass
