"""The agent on a real node: layouts by label, on two A100s."""

import pytest

from kube.gpunode import GpuNode
from kube.pods import busybox, devices, phase, run
from tessera.sim.nvmlsim import Machine, Process
from testbed.processes import until

GPUS = ("2xA100-40GB",)
SLICE = "nvidia.com/mig-1g.5gb"


def names(count: int) -> list[str]:
    return [f"slice-{number}" for number in range(count)]


def test_a_label_cuts_both_gpus_and_every_pod_has_an_instance_of_its_own(gpu_node: GpuNode) -> None:
    gpu_node.start_agent()
    gpu_node.until_offered(("nvidia.com/gpu", 2))
    gpu_node.ask_layout("all-1g.5gb")
    gpu_node.until_state("success")
    gpu_node.until_offered((SLICE, 14), ("nvidia.com/gpu", 0))
    run(gpu_node.cluster, *(busybox(name, limits={SLICE: 1}) for name in names(14)))
    got = sorted(devices(gpu_node.cluster, name) for name in names(14))
    assert got == list(gpu_node.mig_uuids())
    gpu_node.cluster.apply(busybox("one-too-many", limits={SLICE: 1}))
    gpu_node.cluster.kubectl("wait", "--for=condition=PodScheduled=False", "pod/one-too-many", "--timeout=60s")
    assert phase(gpu_node.cluster, "one-too-many") == "Pending"


def test_slices_in_use_stay_when_the_label_changes(gpu_node: GpuNode) -> None:
    """Where pods hold slices the target has no room: what they use is left, and the label ends in failed."""
    gpu_node.start_agent("--pending-s=15")
    gpu_node.ask_layout("all-1g.5gb")
    gpu_node.until_offered((SLICE, 14))
    run(gpu_node.cluster, *(busybox(name, limits={SLICE: 1}) for name in names(4)))
    used = {devices(gpu_node.cluster, name) for name in names(4)}
    gpu_node.ask_layout("all-7g.40gb")
    gpu_node.until_state("failed", timeout_s=120)
    assert used <= set(gpu_node.mig_uuids())
    for name in names(4):
        status = gpu_node.cluster.get("pod", name)["status"]["containerStatuses"][0]
        assert (status["ready"], status["restartCount"]) == (True, 0)


def test_replicas_of_a_mixed_layout_are_counted_per_size(gpu_node: GpuNode) -> None:
    """On each GPU two 1g.5gb, one 2g.10gb and one 3g.20gb, shared by 4, 3 and 4: 8, 3 and 4 for each."""
    sizes = {SLICE: 4, "nvidia.com/mig-2g.10gb": 3, "nvidia.com/mig-3g.20gb": 4}
    resources = [{"name": name, "replicas": count} for name, count in sizes.items()]
    gpu_node.start_agent(sharing={"timeSlicing": {"resources": resources}})
    gpu_node.ask_layout("all-balanced")
    gpu_node.until_state("success")
    gpu_node.until_offered((SLICE, 16), ("nvidia.com/mig-2g.10gb", 6), ("nvidia.com/mig-3g.20gb", 8))


@pytest.mark.parametrize("name", ["no-such-layout", "all-1g.6gb"])
def test_a_name_that_means_nothing_here_fails_and_changes_nothing(gpu_node: GpuNode, name: str) -> None:
    gpu_node.start_agent()
    gpu_node.ask_layout("all-1g.5gb")
    gpu_node.until_offered((SLICE, 14))
    before = gpu_node.mig_uuids()
    gpu_node.ask_layout(name)
    gpu_node.until_state("failed")
    assert gpu_node.mig_uuids() == before
    gpu_node.until_offered((SLICE, 14))
    conditions = gpu_node.cluster.get("node", "node1")["status"]["conditions"]
    said = next(one for one in conditions if one["type"] == "TesseraLayoutApplied")
    assert said["status"] == "False"
    assert name in said["message"]


def test_layouts_come_back_after_a_power_cut(gpu_node: GpuNode) -> None:
    gpu_node.start_agent()
    gpu_node.ask_layout("all-balanced")
    gpu_node.until_state("success")
    gpu_node.until_offered((SLICE, 4), ("nvidia.com/mig-3g.20gb", 2))
    gpu_node.power_cut()
    assert gpu_node.mig_uuids() == ()
    gpu_node.start_again()
    until("instances", lambda: len(gpu_node.mig_uuids()) == 8, timeout_s=60, found=gpu_node.agent_log)
    gpu_node.until_offered((SLICE, 4), ("nvidia.com/mig-3g.20gb", 2))


def test_a_gpu_that_a_foreign_process_uses_is_left_alone(gpu_node: GpuNode) -> None:
    """The agent did not give it out, but somebody computes on it."""
    with Machine(gpu_node.node.gpu_state) as machine:
        machine.add_process(0, Process(pid=4242, name="foreign", memory_mib=1000))
    gpu_node.start_agent("--pending-s=10")
    gpu_node.until_offered(("nvidia.com/gpu", 2))
    gpu_node.ask_layout("all-1g.5gb")
    gpu_node.until_state("failed")
    with Machine(gpu_node.node.gpu_state) as machine:
        first = machine.describe()["gpus"][0]
    assert (first["mig"]["current"], first["instances"]) == (0, [])
