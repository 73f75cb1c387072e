"""What the Node object counts while a restarted kubelet admits its running pods again."""

import pytest

from harness.agentmachine import Machine
from tessera.clients.kube import NODES, PODS

pytestmark = pytest.mark.anyio

GPU = "nvidia.com/gpu"


async def test_a_restarted_kubelet_finds_the_devices_of_running_pods_counted_and_no_free_one(machine: Machine) -> None:
    """It reports 0 before its plugins have registered, and ends pods that do not fit that."""

    async def report(count: int) -> None:
        await machine.kube.patch(NODES, "n1", {"status": {"allocatable": {GPU: str(count)}}}, subresource="status")

    async with machine.agent():
        await machine.kubelet.until_allocatable(GPU, 2)
        await report(2)
        await machine.pod("old", {GPU: 1})
        await machine.start("old", GPU)
        status = {"phase": "Running", "containerStatuses": [{"name": "c", "containerID": "containerd://old"}]}
        await machine.kube.patch(PODS, "old", {"status": status}, namespace="default", subresource="status")
        for without_record in (False, True):
            await machine.kubelet.restart(without_record=without_record)
            await report(0)
            node = await machine.until(lambda node: node["status"]["allocatable"][GPU] != "0")
            assert node["status"]["allocatable"] == {GPU: "1"}
