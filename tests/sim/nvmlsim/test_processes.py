"""Processes on GPUs and instances: their lists in every version, and what a machine refuses."""

from ctypes import byref, c_uint
from typing import Any

import pynvml
import pytest

from harness.nvmlcalls import cut_whole, mig_devices
from tessera.errors import Conflict, InvalidInput
from tessera.sim.nvmlsim import Machine, Process

LISTS = {
    "compute": "nvmlDeviceGetComputeRunningProcesses",
    "graphics": "nvmlDeviceGetGraphicsRunningProcesses",
    "mps": "nvmlDeviceGetMPSComputeRunningProcesses",
}


@pytest.mark.parametrize("mode", LISTS)
@pytest.mark.parametrize("version", ["", "_v2", "_v3"])
def test_a_process_is_on_its_list(machine: Machine, t4: Any, mode: Any, version: str) -> None:
    machine.add_process(1, Process(pid=7, mode=mode, memory_mib=300))
    for other, name in LISTS.items():
        (*got,) = getattr(pynvml, name + version)(t4)
        listed = other == mode or (mode, other) == ("mps", "compute")  # a client of an MPS server computes too
        assert [(each.pid, each.usedGpuMemory) for each in got] == ([(7, 300 << 20)] if listed else [])


def test_the_oldest_layout_has_no_instances(machine: Machine, t4: Any) -> None:
    for pid in (7, 8):
        machine.add_process(1, Process(pid=pid, memory_mib=pid))
    room = (c_uint * 8)()  # pid, padding, memory in two words, twice
    count = c_uint(2)
    call = pynvml._nvmlGetFunctionPointer("nvmlDeviceGetComputeRunningProcesses")
    assert call(t4, byref(count), room) == pynvml.NVML_SUCCESS
    assert (count.value, room[0], room[2], room[4], room[6]) == (2, 7, 7 << 20, 8, 8 << 20)


def test_an_instance_lists_its_own_and_the_gpu_all(machine: Machine, a100: Any) -> None:
    cut_whole(a100, 9, 0, 4)
    cut_whole(a100, 9, 4, 4)
    machine.add_process(0, Process(pid=7, gpu_instance=1, compute_instance=0))
    machine.add_process(0, Process(pid=8, gpu_instance=2, compute_instance=0))
    call = pynvml.nvmlDeviceGetComputeRunningProcesses
    assert [(each.pid, each.gpuInstanceId, each.computeInstanceId) for each in call(a100)] == [(7, 1, 0), (8, 2, 0)]
    assert [[each.pid for each in call(device)] for device in mig_devices(a100)] == [[7], [8]]


def test_without_mig_a_process_names_no_instance(machine: Machine, t4: Any) -> None:
    machine.add_process(1, Process(pid=7))
    (got,) = pynvml.nvmlDeviceGetComputeRunningProcesses(t4)
    assert got.gpuInstanceId == got.computeInstanceId == 0xFFFFFFFF


def test_a_list_without_room_tells_how_much_is_needed(machine: Machine, t4: Any) -> None:
    for pid in (7, 8, 9):
        machine.add_process(1, Process(pid=pid))
    call = pynvml._nvmlGetFunctionPointer("nvmlDeviceGetComputeRunningProcesses_v3")
    count = c_uint(2)
    room = (pynvml.c_nvmlProcessInfo_t * 2)()
    assert call(t4, byref(count), room) == pynvml.NVML_ERROR_INSUFFICIENT_SIZE
    assert count.value == 3
    assert call(t4, byref(count), None) == pynvml.NVML_ERROR_INVALID_ARGUMENT
    assert call(t4, None, None) == pynvml.NVML_ERROR_INVALID_ARGUMENT


def test_the_detailed_list(machine: Machine, t4: Any) -> None:
    machine.add_process(1, Process(pid=7, mode="mps"))
    machine.add_process(1, Process(pid=8))
    version = pynvml.nvmlProcessDetailList_v1
    for mode, want in ((pynvml.NVML_PROCESS_MODE_MPS, [7]), (pynvml.NVML_PROCESS_MODE_ALL, [7, 8])):
        got = pynvml.nvmlDeviceGetRunningProcessDetailList(t4, version, mode)
        assert [each.pid for each in got] == want
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetRunningProcessDetailList(t4, version, 9)
    with pytest.raises(pynvml.NVMLError_ArgumentVersionMismatch):
        pynvml.nvmlDeviceGetRunningProcessDetailList(t4, 1, 0)


