"""Memory as drivers tell it, and the limits that those from r615 on hold for a cgroup."""

from typing import Any

import pynvml
import pytest

from harness.nvmlcalls import cut_whole, mig_devices
from tessera.errors import Conflict
from tessera.sim.nvmlsim import Machine, Process

MIB = 1 << 20
NONE = pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX


def test_the_first_version_counts_reserved_memory_as_used(machine: Machine, t4: Any) -> None:
    machine.add_process(1, Process(pid=7, memory_mib=1000))
    first = pynvml.nvmlDeviceGetMemoryInfo(t4)
    second = pynvml.nvmlDeviceGetMemoryInfo(t4, version=pynvml.nvmlMemory_v2)
    assert second.used == 1000 * MIB
    assert 0 < second.reserved < 512 * MIB
    assert first.used == second.used + second.reserved
    assert first.free == second.free == first.total - first.used
    assert first.total == second.total == 15360 * MIB


def test_memory_of_another_version_is_refused(t4: Any) -> None:
    with pytest.raises(pynvml.NVMLError_ArgumentVersionMismatch):
        pynvml.nvmlDeviceGetMemoryInfo(t4, version=0x03000028)


def test_an_instance_has_its_own_memory(machine: Machine, a100: Any) -> None:
    cut_whole(a100, 19, 0, 1)
    cut_whole(a100, 19, 1, 1)
    machine.add_process(0, Process(pid=7, memory_mib=4000, gpu_instance=8, compute_instance=0))
    one, other = (pynvml.nvmlDeviceGetMemoryInfo(each) for each in mig_devices(a100))
    assert (one.total, one.used) == (4864 * MIB, 14 * MIB)
    assert (other.used, other.free) == (4014 * MIB, 850 * MIB)
    assert pynvml.nvmlDeviceGetMemoryInfo(a100, version=pynvml.nvmlMemory_v2).used == 4028 * MIB


def test_bar1(t4: Any) -> None:
    info = pynvml.nvmlDeviceGetBAR1MemoryInfo(t4)
    assert info.bar1Total == info.bar1Free + info.bar1Used == 16384 * MIB


def set_limits(gpu: Any, cgroup: bytes, hard: int, soft: int = 0) -> None:
    pynvml.nvmlDeviceSetMemoryLimits_v1(gpu, pynvml.c_nvmlSetMemoryLimits_v1_t(cgroup, soft, hard))


def limits(gpu: Any, cgroup: bytes) -> tuple[int, int, int]:
    got = pynvml.c_nvmlGetMemoryLimits_v1_t(cgroup)
    pynvml.nvmlDeviceGetMemoryLimits_v1(gpu, got)
    return got.softLimit, got.hardLimit, got.currentUsed


def test_limits_hold_for_a_cgroup_and_those_below_it(machine: Machine, t4: Any) -> None:
    assert limits(t4, b"/pod") == (NONE, NONE, 0)
    set_limits(t4, b"/pod", 3000 * MIB)
    machine.add_process(1, Process(pid=7, memory_mib=2000, cgroup="/pod/container"))
    machine.add_process(1, Process(pid=8, memory_mib=2000, cgroup="/podium"))
    assert limits(t4, b"/pod") == (0, 3000 * MIB, 2000 * MIB)
    with pytest.raises(Conflict, match="memory"):
        machine.add_process(1, Process(pid=9, memory_mib=1001, cgroup="/pod"))
    machine.add_process(1, Process(pid=9, memory_mib=1000, cgroup="/pod"))
    assert limits(t4, b"/pod")[2] == 3000 * MIB


def test_limits_are_changed_and_lifted(machine: Machine, t4: Any) -> None:
    set_limits(t4, b"/pod", 3000 * MIB)
    set_limits(t4, b"/pod", 4000 * MIB, 1000 * MIB)
    assert limits(t4, b"/pod") == (1000 * MIB, 4000 * MIB, 0)
    assert len(machine.describe()["limits"]) == 1
    set_limits(t4, b"/pod", NONE, NONE)
    assert limits(t4, b"/pod") == (NONE, NONE, 0)
    assert machine.describe()["limits"] == []


@pytest.mark.parametrize(
    ("cgroup", "hard", "soft"),
    [(b"", 1, 0), (None, 1, 0), (b"/" + b"x" * 300, 1, 0), (b"/pod", 5, 6)],
    ids=["empty", "none", "too long", "soft above hard"],
)
def test_limits_that_make_no_sense(t4: Any, cgroup: Any, hard: int, soft: int) -> None:
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        set_limits(t4, cgroup, hard, soft)


def test_limits_are_not_for_mig(a100: Any) -> None:
    cut_whole(a100, 19, 0, 1)
    for device in (a100, *mig_devices(a100)):
        with pytest.raises(pynvml.NVMLError_NotSupported):
            set_limits(device, b"/pod", MIB)
        with pytest.raises(pynvml.NVMLError_NotSupported):
            limits(device, b"/pod")


def test_limits_are_not_for_older_drivers(start: Any) -> None:
    start("T4", driver="595.91.07")
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    with pytest.raises(pynvml.NVMLError_FunctionNotFound):
        set_limits(gpu, b"/pod", MIB)
    with pytest.raises(pynvml.NVMLError_FunctionNotFound):
        limits(gpu, b"/pod")


def test_the_table_of_limits_has_an_end(t4: Any) -> None:
    for number in range(512):
        set_limits(t4, b"/pod%d" % number, MIB)
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        set_limits(t4, b"/one-more", MIB)
    set_limits(t4, b"/pod3", NONE, NONE)
    set_limits(t4, b"/one-more", MIB)
