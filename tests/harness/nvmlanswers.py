"""What NVML answers about the first GPU while it is idle and MIG is off: `python nvmlanswers.py` prints it as JSON.

Each answer is a value, or `{"error": CODE}`. They are recorded from a real GPU in tests/data/nvml, to compare the
simulated one with it. What differs from GPU to GPU (names of the one, readings of a moment) is only compared by
whether there is an answer.
"""

import ctypes
import json
import sys
from collections.abc import Callable
from typing import Any

import pynvml


def _plain(value: Any) -> Any:
    """Return an answer as JSON has it: a structure as its fields."""
    if isinstance(value, ctypes.Structure):
        fields = [field[0] for field in value._fields_]
        return {name: _plain(getattr(value, name)) for name in fields if name != "version"}
    if isinstance(value, list | tuple | ctypes.Array):
        return [_plain(each) for each in value]
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, int | float | str | bool | type(None)) else "an object"


def _counted(ask: Callable[..., Any], *arguments: Any) -> int:
    """Return the number that a call writes where its caller wants a list."""
    count = ctypes.c_uint()
    ask(*arguments, None, ctypes.byref(count))
    return count.value


def _asked(device: Any) -> dict[str, Callable[[], Any]]:
    """Return the calls, by what they are called in the record."""
    n = pynvml
    asked: dict[str, Callable[[], Any]] = {
        name: lambda name=name: getattr(n, f"nvmlDevice{name}")(device)  # type: ignore[misc]
        for name in [
            "GetName",
            "GetSerial",
            "GetUUID",
            "GetMinorNumber",
            "GetBrand",
            "GetPciInfo_v3",
            "GetBAR1MemoryInfo",
            "GetMemoryBusWidth",
            "GetCudaComputeCapability",
            "GetComputeMode",
            "GetPersistenceMode",
            "GetEccMode",
            "GetDefaultEccMode",
            "GetMigMode",
            "GetMaxMigDeviceCount",
            "GetVirtualizationMode",
            "GetArchitecture",
            "GetNumGpuCores",
            "GetMultiGpuBoard",
            "GetBoardId",
            "GetPowerManagementLimit",
            "GetPowerManagementDefaultLimit",
            "GetPowerManagementLimitConstraints",
            "GetEnforcedPowerLimit",
            "GetPowerUsage",
            "GetTotalEnergyConsumption",
            "GetPerformanceState",
            "GetFanSpeed",
            "GetUtilizationRates",
            "GetEncoderUtilization",
            "GetDecoderUtilization",
            "GetRemappedRows",
            "GetCurrentClocksEventReasons",
            "GetSupportedClocksEventReasons",
            "GetSupportedEventTypes",
            "GetComputeRunningProcesses",
            "GetGraphicsRunningProcesses",
            "GetMPSComputeRunningProcesses",
            "GetAttributes_v2",
            "GetMaxPcieLinkGeneration",
            "GetCurrPcieLinkGeneration",
            "GetMaxPcieLinkWidth",
            "GetCurrPcieLinkWidth",
            "GetAccountingMode",
            "GetDisplayMode",
            "GetDisplayActive",
            "GetVbiosVersion",
            "GetInforomImageVersion",
            "GetBoardPartNumber",
            "GetIndex",
            "IsMigDeviceHandle",
            "GetGpuInstanceId",
            "GetComputeInstanceId",
            "GetDeviceHandleFromMigDeviceHandle",
            "GetMemoryInfo",
            "GetGspFirmwareVersion",
            "GetCurrentDriverModel",
        ]
        if hasattr(n, f"nvmlDevice{name}")
    }
    asked |= {
        "memory v2": lambda: n.nvmlDeviceGetMemoryInfo(device, version=n.nvmlMemory_v2),
        "SM clock": lambda: n.nvmlDeviceGetClockInfo(device, n.NVML_CLOCK_SM),
        "memory clock": lambda: n.nvmlDeviceGetClockInfo(device, n.NVML_CLOCK_MEM),
        "most SM clock": lambda: n.nvmlDeviceGetMaxClockInfo(device, n.NVML_CLOCK_SM),
        "most memory clock": lambda: n.nvmlDeviceGetMaxClockInfo(device, n.NVML_CLOCK_MEM),
        "temperature": lambda: n.nvmlDeviceGetTemperature(device, n.NVML_TEMPERATURE_GPU),
        "shutdown temperature": lambda: n.nvmlDeviceGetTemperatureThreshold(
            device, n.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN
        ),
        "slowdown temperature": lambda: n.nvmlDeviceGetTemperatureThreshold(
            device, n.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
        ),
        "process utilization": lambda: n.nvmlDeviceGetProcessUtilization(device, 0),
        "corrected errors": lambda: n.nvmlDeviceGetTotalEccErrors(device, 0, n.NVML_VOLATILE_ECC),
        "uncorrected errors": lambda: n.nvmlDeviceGetTotalEccErrors(device, 1, n.NVML_VOLATILE_ECC),
        "GPM": lambda: n.nvmlGpmQueryDeviceSupport(device),
        "MIG device 0": lambda: n.nvmlDeviceGetMigDeviceHandleByIndex(device, 0),
        "MIG device 9": lambda: n.nvmlDeviceGetMigDeviceHandleByIndex(device, 9),
        "GPU instances of 19": lambda: _counted(n.nvmlDeviceGetGpuInstances, device, 19),
        "placements of 19": lambda: _counted(n.nvmlDeviceGetGpuInstancePossiblePlacements, device, 19),
        "placements of 99": lambda: _counted(n.nvmlDeviceGetGpuInstancePossiblePlacements, device, 99),
        "remaining of 19": lambda: n.nvmlDeviceGetGpuInstanceRemainingCapacity(device, 19),
        "memory limit of /": lambda: _memory_limit(device, b"/"),
        "an unknown GPU": lambda: n.nvmlDeviceGetHandleByUUID("GPU-00000000-0000-0000-0000-000000000000"),
        "GPU 99": lambda: n.nvmlDeviceGetHandleByIndex(99),
    }
    for number in range(n.NVML_GPU_INSTANCE_PROFILE_COUNT + 1):
        for version in (1, 2):
            asked[f"profile {number} v{version}"] = lambda number=number, version=version: (  # type: ignore[misc]
                n.nvmlDeviceGetGpuInstanceProfileInfo(device, number, version=version)
            )
    return asked


def _memory_limit(device: Any, cgroup: bytes) -> None:
    limits = pynvml.c_nvmlGetMemoryLimits_v1_t()
    limits.nameSpace = cgroup
    pynvml.nvmlDeviceGetMemoryLimits_v1(device, limits)


def answers(only: str = "") -> dict[str, Any]:
    """Return all answers about the first GPU, or one of them."""
    pynvml.nvmlInit()
    try:
        found: dict[str, Any] = {}
        asked = _asked(pynvml.nvmlDeviceGetHandleByIndex(0))
        for name, ask in ({only: asked[only]} if only else asked).items():
            try:
                found[name] = _plain(ask())
            except pynvml.NVMLError as error:
                found[name] = {"error": error.value}
        return found
    finally:
        pynvml.nvmlShutdown()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(answers(), indent=1) + "\n")
