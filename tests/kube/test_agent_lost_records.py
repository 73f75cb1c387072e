"""The kubelet's record and the agent's are both lost while pods run, on a real node."""

from typing import Any

import pynvml
import pytest

from kube import pods
from kube.gpunode import GpuNode
from tessera.sim.nvmlsim import FOREVER, Machine
from testbed.processes import until

pytestmark = pytest.mark.long

GPUS = ("A100-40GB",)
SLICE = "nvidia.com/mig-1g.5gb"
EARLY, LATE = ("early-0", "early-1"), ("late-0", "late-1")


def with_init(name: str) -> dict[str, Any]:
    """Return a pod of which an init container that ends requests the slice, too."""
    one = pods.busybox(name, limits={SLICE: 1})
    (main,) = one["spec"]["containers"]
    one["spec"]["initContainers"] = [{**main, "name": "init", "command": ["true"]}]
    return one


def identities(node: GpuNode, *names: str) -> dict[str, tuple[str, str, int]]:
    """Return UID, phase and restarts of pods: these must not change."""
    found = {name: node.cluster.get("pod", name) for name in names}
    return {
        name: (
            one["metadata"]["uid"],
            one["status"]["phase"],
            sum(each["restartCount"] for each in one["status"].get("containerStatuses", ())),
        )
        for name, one in found.items()
    }


def lose_both_records(node: GpuNode) -> None:
    """End kubelet and agent, and remove their records; pods run on."""
    node.node.stop_kubelet()
    node.kill_agent()
    (node.node.device_plugins / "kubelet_internal_checkpoint").unlink()
    (node.node.folder / "var-lib" / "tessera" / "allocations.json").unlink()


def settled(node: GpuNode, name: str) -> str:
    """Return a pod's phase as soon as the kubelet has admitted or refused it."""
    until(f"{name} is settled", lambda: pods.phase(node.cluster, name) != "Pending", timeout_s=60, found=node.agent_log)
    return pods.phase(node.cluster, name)


def test_no_pod_starts_without_its_device_once_the_agent_has_registered(gpu_node: GpuNode) -> None:
    """Pods that the kubelet let in before have none; they neither delay the agent, nor are running pods harmed."""
    cluster = gpu_node.cluster
    gpu_node.start_agent()
    gpu_node.ask_layout("all-1g.5gb")
    gpu_node.until_offered((SLICE, 7), ("nvidia.com/gpu", 0))
    names = ("one", "two", "init")
    pods.run(cluster, *(pods.busybox(name, limits={SLICE: 1}) for name in names[:2]), with_init("init"))
    before = identities(gpu_node, *names)
    lose_both_records(gpu_node)
    gpu_node.node.start_kubelet()
    until("kubelet", gpu_node.node.kubelet_healthy, timeout_s=60)
    cluster.apply(pods.busybox(EARLY[0], limits={SLICE: 1}, nodeName=gpu_node.node.name))
    assert settled(gpu_node, EARLY[0]) == "Running", "the kubelet does not know the resource"
    gpu_node.start_again()
    cluster.apply(pods.busybox(EARLY[1], limits={SLICE: 1}, nodeName=gpu_node.node.name))
    gpu_node.until_registered(SLICE)
    cluster.apply(pods.busybox(LATE[0], limits={SLICE: 1}, nodeName=gpu_node.node.name))
    assert settled(gpu_node, LATE[0]) == "Failed"
    lost = "neither the kubelet's record nor the agent's says"
    until("the agent serves", lambda: lost in gpu_node.agent_log(), timeout_s=40, found=gpu_node.agent_log)
    cluster.apply(pods.busybox(LATE[1], limits={SLICE: 1}, nodeName=gpu_node.node.name))
    assert settled(gpu_node, LATE[1]) == "Failed"
    assert identities(gpu_node, *names) == before
    gpu_node.until_offered((SLICE, len((*names, *EARLY))))
    gpu_node.node.restart_kubelet()
    gpu_node.let_it_run(20)
    # An init container that has ended is admitted again, and nothing is free for it: docs/allocation.md.
    assert identities(gpu_node, *names[:2]) == {name: before[name] for name in names[:2]}
    pods.remove(cluster, *names, *EARLY, *LATE)
    gpu_node.until_offered((SLICE, 7))
    pods.run(cluster, *(pods.busybox(f"after-{each}", limits={SLICE: 1}) for each in range(7)))


