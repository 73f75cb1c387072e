"""Load of simulated GPUs: what containers would compute on real ones, and what that does to a GPU."""

import json
import subprocess
import sys
from pathlib import Path

from kube.pods import ASSIGNMENT
from tessera.sim.nvmlsim import Machine, Process
from testbed.cluster import Cluster

__all__ = ["keep_busy", "let_go", "top"]

_HOT_C = 91
_COOL_C = 40
_THERMAL = 0x20
"""Source: NVML, nvmlClocksEventReasonSwThermalSlowdown."""
_MEMORY_MIB = 4096
_PIDS = """
import pathlib, sys
for one in pathlib.Path('/proc').glob('[0-9]*'):
    words = (one / 'cmdline').read_bytes().split(b'\\0')
    if sys.argv[1] in (one / 'cgroup').read_text().replace('_', '-') and b'sleep' in words[0]:
        print(one.name)
"""


def keep_busy(cluster: Cluster, namespace: str, **loads: int) -> tuple[int, dict[str, int]]:
    """Let the `sleep` of Jobs compute on the GPU that they share, which gets too hot; return the GPU and the processes.

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
            (pid,) = node.run(sys.executable, "-c", _PIDS, pod["metadata"]["uid"]).split()
            gpus.add(share["gpu"])
            pids[name] = int(pid)
            machine.add_process(
                share["gpu"],
                Process(pid=int(pid), memory_mib=_MEMORY_MIB, sm_percent=percent, mode="mps", name="python"),
            )
        (gpu,) = gpus
        machine.set(gpu, "temperature_c", _HOT_C)
        machine.set(gpu, "throttle_reasons", _THERMAL)
    return gpu, pids


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
