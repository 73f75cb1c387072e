"""What NVIDIA's gpu-feature-discovery once read from simulated machines is what pynvml reads from them.

The recording is for whoever writes node labels; this keeps it true of the simulator.
"""

import json
from pathlib import Path
from typing import Any

import pynvml
import pytest

from nvmlcalls import cut_whole, mig_devices

RECORDED = json.loads((Path(__file__).parents[2] / "data" / "gpu-feature-discovery.json").read_text())["cases"]


def prepared(start: Any, case: dict[str, Any]) -> list[Any]:
    """Return the handles of a machine as it was when it was recorded."""
    start(*case["gpus"])
    gpus = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    for index, places in case["instances"].items():
        pynvml.nvmlDeviceSetMigMode(gpus[int(index)], 1)
        for place in places:
            cut_whole(gpus[int(index)], *place)
    return gpus


def resource(device: Any) -> str:
    """Return the labels' prefix for a MIG device."""
    name: str = pynvml.nvmlDeviceGetName(device)
    return "nvidia.com/mig-" + name.partition(" MIG ")[2].replace("+", ".")


@pytest.mark.parametrize("name", RECORDED)
def test_a_machine_shows_what_was_recorded(start: Any, name: str) -> None:
    case = RECORDED[name]
    gpus, labels = prepared(start, case), case["labels"]
    driver = pynvml.nvmlSystemGetDriverVersion()
    assert labels["nvidia.com/cuda.driver-version.full"] == driver
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(gpus[0])
    assert (labels["nvidia.com/gpu.compute.major"], labels["nvidia.com/gpu.compute.minor"]) == (str(major), str(minor))
    assert labels["nvidia.com/mig.capable"] == str(any(case["instances"]) or "A100" in case["gpus"][0]).lower()
    if case["mig_strategy"] == "mixed":
        devices = [device for gpu in gpus for device in mig_devices(gpu)]
        assert {key for key in labels if ".count" in key and "mig-" in key} == {
            f"{resource(each)}.count" for each in devices
        }
        for device in devices:
            check_instance(labels, device)


def check_instance(labels: dict[str, str], device: Any) -> None:
    facts = pynvml.nvmlDeviceGetAttributes(device)
    want = {
        "product": pynvml.nvmlDeviceGetName(device).replace(" ", "-").replace("+", "."),
        "memory": facts.memorySizeMB,
        "multiprocessors": facts.multiprocessorCount,
        "slices.gi": facts.gpuInstanceSliceCount,
        "slices.ci": facts.computeInstanceSliceCount,
        "engines.copy": facts.sharedCopyEngineCount,
        "engines.decoder": facts.sharedDecoderCount,
        "engines.encoder": facts.sharedEncoderCount,
        "engines.jpeg": facts.sharedJpegCount,
        "engines.ofa": facts.sharedOfaCount,
    }
    shared = "-SHARED" if int(labels[f"{resource(device)}.replicas"]) > 1 else ""
    want["product"] += shared
    assert {key: labels[f"{resource(device)}.{key}"] for key in want} == {key: str(each) for key, each in want.items()}
