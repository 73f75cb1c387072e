"""What the original gpu-feature-discovery once wrote about simulated machines is what ours writes and pynvml reads."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pynvml
import pytest

from harness.nvmlcalls import cut_whole, mig_devices
from tessera.api import documents
from tessera.api.nvidia import sharingconfig
from tessera.api.nvidia.gpulabels import Labeling, gpu_labels
from tessera.clients.gpu import NvmlDriver
from tessera.core.gpu.inventory import Inventory
from tessera.core.node.nodesharing import NodeSharing, effective

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


OURS_ALONE = {"nvidia.com/gpu.machine", "nvidia.com/gpu.mode"}
"""Left out of the recording: they tell of the machine it ran on."""


async def inventory(sysfs: Path) -> Inventory:
    async with await NvmlDriver.open(sysfs=sysfs) as driver:
        return await driver.inventory()


@pytest.mark.parametrize("name", RECORDED)
def test_node_labels_are_those_of_the_original(start: Any, tmp_path: Path, name: str) -> None:
    case = RECORDED[name]
    prepared(start, case)
    sharing = NodeSharing()
    if case["config"]:
        (document,) = documents.read("config", json.dumps(case["config"]))
        sharing = sharingconfig.read(document)
    strategy = case["mig_strategy"]
    shown = asyncio.run(inventory(tmp_path))
    gpus = effective(shown, msgspec.structs.replace(sharing, strategy=strategy))
    ours, original = gpu_labels(shown, gpus, Labeling(strategy=strategy)), case["labels"]
    different = {key for key in {*ours, *original} - OURS_ALONE if ours.get(key) != original.get(key)}
    assert {key: (original.get(key), ours.get(key)) for key in different} == {}
