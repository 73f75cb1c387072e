"""The agent on a real node: one T4 in turns."""

from kube.gpunode import GpuNode
from kube.pods import busybox, devices, run
from testbed.processes import until

GPUS = ("T4",)


def test_fourteen_pods_take_turns_on_one_t4(gpu_node: GpuNode) -> None:
    gpu_node.start_agent(sharing={"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 14}]}})
    gpu_node.until_offered(("nvidia.com/gpu", 14))
    names = [f"turn-{number}" for number in range(14)]
    run(gpu_node.cluster, *(busybox(name, limits={"nvidia.com/gpu": 1}) for name in names))
    assert len({devices(gpu_node.cluster, name) for name in names}) == 1
    labels = gpu_node.labels()
    assert labels["nvidia.com/gpu.product"] == "Tesla-T4-SHARED"
    assert labels["nvidia.com/gpu.replicas"] == "14"


def test_a_file_that_becomes_wrong_leaves_what_was_offered_and_a_right_one_takes_effect(gpu_node: GpuNode) -> None:
    resource = {"name": "nvidia.com/gpu", "replicas": 4}
    gpu_node.start_agent(sharing={"timeSlicing": {"resources": [resource]}})
    gpu_node.until_offered(("nvidia.com/gpu", 4))
    path = gpu_node.node.folder / "sharing-config.yaml"
    right = path.read_text()
    path.write_text("version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: many}]}}\n")
    until("a word about the file", lambda: "replicas" in gpu_node.agent_log(), timeout_s=60, found=gpu_node.agent_log)
    gpu_node.until_offered(("nvidia.com/gpu", 4))
    path.write_text(right.replace("4", "6"))
    gpu_node.until_offered(("nvidia.com/gpu", 6))
