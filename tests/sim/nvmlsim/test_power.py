"""Load, temperature, power and clocks."""

from collections.abc import Callable
from typing import Any

import pynvml
import pytest

from tessera.sim.nvmlsim import Machine, Process


def test_load_is_that_of_the_processes(machine: Machine, t4: Any) -> None:
    assert pynvml.nvmlDeviceGetUtilizationRates(t4).gpu == 0
    assert pynvml.nvmlDeviceGetPerformanceState(t4) == 8
    idle = pynvml.nvmlDeviceGetPowerUsage(t4), pynvml.nvmlDeviceGetClockInfo(t4, pynvml.NVML_CLOCK_SM)
    machine.add_process(1, Process(pid=7, sm_percent=70))
    machine.add_process(1, Process(pid=8, sm_percent=60))
    assert pynvml.nvmlDeviceGetUtilizationRates(t4).gpu == 100
    assert pynvml.nvmlDeviceGetPerformanceState(t4) == 0
    busy = pynvml.nvmlDeviceGetPowerUsage(t4), pynvml.nvmlDeviceGetClockInfo(t4, pynvml.NVML_CLOCK_SM)
    assert all(less < more for less, more in zip(idle, busy, strict=True))
    assert pynvml.nvmlDeviceGetEncoderUtilization(t4)[0] == pynvml.nvmlDeviceGetDecoderUtilization(t4)[0] == 0


def test_temperature(machine: Machine, t4: Any) -> None:
    machine.set(1, "temperature_c", 61)
    assert pynvml.nvmlDeviceGetTemperature(t4, pynvml.NVML_TEMPERATURE_GPU) == 61
    assert pynvml.nvmlDeviceGetTemperatureV(t4, pynvml.NVML_TEMPERATURE_GPU) == 61
    assert pynvml.nvmlDeviceGetTemperatureThreshold(t4, pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN) == 90
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetTemperatureThreshold(t4, pynvml.NVML_TEMPERATURE_THRESHOLD_ACOUSTIC_MIN)
    wrong: list[Callable[[], object]] = [
        lambda: pynvml.nvmlDeviceGetTemperature(t4, 1),
        lambda: pynvml.nvmlDeviceGetTemperatureV(t4, 1),
        lambda: pynvml.nvmlDeviceGetTemperatureThreshold(t4, 8),
    ]
    for call in wrong:
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            call()


def test_power_is_limited_within_bounds(t4: Any) -> None:
    assert pynvml.nvmlDeviceGetPowerManagementMode(t4) == 1
    assert pynvml.nvmlDeviceGetPowerManagementLimitConstraints(t4) == [60000, 70000]
    assert pynvml.nvmlDeviceGetPowerManagementDefaultLimit(t4) == 70000
    pynvml.nvmlDeviceSetPowerManagementLimit(t4, 65000)
    assert pynvml.nvmlDeviceGetPowerManagementLimit(t4) == pynvml.nvmlDeviceGetEnforcedPowerLimit(t4) == 65000
    for wrong in (59999, 70001):
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlDeviceSetPowerManagementLimit(t4, wrong)
    pynvml.nvmlDeviceSetPowerManagementLimit_v2(t4, 0, 61000)
    assert pynvml.nvmlDeviceGetPowerManagementLimit(t4) == 61000
    pynvml.nvmlDeviceSetPowerManagementLimit_v2(t4, 0, 62000, version=7)  # pynvml tells no error of this call
    assert pynvml.nvmlDeviceGetPowerManagementLimit(t4) == 61000