def test_a_pod_that_has_a_device_by_another_name_keeps_it_where_both_records_are_lost(gpu_node: GpuNode) -> None:
    """The sharing file renames the resource; the label wants other MIG instances meanwhile."""
    cluster, name = gpu_node.cluster, "example.com/slice"
    gpu_node.start_agent(sharing={"timeSlicing": {"resources": [{"name": SLICE, "rename": name, "replicas": 2}]}})
    gpu_node.until_offered(("nvidia.com/gpu", 1))
    gpu_node.ask_layout("all-1g.5gb")
    gpu_node.until_offered((name, 14), ("nvidia.com/gpu", 0))
    pods.run(cluster, pods.busybox("one", limits={name: 1}))
    before, instances = identities(gpu_node, "one"), set(gpu_node.mig_uuids())
    gpu_node.let_it_run(15)  # The kubelet reports what it has: a Node keeps the counts of one that ends before.
    lose_both_records(gpu_node)
    gpu_node.ask_layout("all-2g.10gb")
    gpu_node.node.start_kubelet()
    until("kubelet", gpu_node.node.kubelet_healthy, timeout_s=60)
    gpu_node.start_again()
    gpu_node.until_registered(name)
    lost = "pod default/one: it requests devices and runs, and neither the kubelet's record nor the agent's says"
    until("the agent serves", lambda: lost in gpu_node.agent_log(), timeout_s=40, found=gpu_node.agent_log)
    cluster.apply(pods.busybox("late", limits={name: 1}, nodeName=gpu_node.node.name))
    assert settled(gpu_node, "late") == "Failed"
    gpu_node.let_it_run(10)
    assert set(gpu_node.mig_uuids()) == instances
    assert identities(gpu_node, "one") == before
    pods.remove(cluster, "one", "late")
    gpu_node.until_offered((name, 0), ("nvidia.com/mig-2g.10gb", 3))


def test_no_pod_starts_without_its_gpu_while_the_driver_lists_none(gpu_node: GpuNode) -> None:
    """The only GPU is lost before the agent starts, and comes back."""
    cluster, gpu = gpu_node.cluster, "nvidia.com/gpu"
    gpu_node.start_agent()
    gpu_node.until_offered((gpu, 1))
    pods.run(cluster, pods.busybox("one", limits={gpu: 1}))
    before = identities(gpu_node, "one")
    lose_both_records(gpu_node)
    with Machine(gpu_node.node.gpu_state) as machine:
        machine.lose(0)
    gpu_node.node.start_kubelet()
    until("kubelet", gpu_node.node.kubelet_healthy, timeout_s=60)
    gpu_node.start_again()
    gpu_node.until_registered(gpu)
    cluster.apply(pods.busybox("early", limits={gpu: 1}, nodeName=gpu_node.node.name))
    assert settled(gpu_node, "early") == "Failed"
    said = f"{gpu} is not offered: the driver lists no GPU"
    until("the agent serves", lambda: said in gpu_node.agent_log(), timeout_s=40, found=gpu_node.agent_log)
    cluster.apply(pods.busybox("late", limits={gpu: 1}, nodeName=gpu_node.node.name))
    assert settled(gpu_node, "late") == "Failed"
    for _ in range(3):
        gpu_node.node.restart_kubelet()
        gpu_node.let_it_run(10)
    assert identities(gpu_node, "one") == before
    with Machine(gpu_node.node.gpu_state) as machine:
        machine.renew()
    pods.remove(cluster, "one", "early", "late")
    gpu_node.until_offered((gpu, 1))
    pods.run(cluster, pods.busybox("after", limits={gpu: 1}))


def test_no_pod_starts_without_its_gpu_while_the_driver_is_not_loaded(gpu_node: GpuNode) -> None:
    """As after a reboot, where the agent's process starts first and the kubelet has lost its checkpoint."""
    cluster, gpu = gpu_node.cluster, "nvidia.com/gpu"
    gpu_node.start_agent()
    gpu_node.until_offered((gpu, 1))
    pods.run(cluster, pods.busybox("one", limits={gpu: 1}))
    before = identities(gpu_node, "one")
    gpu_node.node.stop_kubelet()
    gpu_node.kill_agent()
    (gpu_node.node.device_plugins / "kubelet_internal_checkpoint").unlink()
    with Machine(gpu_node.node.gpu_state) as machine:
        machine.fault("nvmlInit*", code=pynvml.NVML_ERROR_DRIVER_NOT_LOADED, times=FOREVER)
        gpu_node.node.start_kubelet()
        until("kubelet", gpu_node.node.kubelet_healthy, timeout_s=60)
        gpu_node.start_again()
        gpu_node.until_registered(gpu)
        cluster.apply(pods.busybox("early", limits={gpu: 1}, nodeName=gpu_node.node.name))
        assert settled(gpu_node, "early") == "Failed"
        assert "load the kernel module: modprobe nvidia" in gpu_node.agent_log()
        machine.clear_faults()
    pods.remove(cluster, "early")
    begun = "gpunode_reported"
    until("the agent serves", lambda: begun in str(gpu_node.log_lines()), timeout_s=40, found=gpu_node.agent_log)
    assert identities(gpu_node, "one") == before
    pods.remove(cluster, "one")
    gpu_node.until_offered((gpu, 1))
    pods.run(cluster, pods.busybox("after", limits={gpu: 1}))
