"""The agent on a real node: it and the kubelet end and start while pods run."""

import random

from kube.gpunode import GpuNode
from kube.pods import busybox, devices, run

GPUS = ("A100-40GB",)
SLICE = "nvidia.com/mig-1g.5gb"
PODS = 5


def pods_as_they_are(node: GpuNode, names: list[str]) -> list[tuple[str, str, int, bool]]:
    """Return what must not change: each pod's identity, instance, restarts, and whether it is ready."""
    told = []
    for name in names:
        found = node.cluster.get("pod", name)
        status = found["status"]["containerStatuses"][0]
        device = devices(node.cluster, name)
        told.append((found["metadata"]["uid"], device, status["restartCount"], status["ready"]))
    return told


def prepared(node: GpuNode) -> list[str]:
    node.start_agent()
    node.ask_layout("all-1g.5gb")
    node.until_offered((SLICE, 7))
    names = [f"steady-{number}" for number in range(PODS)]
    run(node.cluster, *(busybox(name, limits={SLICE: 1}) for name in names))
    return names


def free_slices_serve(node: GpuNode, *names: str) -> None:
    """The two slices that are left are given out, and none of those in use."""
    node.until_offered((SLICE, 7))
    run(node.cluster, *(busybox(name, limits={SLICE: 1}) for name in names))


def test_pods_run_on_while_the_kubelet_is_restarted(gpu_node: GpuNode) -> None:
    names = prepared(gpu_node)
    before = pods_as_they_are(gpu_node, names)
    for _ in range(3):
        gpu_node.node.restart_kubelet()
    free_slices_serve(gpu_node, "after-0", "after-1")
    everyone = pods_as_they_are(gpu_node, [*names, "after-0", "after-1"])
    assert everyone[:PODS] == before
    assert sorted(device for _, device, _, _ in everyone) == list(gpu_node.mig_uuids())


def test_pods_run_on_while_the_agent_is_killed_and_started_again(gpu_node: GpuNode) -> None:
    """An upgrade is the same with an orderly end; both are here, at moments that differ from run to run."""
    names = prepared(gpu_node)
    before, instances = pods_as_they_are(gpu_node, names), gpu_node.mig_uuids()
    for end in (gpu_node.kill_agent, gpu_node.stop_agent, gpu_node.kill_agent, gpu_node.stop_agent):
        end()
        gpu_node.start_again()
        gpu_node.let_it_run(random.uniform(0, 3))
    gpu_node.kill_agent()
    gpu_node.start_again()
    gpu_node.until_registered(SLICE)
    free_slices_serve(gpu_node, "after-0", "after-1")
    everyone = pods_as_they_are(gpu_node, [*names, "after-0", "after-1"])
    assert everyone[:PODS] == before
    assert gpu_node.mig_uuids() == instances
    assert sorted(device for _, device, _, _ in everyone) == list(instances)


def test_an_agent_killed_while_it_creates_instances_finishes_after_its_start(gpu_node: GpuNode) -> None:
    gpu_node.start_agent()
    gpu_node.until_offered(("nvidia.com/gpu", 1))
    for layout in ("all-balanced", "all-1g.5gb", "all-3g.20gb"):
        gpu_node.ask_layout(layout)
        gpu_node.let_it_run(random.uniform(0, 1))
        gpu_node.kill_agent()
        gpu_node.start_again()
    gpu_node.until_state("success")
    gpu_node.until_offered(("nvidia.com/mig-3g.20gb", 2), (SLICE, 0))
