"""Nodes with GPUs as the conformance suite of the GPU driver wants them: in memory, and NVML over simulated GPUs."""

from collections.abc import Callable

import pynvml

from tessera.clients.gpu import Deadlines, MemoryDriver, NvmlDriver
from tessera.core.gpu.inventory import GpuEvent, GpuFacts
from tessera.core.gpu.mig import Placement
from tessera.errors import Unavailable
from tessera.sim.nvmlsim import Machine, Process

Start = Callable[..., Machine]
"""Makes the machine that NVML will show."""
QUICK = Deadlines(events_s=0.01)
SILENT = Unavailable("GPU driver", found="none", expected="an answer within the deadline")


class MemoryWorld:
    """A node in memory."""

    def __init__(self) -> None:
        self.driver = MemoryDriver.of("A100-40GB", "T4")

    def start_process(self, gpu: GpuFacts, pid: int, placement: Placement | None = None, memory_mib: int = 0) -> None:
        self.driver.start_process(gpu.uuid, pid, placement, memory_mib)

    def end_process(self, pid: int) -> None:
        self.driver.end_process(pid)

    def fail_half_way(self) -> None:
        self.driver.fail("create_instance", SILENT, half_done=True)

    def xid(self, gpu: GpuFacts, number: int, placement: Placement | None = None) -> None:
        on = next((each.gpu_instance for each in gpu.instances if each.placement == placement), None)
        self.driver.report(GpuEvent(gpu=gpu.uuid, xid=number, gpu_instance=on))

    def lose(self, gpu: GpuFacts) -> None:
        self.driver.lose(gpu.uuid)

    def require_reset(self, gpu: GpuFacts) -> None:
        self.driver.hold_mode_changes(gpu.uuid)

    def reset(self, gpu: GpuFacts) -> None:
        self.driver.reset(gpu.uuid)


class NvmlWorld:
    """A simulated machine, and NVML's view of it."""

    def __init__(self, machine: Machine, driver: NvmlDriver) -> None:
        self.machine = machine
        self.driver = driver

    def start_process(self, gpu: GpuFacts, pid: int, placement: Placement | None = None, memory_mib: int = 0) -> None:
        process = Process(pid=pid, memory_mib=memory_mib)
        for each in gpu.instances:
            if each.placement == placement:
                on, part = each.gpu_instance, each.compute_instance
                process = Process(pid=pid, memory_mib=memory_mib, gpu_instance=on, compute_instance=part)
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
