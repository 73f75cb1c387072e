"""The agent on a real node: pods share GPUs and MIG instances by MPS within their limits; daemons are kept alive."""

import json
from pathlib import Path
from typing import Any

from builders.shares import share
from kube.gpunode import GpuNode
from kube.pods import busybox, devices, environment, run, showing
from tessera.api.tessera.pods.assignments import write_shares
from tessera.core.gpu.sharing import Mode
from tessera.sim.mpscontrol import install
from tessera.sim.nvmlsim import Machine
from testbed.processes import until

GPUS = ("2xT4", "A100-40GB")
REPLICA = "nvidia.com/gpu"
HALF = "nvidia.com/mig-3g.20gb"
UNITS = "tessera.dev/gpu-memory"
COMMAND = showing("echo PIPES=$(ls /run/tessera/mps)", "echo SHM=$(ls /dev/shm)")
POLICY = {
    "apiVersion": "tessera.dev/v1alpha1",
    "kind": "NodePolicy",
    "gpus": [
        {"devices": [0], "sharing": {"mps": 2}},
        {"devices": [2], "sharing": {"mig": "all-3g.20gb", "mps": 2}},
        {"sharing": "auto", "isolation": "driver"},
    ],
}


def assigned(name: str, units: int, percent: int) -> dict[str, Any]:
    """Return a pod with so much of the second GPU, by MPS."""
    made = busybox(name, command=COMMAND, limits={UNITS: units})
    made["metadata"]["annotations"] = {
        "tessera.dev/assignment": write_shares((share(1, units * 1024, Mode.MPS, percent=percent),))
    }
    return made


def folder(node: GpuNode, gpu: int) -> Path:
    """Return where a GPU's daemon has its files, as this process sees it."""
    return node.node.path(f"/run/tessera/mps/{node.gpu_uuids()[gpu]}")


def daemon(node: GpuNode, gpu: int) -> int:
    """Return the process of a GPU's daemon as the node numbers it; 0 where there is none."""
    try:
        return int(json.loads((folder(node, gpu) / "daemon.json").read_text())["pid"])
    except FileNotFoundError:
        return 0


def kill(node: GpuNode, gpu: int) -> int:
    """End a GPU's daemon as a crash does, and return which process it was."""
    pid = daemon(node, gpu)
    node.node.run("sh", "-c", f"kill -9 {pid}")
    return pid


def started(node: GpuNode) -> Path:
    program = install(node.node.folder / "mps-bin")
    node.start_agent(f"--mps-control={program}", policy=POLICY)
    node.until_offered((REPLICA, 2), (UNITS, 14), (HALF, 4))
    return program


def compute_modes(node: GpuNode) -> list[int]:
    with Machine(node.node.gpu_state) as machine:
        return [gpu["compute_mode"] for gpu in machine.describe()["gpus"]]


def test_each_pod_has_the_pipes_of_its_gpu_and_limits_of_its_own_and_daemons_come_back(gpu_node: GpuNode) -> None:
    program = started(gpu_node)
    marker = gpu_node.node.path("/dev/shm/of-the-node")
    marker.touch()
    replicas = [busybox(f"replica-{number}", command=COMMAND, limits={REPLICA: 1}) for number in range(2)]
    slices = [busybox(f"slice-{number}", command=COMMAND, limits={HALF: 1}) for number in range(4)]
    run(gpu_node.cluster, *replicas, *slices, assigned("small", 3, 20), assigned("large", 6, 50))
    for name, limit, percent in (("small", "0=3072M", "20"), ("large", "0=6144M", "50")):
        found = environment(gpu_node.cluster, name)
        assert found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == limit
        assert found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == percent
        assert devices(gpu_node.cluster, name) == gpu_node.gpu_uuids()[1]
    on_slices = [environment(gpu_node.cluster, f"slice-{number}") for number in range(4)]
    held = [devices(gpu_node.cluster, f"slice-{number}") for number in range(4)]
    assert sorted(held) == sorted(2 * gpu_node.mig_uuids())
    assert {found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] for found in on_slices} == {"0=9984M"}
    assert {found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] for found in on_slices} == {"50"}
    for name in ("replica-0", "replica-1", "small", "large", "slice-0", "slice-3"):
        found = environment(gpu_node.cluster, name)
        assert found["CUDA_MPS_PIPE_DIRECTORY"] == "/run/tessera/mps"
        assert "control" in found["PIPES"].split()
        assert "of-the-node" in found["SHM"].split()
    assert environment(gpu_node.cluster, "replica-0")["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
    log = (folder(gpu_node, 0) / "log" / "control.log").read_text()
    half_mib = environment(gpu_node.cluster, "replica-0")["TESSERA_GPU_MEMORY_MIB"]
    assert "set_default_active_thread_percentage 50" in log
    assert f"set_default_device_pinned_mem_limit 0 {half_mib}M" in log
    assert compute_modes(gpu_node) == [3, 3, 0]
    marker.unlink()
    daemons_come_back(gpu_node, program)


def daemons_come_back(gpu_node: GpuNode, program: Path) -> None:
    """A daemon that dies is started again, its GPU not offered meanwhile, and pods run on."""
    former = kill(gpu_node, 0)
    until("another daemon", lambda: daemon(gpu_node, 0) not in {0, former}, timeout_s=60, found=gpu_node.agent_log)
    gpu_node.until_offered((REPLICA, 2))
    text = program.read_text()
    install(program.parent / "real")
    refuses = f'[ "$1" = -f ] && echo no daemon today && exit 1\nexec {program.parent}/real/{program.name} "$@"'
    program.write_text(f"#!/bin/sh\n{refuses}\n")
    kill(gpu_node, 0)
    gpu_node.until_offered((REPLICA, 0), (UNITS, 14))
    until("the reason", lambda: "MPS of" in gpu_node.agent_log(), timeout_s=60, found=gpu_node.agent_log)
    program.write_text(text)
    gpu_node.until_offered((REPLICA, 2), (UNITS, 14))
    for name in ("replica-0", "small"):
        status = gpu_node.cluster.get("pod", name)["status"]["containerStatuses"][0]
        assert (status["ready"], status["restartCount"]) == (True, 0)
