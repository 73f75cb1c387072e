"""Simulated GPUs answer as real ones did, whose answers are in tests/data/nvml; what they do not have is listed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest

from harness.nvmlanswers import answers
from tessera.sim.nvmlsim import Machine

RECORDED = {
    model: json.loads((Path(__file__).parents[2] / f"data/nvml/{model.lower()}-580.json").read_bytes())
    for model in ("H100-80GB", "H200-141GB")
}
OF_THE_MACHINE = {
    "GetSerial",
    "GetUUID",
    "GetPciInfo_v3",
    "GetBoardId",
    "GetPersistenceMode",
    "GetVirtualizationMode",
    "GetBAR1MemoryInfo",
    "GetPowerUsage",
    "GetPerformanceState",
    "GetEncoderUtilization",
    "GetDecoderUtilization",
    "SM clock",
    "temperature",
    "slowdown temperature",
}
"""Differ from GPU to GPU and from moment to moment."""
RESERVED = {"GetMemoryInfo", "memory v2"}
"""The simulated one reserves more."""
ABSENT = {
    "GetDefaultEccMode",
    "GetMultiGpuBoard",
    "GetTotalEnergyConsumption",
    "GetRemappedRows",
    "GetSupportedClocksEventReasons",
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
    "GetGspFirmwareVersion",
    "remaining of 19",
}
"""Not simulated: the driver says that it does not support it. The list only shrinks."""
REFUSED_OTHERWISE = {
    "GetGpuInstanceId",
    "GetComputeInstanceId",
    "profile 17 v1",
    "profile 17 v2",
}
"""Both refuse it, with another code."""


def rounded(name: str, answer: Any) -> Any:
    """Return an answer with the memory of a profile as the catalog has it, which is rounded."""
    if name.startswith("profile ") and "memorySizeMB" in answer:
        return answer | {"memorySizeMB": (answer["memorySizeMB"] + 11) // 32}
    if name == "GetSupportedEventTypes" and isinstance(answer, int):
        return answer & (pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventMigConfigChange)
    return answer


@pytest.mark.parametrize(("model", "name"), [(model, name) for model, known in RECORDED.items() for name in known])
def test_it_answers_as_the_real_one(start: Callable[..., Machine], model: str, name: str) -> None:
    recorded = RECORDED[model][name]
    start(model, driver="580.159.04")
    (answer,) = answers(name).values()
    if name in ABSENT:
        assert answer == {"error": pynvml.NVML_ERROR_NOT_SUPPORTED}, f"take {name} off the list"
    elif name in REFUSED_OTHERWISE:
        assert "error" in answer
        assert "error" in recorded
        assert answer != recorded, f"take {name} off the list"
    elif name in OF_THE_MACHINE | RESERVED:
        assert type(answer) is type(recorded)
    else:
        assert rounded(name, answer) == rounded(name, recorded)