def test_clocks_are_locked_and_let_go(machine: Machine, t4: Any) -> None:
    kind = pynvml.NVML_CLOCK_SM
    most = pynvml.nvmlDeviceGetMaxClockInfo(t4, kind)
    machine.add_process(1, Process(pid=7, sm_percent=100))
    assert pynvml.nvmlDeviceGetClockInfo(t4, kind) == most
    pynvml.nvmlDeviceSetGpuLockedClocks(t4, 300, 900)
    assert pynvml.nvmlDeviceGetClockInfo(t4, kind) == pynvml.nvmlDeviceGetClock(t4, kind, 0) == 900
    assert pynvml.nvmlDeviceGetClock(t4, kind, 3) == most
    machine.remove_process(7)
    pynvml.nvmlDeviceSetGpuLockedClocks(t4, 800, 900)
    assert pynvml.nvmlDeviceGetClockInfo(t4, kind) == 800
    pynvml.nvmlDeviceResetGpuLockedClocks(t4)
    assert pynvml.nvmlDeviceGetClockInfo(t4, kind) == most // 5


def test_memory_clocks_are_locked_and_let_go(t4: Any) -> None:
    kind = pynvml.NVML_CLOCK_MEM
    (most,) = pynvml.nvmlDeviceGetSupportedMemoryClocks(t4)
    pynvml.nvmlDeviceSetMemoryLockedClocks(t4, 0, 1000)
    assert pynvml.nvmlDeviceGetClockInfo(t4, kind) == 1000
    pynvml.nvmlDeviceResetMemoryLockedClocks(t4)
    assert pynvml.nvmlDeviceGetClockInfo(t4, kind) == most
    assert pynvml.nvmlDeviceGetSupportedGraphicsClocks(t4, most) == [1590]
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetSupportedGraphicsClocks(t4, most + 1)


def test_up_to_the_power_limit_is_up_to_the_highest_clock(t4: Any) -> None:
    pynvml.nvmlDeviceSetGpuLockedClocks(t4, 1590, pynvml.NVML_CLOCK_LIMIT_ID_TDP)
    assert pynvml.nvmlDeviceGetClockInfo(t4, pynvml.NVML_CLOCK_GRAPHICS) == 1590


@pytest.mark.parametrize(("lowest", "highest"), [(900, 300), (0, 0), (0, 99999)])
def test_clocks_that_make_no_sense(t4: Any, lowest: int, highest: int) -> None:
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceSetGpuLockedClocks(t4, lowest, highest)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetClockInfo(t4, 4)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetMaxClockInfo(t4, 4)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetClock(t4, 0, 4)


def test_a_reboot_undoes_settings(machine: Machine, t4: Any) -> None:
    pynvml.nvmlDeviceSetPowerManagementLimit(t4, 65000)
    pynvml.nvmlDeviceSetGpuLockedClocks(t4, 300, 300)
    pynvml.nvmlDeviceSetComputeMode(t4, 3)
    machine.reboot()
    assert pynvml.nvmlDeviceGetPowerManagementLimit(t4) == 70000
    assert pynvml.nvmlDeviceGetClockInfo(t4, 0) != 300
    assert pynvml.nvmlDeviceGetComputeMode(t4) == 0


def test_reasons_of_clocks_are_idle_or_what_was_set(machine: Machine, t4: Any) -> None:
    calls = pynvml.nvmlDeviceGetCurrentClocksEventReasons, pynvml.nvmlDeviceGetCurrentClocksThrottleReasons
    assert {call(t4) for call in calls} == {pynvml.nvmlClocksEventReasonGpuIdle}
    machine.add_process(1, Process(pid=7, sm_percent=70))
    assert {call(t4) for call in calls} == {0}
    machine.set(1, "throttle_reasons", pynvml.nvmlClocksEventReasonSwPowerCap)
    assert {call(t4) for call in calls} == {pynvml.nvmlClocksEventReasonSwPowerCap}


def test_gpm_is_refused_before_hopper_and_metrics_without_samples(t4: Any) -> None:
    assert not pynvml.nvmlGpmQueryDeviceSupport(t4).isSupportedDevice
    sample = pynvml.nvmlGpmSampleAlloc()
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlGpmSampleGet(t4, sample)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlGpmMigSampleGet(t4, 1, sample)
    requested = pynvml.c_nvmlGpmMetricsGet_t()
    requested.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlGpmMetricsGet(requested)
    pynvml.nvmlGpmSampleFree(sample)
