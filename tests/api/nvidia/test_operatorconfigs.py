"""The ConfigMaps of the GPU operator in fleet files."""

import pytest

from builders.fleetfiles import OPERATORS, read
from tessera.errors import InvalidInput

PLUGIN = """
---
apiVersion: v1
kind: ConfigMap
metadata: {name: time-slicing-config, namespace: gpu-operator}
data:
  four: |
    version: v1
    flags: {migStrategy: mixed}
    sharing:
      timeSlicing:
        resources: [{name: nvidia.com/gpu, replicas: 4}, {name: nvidia.com/mig-1g.5gb, replicas: 2}]
  second: |
    version: v1
    sharing: {mps: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 2, devices: [1]}]}}
  broken: "version: v2"
"""


def offered(text: str) -> list[str]:
    """Return how many of each resource the devices of each GPU of the first node are."""
    return [" ".join(f"{each.resource}={each.clients}" for each in gpu.devices) for gpu in read(text).nodes[0].gpus]


SHARED_BY_PLUGIN = {
    "all GPUs, and instances": (
        "gpus: [2xA100-40GB], sharing: {mig: half-half}, device-plugin: four",
        ["nvidia.com/mig-1g.5gb=2 nvidia.com/mig-1g.5gb=2 nvidia.com/mig-2g.10gb=1", "nvidia.com/gpu=4"],
    ),
    "one of two, under another name": (
        "gpus: 2xA100-40GB, device-plugin: second",
        ["nvidia.com/gpu=1", "nvidia.com/gpu.shared=2"],
    ),
}


@pytest.mark.parametrize("case", SHARED_BY_PLUGIN)
def test_a_node_is_shared_as_the_operators_device_plugin_would(case: str) -> None:
    node, want = SHARED_BY_PLUGIN[case]
    text = f"nodes: [{{name: a, {node}}}]" + PLUGIN + OPERATORS
    assert offered(text) == want
    assert read(text).notes == ()


def test_what_of_a_device_plugin_configuration_has_no_effect_is_reported() -> None:
    got = read("nodes: [{name: a, count: 2, gpus: T4, device-plugin: second}]" + PLUGIN)
    assert got.notes == ("a-0: sharing of nvidia.com/gpu: no such device here is called 1",)


OF_PLUGIN_REFUSED = {
    "no such key": (
        "device-plugin: five",
        PLUGIN,
        "device-plugin: five is no key of a ConfigMap among the fleet's files: keys of the ConfigMaps here: broken, ",
    ),
    "no ConfigMap": ("device-plugin: four", "", "keys of the ConfigMaps here: there is none"),
    "two that differ": (
        "device-plugin: four",
        PLUGIN + PLUGIN.replace("replicas: 4", "replicas: 5"),
        "two ConfigMaps differ on four: keep the device plugin's",
    ),
    "no configuration": ("device-plugin: broken", PLUGIN, r"data\.broken.*version: 'v2' is not a version"),
    "sharing said twice": (
        "sharing: {time-slicing: 2}, device-plugin: four",
        PLUGIN,
        "sharing: device-plugin says how the node's GPUs are shared: write mig alone, or nothing",
    ),
    "whole, said twice": ("sharing: whole, device-plugin: four", PLUGIN, "write mig alone, or nothing"),
}


@pytest.mark.parametrize("case", OF_PLUGIN_REFUSED)
def test_a_device_plugin_configuration_that_cannot_be_is_refused(case: str) -> None:
    node, config_maps, want = OF_PLUGIN_REFUSED[case]
    with pytest.raises(InvalidInput, match=want):
        read(f"nodes: [{{name: a, gpus: 2xA100-40GB, {node}}}]" + config_maps)
