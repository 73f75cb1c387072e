"""Faults on demand: codes, countdowns, latency, lost GPUs; who is struck, and who is not."""

import time
from typing import Any

import pynvml
import pytest

from harness.nvmlcalls import create_instance
from tessera.errors import Conflict, InvalidInput, Unavailable
from tessera.sim.nvmlsim import FOREVER, Machine, Process
from tessera.sim.nvmlsim.faults import CODES, code_of, code_text, function_of, functions


def test_the_next_call_fails_and_the_one_after_does_not(machine: Machine, t4: Any) -> None:
    machine.fault("nvmlDeviceGetMemoryInfo", code=pynvml.NVML_ERROR_UNKNOWN)
    with pytest.raises(pynvml.NVMLError_Unknown):
        pynvml.nvmlDeviceGetMemoryInfo(t4)
    assert pynvml.nvmlDeviceGetMemoryInfo(t4).total
    assert machine.describe()["faults"] == []


def test_the_third_creation_fails(machine: Machine, a100: Any) -> None:
    machine.fault("nvmlDeviceCreateGpuInstance*", code=CODES["INSUFFICIENT_RESOURCES"], skip=2)
    create_instance(a100, 19, 0, 1)
    pynvml.nvmlDeviceCreateGpuInstance(a100, 19)
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        create_instance(a100, 19, 2, 1)
    create_instance(a100, 19, 2, 1)


def test_a_fault_strikes_so_often_and_then_no_more(machine: Machine, t4: Any) -> None:
    machine.fault("nvmlDeviceGetName", code=CODES["TIMEOUT"], times=2)
    for _ in range(2):
        with pytest.raises(pynvml.NVMLError_Timeout):
            pynvml.nvmlDeviceGetName(t4)
    assert pynvml.nvmlDeviceGetName(t4) == "Tesla T4"


def test_a_fault_for_ever_ends_when_it_is_cleared(machine: Machine, t4: Any) -> None:
    machine.fault("nvmlDeviceGetName", code=CODES["TIMEOUT"], times=FOREVER)
    for _ in range(20):
        with pytest.raises(pynvml.NVMLError_Timeout):
            pynvml.nvmlDeviceGetName(t4)
    machine.clear_faults()
    assert pynvml.nvmlDeviceGetName(t4) == "Tesla T4"


def test_a_fault_of_one_gpu_spares_the_others(machine: Machine, a100: Any, t4: Any) -> None:
    machine.fault("nvmlDeviceGetName", code=CODES["TIMEOUT"], gpu=1, times=FOREVER)
    assert pynvml.nvmlDeviceGetName(a100)
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlDeviceGetName(t4)


def test_a_name_without_version_means_all_versions(machine: Machine, t4: Any) -> None:
    machine.fault("nvmlDeviceGetComputeRunningProcesses", code=CODES["TIMEOUT"], times=FOREVER)
    machine.fault("nvmlDeviceGetMemoryInfo_v2", code=CODES["TIMEOUT"], times=FOREVER)
    for call in (
        pynvml.nvmlDeviceGetComputeRunningProcesses_v2,
        pynvml.nvmlDeviceGetComputeRunningProcesses_v3,
        lambda gpu: pynvml.nvmlDeviceGetMemoryInfo(gpu, version=pynvml.nvmlMemory_v2),
    ):
        with pytest.raises(pynvml.NVMLError_Timeout):
            call(t4)
    assert pynvml.nvmlDeviceGetMemoryInfo(t4)
    assert pynvml.nvmlDeviceGetMPSComputeRunningProcesses(t4) == []


def test_initialisation_may_fail(machine: Machine) -> None:
    machine.fault("nvmlInit", code=CODES["DRIVER_NOT_LOADED"])
    with pytest.raises(pynvml.NVMLError_DriverNotLoaded):
        pynvml.nvmlInit()
    pynvml.nvmlInit()
    pynvml.nvmlShutdown()


