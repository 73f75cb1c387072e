"""What an agent reports of its GPUs: events, labels and counts on the Node object, and its GPUNode."""

import asyncio
import contextlib
from functools import partial

import msgspec
import pytest

from harness.agentmachine import CONFIG, Machine
from tessera.agent.agenttimes import AgentTimes
from tessera.agent.run import Agent
from tessera.api.tessera.node.nodereports import REVISION, gpu_revision
from tessera.api.tessera.v1alpha1.gpunodes import read_gpu_node
from tessera.clients.kube import EVENTS, GPU_NODES, NODES, PODS, Object, labels_of
from tessera.core.cluster.protocols.allocators import devices_by_gpu, devices_one_by_one
from tessera.errors import Conflict

pytestmark = pytest.mark.anyio

POLICY = """
apiVersion: tessera.dev/v1alpha1
kind: NodePolicy
gpus:
- devices: [0]
  sharing: {mig: all-1g.5gb}
"""


async def test_gpus_that_do_not_share_their_memory_are_not_counted_for_gpushare(machine: Machine) -> None:
    await machine.label(gpushare="true")
    (machine.folder / "policy.yaml").write_text(POLICY)
    async with machine.agent():
        await machine.kubelet.until_allocatable("aliyun.com/gpu-mem", 40)
        amounts = {"aliyun.com/gpu-mem": "40"}
        await machine.kube.patch(NODES, "n1", {"status": {"capacity": amounts}}, subresource="status")
        await machine.until(lambda node: node["status"]["capacity"].get("aliyun.com/gpu-count") == "1")


async def test_labels_describe_the_gpus(machine: Machine) -> None:
    async with machine.agent():
        node = await machine.until(lambda node: "nvidia.com/gpu.count" in labels_of(node))
        labels = labels_of(node)
        assert (labels["nvidia.com/gpu.count"], labels["nvidia.com/mig.capable"]) == ("2", "true")
        assert labels["nvidia.com/gfd.timestamp"].isdecimal()
        await machine.label(config="all-balanced")
        await machine.until(lambda node: labels_of(node).get("nvidia.com/mig-2g.10gb.count") == "2")
        assert labels_of(await machine.node())[CONFIG] == "all-balanced"


async def test_a_gpu_that_a_pod_left_processes_on_is_said_once_when_somebody_is_refused_for_it(
    machine: Machine,
) -> None:
    machine.times = AgentTimes(termination_s=0.0)
    async with machine.agent():
        await machine.kubelet.until_allocatable("nvidia.com/gpu", 2)
        await machine.pod("gone", {"nvidia.com/gpu": 2})
        await machine.start("gone", "nvidia.com/gpu", 2)
        uid = (await machine.until_object(PODS, "gone", bool))["metadata"]["uid"]
        (machine.folder / "proc/77").mkdir()
        (machine.folder / "proc/77/cgroup").write_text(f"0::/kubepods/pod{uid}/abc\n")
        await machine.kube.delete(PODS, "gone", namespace="default")
        machine.kubelet.remove("default", "gone")
        await machine.pod("next", {"nvidia.com/gpu": 2})
        with pytest.raises(Conflict, match="of pod default/gone uses"):
            await machine.start("next", "nvidia.com/gpu", 2)
        text = await machine.event("DeviceOrphaned")
        assert "pod default/gone is deleted, and its processes still use it; no pod is sent to it" in text
        (machine.folder / "proc/77/cgroup").unlink()
        await machine.kubelet.until_allocatable("nvidia.com/gpu", 2)
        events = [each for each in (await machine.kube.list(EVENTS)).objects if each["reason"] == "DeviceOrphaned"]
        assert [(each["involvedObject"]["kind"], each["count"]) for each in events] == [("Node", 1)] * 2


async def test_the_node_shows_that_its_gpunode_has_changed_once_that_is_written(machine: Machine) -> None:
    async with machine.agent():
        revisions = []
        for profile, count in (("all-1g.5gb", 7), ("all-3g.20gb", 2)):
            await machine.label(config=profile)
            found = await machine.until_object(GPU_NODES, "n1", partial(_has_instances, count))
            state = read_gpu_node(found)
            revisions.append(gpu_revision(state, devices_by_gpu(devices_one_by_one(state.offered))))
            await machine.until(partial(_shows, revisions[-1]))
        assert revisions[0] != revisions[1]


def _has_instances(count: int, found: Object) -> bool:
    """Return whether all GPUs of a GPUNode have so many instances, and the kubelet may allocate them."""
    if not found.get("status"):
        return False
    state = read_gpu_node(found)
    cut = [len(gpu.sharing.layout or ()) for gpu in state.gpus]
    return cut == [count] * 2 and [len(each.instances) for each in state.offered] == [count] * 2


def _shows(revision: str, node: Object) -> bool:
    return labels_of(node).get(REVISION) == revision


async def test_where_another_program_labels_the_node_its_gpus_are_reported_without_labels(machine: Machine) -> None:
    agent = Agent(msgspec.structs.replace(machine.settings, labels=False), machine.driver, machine.kube)
    running = asyncio.ensure_future(agent.run())
    try:
        await machine.until_object(GPU_NODES, "n1", lambda each: bool(each.get("status")))
        await machine.until(lambda node: REVISION in labels_of(node))
        assert "nvidia.com/gpu.count" not in labels_of(await machine.node())
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
