"""How an agent hands devices over: as configured, else as its node can."""

import json

import pytest
from structlog.testing import capture_logs

from harness.agentlogs import SHARING, until_logged
from harness.agentmachine import Machine
from tessera.api.tessera.node.nodereports import DEVICE_LIST
from tessera.clients.kube import NODES, annotations_of

pytestmark = pytest.mark.anyio


async def test_devices_are_handed_over_by_cdi_where_the_node_can(machine: Machine) -> None:
    info = {"containerRuntimeVersion": "containerd://2.4.2", "kubeletVersion": "v1.36.3"}
    spec = machine.folder / "nvidia.yaml"
    with capture_logs() as logs:
        async with machine.agent():
            await machine.kubelet.until_allocatable("nvidia.com/gpu", 2)
            await machine.until(lambda node: annotations_of(node).get(DEVICE_LIST) == "envvar")
            await until_logged(logs, "device_list_strategy", strategies=["envvar"], log_level="warning")
            spec.write_text("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ncontainerEdits: {env: [A=b]}\n")
            await machine.kube.patch(NODES, "n1", {"status": {"nodeInfo": info}}, subresource="status")
            await machine.until(lambda node: annotations_of(node).get(DEVICE_LIST) == "cdi-cri")
            spec.unlink()  # as it is for a moment when the driver is upgraded
            (machine.folder / "sharing" / "default").write_text(SHARING)
            await machine.kubelet.until_allocatable("nvidia.com/gpu", 6)
            await machine.pod("p1", {"nvidia.com/gpu": 1})
            env = await machine.start("p1", "nvidia.com/gpu")
    assert "NVIDIA_VISIBLE_DEVICES" not in env, "the device's specification says void"
    written = json.loads((machine.folder / "cdi" / "tessera.dev-gpu.json").read_text())
    assert env["TESSERA_GPU_UUIDS"] in {each["name"] for each in written["devices"]}
    assert written["containerEdits"] == {"env": ["A=b"]}


async def test_the_driver_s_folder_is_enough_for_cdi(machine: Machine) -> None:
    machine.driver_folder = "/home/kubernetes/bin/nvidia"
    info = {"containerRuntimeVersion": "containerd://2.0.7", "kubeletVersion": "v1.33.5-gke.1080000"}
    await machine.kube.patch(NODES, "n1", {"status": {"nodeInfo": info}}, subresource="status")
    async with machine.agent():
        await machine.until(lambda node: annotations_of(node).get(DEVICE_LIST) == "cdi-cri")
        await machine.kubelet.until_allocatable("nvidia.com/gpu", 2)
    written = json.loads((machine.folder / "cdi" / "tessera.dev-gpu.json").read_text())
    assert [each["hostPath"] for each in written["containerEdits"]["mounts"]] == [machine.driver_folder]


async def test_a_configuration_that_is_broken_at_the_start_changes_no_way_to_hand_over(machine: Machine) -> None:
    """Nothing new is offered, and containers that start again get what they got, the way they got it."""
    strategy = {"metadata": {"annotations": {DEVICE_LIST: "cdi-cri"}}}
    await machine.kube.patch(NODES, "n1", strategy)
    (machine.folder / "sharing" / "default").write_text("version: [")
    with capture_logs() as logs:
        async with machine.agent():
            await until_logged(logs, "device_list_strategy", strategies=["cdi-cri"])
    assert {each["log_level"] for each in logs if each.get("strategies") == ["cdi-cri"]} == {"info"}
