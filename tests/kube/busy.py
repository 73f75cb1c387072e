"""Load of simulated GPUs: what containers would compute on real ones, and what that does to a GPU."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from kube.pods import ASSIGNMENT
from tessera.sim.nvmlsim import Machine, Process
from testbed.cluster import Cluster
from testbed.node import Node

__all__ = ["keep_busy", "keep_instances_busy", "let_go", "top"]

_HOT_C = 91
_COOL_C = 40
_THERMAL = 0x20
"""Source: NVML, nvmlClocksEventReasonSwThermalSlowdown."""
_MEMORY_MIB = 4096
_LEAST_PERCENT = 30
_PIDS = """
import pathlib, sys
uid, program = sys.argv[1:]
for one in sorted(pathlib.Path('/proc').glob('[0-9]*'), key=lambda one: int(one.name)):
    words = (one / 'cmdline').read_bytes().split(b'\\0')
    if uid in (one / 'cgroup').read_text().replace('_', '-') and program.encode() in words[0]:
        print(one.name)
        break
"""


def keep_busy(cluster: Cluster, namespace: str, **loads: int) -> tuple[int, dict[str, int]]:
    """Let the `sleep` of Jobs compute on the GPU that they share, which gets too hot; return the GPU and the processes.

    They share it by memory: the driver does not tell clients of MPS apart.

    Args:
        cluster: where they run, all on its first node.
        namespace: of the Jobs.
        loads: percent of the GPU's time by Job.

    """
    node, gpus, pids = cluster.nodes[0], set[int](), dict[str, int]()
    with Machine(node.gpu_state) as machine:
        for name, percent in loads.items():
            (pod,) = cluster.get("pods", f"--namespace={namespace}", f"--selector=job-name={name}")["items"]
            (share,) = json.loads(pod["metadata"]["annotations"][ASSIGNMENT])["shares"]
            assert share["mode"] == "memory-share"
            gpus.add(share["gpu"])
            pids[name] = _pid(node, pod, "sleep")
            machine.add_process(
                share["gpu"],
                Process(pid=pids[name], memory_mib=_MEMORY_MIB, sm_percent=percent, name="python"),
            )
        (gpu,) = gpus
        machine.set(gpu, "temperature_c", _HOT_C)
        machine.set(gpu, "throttle_reasons", _THERMAL)
    return gpu, pids


def keep_instances_busy(cluster: Cluster, instances: dict[str, str], memory_mib: int) -> None:
    """Let the Python programs of pods hold memory on their MIG instances and compute, each a little more than the last.

    Args:
        cluster: whose first node has the GPUs.
        instances: the MIG device of each pod, by the pod's UID.
        memory_mib: what each holds.

    """
    node = cluster.nodes[0]
    pods = {each["metadata"]["uid"]: each for each in cluster.get("pods", "--all-namespaces")["items"]}
    with Machine(node.gpu_state) as machine:
        places = {
            part["uuid"]: (gpu["index"], each["id"], part["id"])
            for gpu in machine.describe()["gpus"]
            for each in gpu["instances"]
            for part in each["compute_instances"]
        }
        for number, (uid, device) in enumerate(sorted(instances.items(), key=lambda each: places[each[1]])):
            gpu, instance, part = places[device]
            process = Process(
                pid=_pid(node, pods[uid], "python"),
                memory_mib=memory_mib,
                sm_percent=_LEAST_PERCENT + 2 * number,
                name="python",
                gpu_instance=instance,
                compute_instance=part,
            )
            machine.add_process(gpu, process)


def _pid(node: Node, pod: dict[str, Any], program: str) -> int:
    """Return the first process of a pod that runs a program, as the node numbers it."""
    return int(node.run(sys.executable, "-c", _PIDS, pod["metadata"]["uid"], program))


def let_go(cluster: Cluster, gpu: int, pids: dict[str, int]) -> None:
    """End these processes' use of their GPU, which cools down."""
    with Machine(cluster.nodes[0].gpu_state) as machine:
        for pid in pids.values():
            machine.remove_process(pid)
        machine.set(gpu, "temperature_c", _COOL_C)
        machine.set(gpu, "throttle_reasons", 0)


def top(cluster: Cluster) -> str:
    """Return what `tessera top --once` prints, in one line."""
    program = str(Path(sys.executable).with_name("tessera"))
    command = (program, "top", "--once", f"--kubeconfig={cluster.kubeconfig}")
    return " ".join(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