def test_utilization_of_each_process(machine: Machine, t4: Any) -> None:
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetProcessUtilization(t4, 0)
    machine.add_process(1, Process(pid=7, sm_percent=30))
    machine.add_process(1, Process(pid=8))
    (got,) = pynvml.nvmlDeviceGetProcessUtilization(t4, 0)
    assert (got.pid, got.smUtil) == (7, 30), "the idle one has no sample"
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetProcessUtilization(t4, got.timeStamp + 3_600_000_000)


def test_what_clients_of_mps_compute_is_the_servers(machine: Machine, t4: Any) -> None:
    """The load of the GPU counts it once; without a server nobody has it."""

    def sampled() -> dict[int, int]:
        return {each.pid: each.smUtil for each in pynvml.nvmlDeviceGetProcessUtilization(t4, 0)}

    machine.add_process(1, Process(pid=7, mode="mps", sm_percent=30))
    with pytest.raises(pynvml.NVMLError_NotFound):
        sampled()
    machine.add_process(1, Process(pid=8, name="nvidia-cuda-mps-server", memory_mib=66))
    assert sampled() == {8: 30}
    machine.add_process(1, Process(pid=9, mode="mps", sm_percent=25))
    machine.add_process(1, Process(pid=10, sm_percent=5))
    assert sampled() == {8: 55, 10: 5}
    assert pynvml.nvmlDeviceGetUtilizationRates(t4).gpu == 60
    machine.remove_process(7)
    assert sampled() == {8: 25, 10: 5}


def test_processes_need_a_seat_that_is_there(machine: Machine, a100: Any) -> None:
    cut_whole(a100, 19, 0, 1)
    wrong = {
        "no instance named, with MIG on": (0, Process(pid=7)),
        "an instance that is not there": (0, Process(pid=7, gpu_instance=8, compute_instance=0)),
        "a compute instance that is not there": (0, Process(pid=7, gpu_instance=7, compute_instance=1)),
        "an instance of a GPU without MIG": (1, Process(pid=7, gpu_instance=7, compute_instance=0)),
        "no such GPU": (2, Process(pid=7)),
        "process 0": (1, Process(pid=0)),
        "more than the whole GPU": (1, Process(pid=7, sm_percent=101)),
        "a name without end": (1, Process(pid=7, name="x" * 300)),
    }
    for case, (gpu, process) in wrong.items():
        with pytest.raises(InvalidInput):
            machine.add_process(gpu, process)
        assert machine.describe()["processes"] == [], case
    with pytest.raises(InvalidInput):
        machine.remove_process(7)


def test_memory_is_not_given_twice(machine: Machine, a100: Any) -> None:
    cut_whole(a100, 19, 0, 1)
    seat = Process(pid=7, memory_mib=4000, gpu_instance=7, compute_instance=0)
    machine.add_process(0, seat)
    with pytest.raises(Conflict, match="memory"):
        machine.add_process(0, Process(pid=8, memory_mib=865, gpu_instance=7, compute_instance=0))
    with pytest.raises(Conflict, match="in use"):
        machine.add_process(0, seat)
    with pytest.raises(Conflict, match="memory"):
        machine.add_process(1, Process(pid=7, memory_mib=15360))


def test_compute_mode_decides_who_may_run(machine: Machine, t4: Any) -> None:
    pynvml.nvmlDeviceSetComputeMode(t4, pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
    machine.add_process(1, Process(pid=7))
    with pytest.raises(Conflict):
        machine.add_process(1, Process(pid=8))
    machine.add_process(1, Process(pid=9, mode="mps"))
    machine.add_process(1, Process(pid=10, mode="graphics"))
    pynvml.nvmlDeviceSetComputeMode(t4, pynvml.NVML_COMPUTEMODE_PROHIBITED)
    with pytest.raises(InvalidInput, match="add_process: it is not permitted"):
        machine.add_process(1, Process(pid=11, mode="mps"))


def test_one_process_may_use_several_gpus(start: Any) -> None:
    machine = start("2xT4")
    machine.add_process(0, Process(pid=7))
    machine.add_process(1, Process(pid=7))
    machine.remove_process(7, gpu=0)
    assert [each["gpu"] for each in machine.describe()["processes"]] == [1]
    machine.add_process(0, Process(pid=7))
    machine.remove_process(7)
    assert machine.describe()["processes"] == []


def test_the_table_of_processes_has_an_end(start: Any) -> None:
    machine = start("T4")
    for pid in range(1, 513):
        machine.add_process(0, Process(pid=pid, memory_mib=1))
    with pytest.raises(Exception, match="full table"):
        machine.add_process(0, Process(pid=513, memory_mib=1))
    assert len(pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(0))) == 512