def test_latency_holds_up_the_caller_alone(machine: Machine, t4: Any) -> None:
    machine.fault("nvmlDeviceGetName", latency_ms=60)
    began = time.monotonic()
    assert pynvml.nvmlDeviceGetName(t4) == "Tesla T4"
    assert time.monotonic() - began >= 0.06
    machine.fault("nvmlDeviceGetUUID", code=CODES["TIMEOUT"], latency_ms=60)
    began = time.monotonic()
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlDeviceGetUUID(t4)
    assert time.monotonic() - began >= 0.06


def test_a_lost_gpu_answers_nothing(machine: Machine, a100: Any, t4: Any) -> None:
    uuid = pynvml.nvmlDeviceGetUUID(t4)
    machine.lose(1)
    for call in (pynvml.nvmlDeviceGetName, pynvml.nvmlDeviceGetMemoryInfo, pynvml.nvmlDeviceGetUtilizationRates):
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            call(t4)
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetHandleByIndex(1)
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetHandleByUUID(uuid)
    assert pynvml.nvmlDeviceGetCount() == 2
    assert pynvml.nvmlDeviceGetName(a100)
    with pytest.raises(Conflict, match="lost"):
        machine.reset_gpu(1)
    machine.renew()
    assert pynvml.nvmlDeviceGetUUID(t4) == uuid


def test_renewing_takes_all_back_but_identity(machine: Machine, a100: Any) -> None:
    before = pynvml.nvmlDeviceGetUUID(a100)
    create_instance(a100, 19, 0, 1)
    machine.fault("nvmlDeviceGetName", code=1)
    machine.set(0, "mig_needs_reset", 1)
    machine.renew()
    described = machine.describe()
    assert (described["faults"], described["gpus"][0]["instances"]) == ([], [])
    assert described["gpus"][0]["mig"] == {"capable": True, "current": 0, "pending": 0, "needs_reset": False}
    assert pynvml.nvmlDeviceGetUUID(a100) == before


def test_a_reset_is_refused_to_a_gpu_in_use(machine: Machine, a100: Any) -> None:
    create_instance(a100, 19, 0, 1)
    machine.reset_gpu(0)
    assert machine.describe()["gpus"][0]["instances"] == []
    machine.add_process(1, Process(pid=7))
    with pytest.raises(Conflict, match="in use"):
        machine.reset_gpu(1)
    with pytest.raises(InvalidInput):
        machine.reset_gpu(2)


def test_the_table_of_faults_has_an_end(machine: Machine) -> None:
    for _ in range(64):
        machine.fault("nvmlDeviceGetName", code=1)
    with pytest.raises(Unavailable, match="full table"):
        machine.fault("nvmlDeviceGetName", code=1)


@pytest.mark.parametrize(
    "settings", [{"function": ""}, {"times": 0}, {"gpu": 2}, {"function": "x" * 200}], ids=lambda each: next(iter(each))
)
def test_faults_that_make_no_sense(machine: Machine, settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        machine.fault(**{"function": "nvmlInit", "code": 1, **settings})


@pytest.mark.parametrize(("field", "value"), [("name", 1), ("memory_mib", 1), ("nothing", 1), ("lost", 2**40)])
def test_what_never_changes_cannot_be_set(machine: Machine, field: str, value: int) -> None:
    with pytest.raises(InvalidInput):
        machine.set(0, field, value)


def test_codes_go_by_name_and_number() -> None:
    assert code_of("NVML_ERROR_IN_USE") == code_of("in_use") == code_of("19") == 19
    assert code_text(19) == "IN_USE"
    assert code_text(77) == "77"
    assert code_of("success") == 0
    for wrong in ("IN_USED", "77", ""):
        with pytest.raises(InvalidInput):
            code_of(wrong)


def test_functions_go_by_name() -> None:
    assert len(functions()) > 100
    for right in ("nvmlInit", "nvmlInit_v2", "nvmlDeviceGetMemoryInfo", "nvmlDeviceCreateGpuInstance*", "nvml*"):
        assert function_of(right) == right
    for wrong in ("nvmlDeviceGetMemoryInf", "cuMemAlloc", "*x", "cu*"):
        with pytest.raises(InvalidInput):
            function_of(wrong)
