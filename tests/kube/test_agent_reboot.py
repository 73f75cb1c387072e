"""The agent on a real node whose A100s switch MIG with a reset alone: it has the node rebooted, once, when idle."""

from pathlib import Path

from kube.gpunode import GpuNode
from kube.pods import busybox, devices, phase, remove, run
from tessera.sim.nvmlsim import Machine
from testbed.processes import until

GPUS = ("2xA100-40GB",)
GPU = "nvidia.com/gpu"
HALF = "nvidia.com/mig-3g.20gb"


def reboots(mark: Path) -> int:
    """Return how often a reboot was requested."""
    return len(mark.read_text().splitlines()) if mark.exists() else 0


def prepared(node: GpuNode, mark: Path) -> None:
    """Start an agent that may reboot its node: the command only marks that it was called."""
    script = mark.with_name("reboot-node")
    script.write_text(f'#!/bin/sh\necho "$@" >>{mark}\n')
    script.chmod(0o755)
    with Machine(node.node.gpu_state) as machine:
        for gpu in range(2):
            machine.set(gpu, "mig_needs_reset", 1)
    node.start_agent(f"--reboot-command={script} now")
    node.until_offered((GPU, 2))


def until_mig_waits(node: GpuNode) -> None:
    """Wait until a GPU has MIG after its next reset."""

    def waits() -> bool:
        with Machine(node.node.gpu_state) as machine:
            return any(gpu["mig"]["current"] != gpu["mig"]["pending"] for gpu in machine.describe()["gpus"])

    until("MIG after a reset", waits, timeout_s=60, found=node.agent_log)


def test_a_node_is_rebooted_once_nobody_uses_its_gpus(gpu_node: GpuNode) -> None:
    mark = gpu_node.node.folder / "var-lib" / "tessera" / "reboots"
    mark.parent.mkdir(exist_ok=True)
    prepared(gpu_node, mark)
    run(gpu_node.cluster, busybox("busy", limits={GPU: 1}))
    gpu_node.ask_layout("all-3g.20gb")
    until_mig_waits(gpu_node)
    gpu_node.until_state("pending")
    assert devices(gpu_node.cluster, "busy") in gpu_node.gpu_uuids()
    assert (phase(gpu_node.cluster, "busy"), reboots(mark)) == ("Running", 0)
    remove(gpu_node.cluster, "busy")
    gpu_node.until_state("rebooting")
    until("call of the command", lambda: reboots(mark) == 1, timeout_s=60, found=gpu_node.agent_log)
    assert mark.read_text() == "now\n"
    gpu_node.until_offered((GPU, 0))
    gpu_node.power_cut()
    gpu_node.start_again()
    gpu_node.until_state("success")
    gpu_node.until_offered((HALF, 4))
    run(gpu_node.cluster, busybox("after", limits={HALF: 1}))
    assert devices(gpu_node.cluster, "after") in gpu_node.mig_uuids()
    assert reboots(mark) == 1
