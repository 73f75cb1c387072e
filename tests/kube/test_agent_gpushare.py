"""gpushare's interface on a real node: by its client's rules it gives the numbers that `tessera inspect` shows."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from builders.shares import share
from judges import gpusharecli
from kube.gpunode import GpuNode
from kube.pods import busybox, run
from tessera.api.tessera.pods.assignments import write_shares
from tessera.cli import main
from testbed.processes import until

GPUS = ("2xA100-40GB",)
MEMORY, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
POLICY = {"apiVersion": "tessera.dev/v1alpha1", "kind": "NodePolicy", "gpus": [{"sharing": "memory-share"}]}


def allocatable(gpu_node: GpuNode, name: str) -> str:
    return str(gpu_node.cluster.get("node", gpu_node.node.name)["status"]["allocatable"].get(name, ""))


def assigned(name: str, units: int, gpu: int) -> dict[str, Any]:
    made = busybox(name, limits={MEMORY: units})
    made["metadata"]["annotations"] = {
        "tessera.dev/assignment": write_shares((share(gpu, units * 1024, resource=MEMORY, container=""),)),
        "ALIYUN_COM_GPU_MEM_IDX": str(gpu),
        "ALIYUN_COM_GPU_MEM_POD": str(units),
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1",
    }
    return made


def said(gpu_node: GpuNode, name: str) -> str:
    return str(gpu_node.cluster.get("pod", name)["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_ASSIGNED"])


def users(gpu_node: GpuNode) -> list[set[str]]:
    """Return the pods that `tessera mig list` shows at each GPU of the node."""
    program = str(Path(sys.executable).with_name("tessera"))
    command = gpu_node.node.command(program, "mig", "list", "-o", "json")
    done = subprocess.run(command, capture_output=True, check=True, text=True, env=gpu_node.node.environment())
    assert done.stderr == ""
    return [{each["pod"] for each in gpu["users"]} for gpu in json.loads(done.stdout)["gpus"]]


def test_the_rules_of_gpushares_client_give_what_tessera_shows(gpu_node: GpuNode) -> None:
    cluster = gpu_node.cluster
    gpu_node.start_agent(policy=POLICY)
    gpu_node.until_offered((MEMORY, 2 * 39))
    until("number of GPUs", lambda: allocatable(gpu_node, COUNT) == "2", timeout_s=60)
    run(cluster, assigned("one", 5, 1), assigned("two", 3, 0), assigned("three", 4, 1))
    names = ("one", "two", "three")
    until("memory allocated", lambda: all(said(gpu_node, name) == "true" for name in names), timeout_s=60)
    # The kubelet's ids say nothing of the GPU; the assignments do.
    assert users(gpu_node) == [{"default/two"}, {"default/one", "default/three"}]
    objects = [each for kind in ("nodes", "pods", "gpunodes") for each in cluster.get(kind, "-A")["items"]]
    want = gpusharecli.shown(objects)
    assert [row.gpus for row in want.rows] == [((3, 39), (9, 39))]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    table = CliRunner().invoke(main, ["inspect", "-o", "gpushare", "--cluster", "-"], input=text).stdout
    assert re.search(r" 3/39 +9/39 +12/78\n", table), table
    # The kubelet keeps what it does not manage itself.
    gpu_node.node.restart_kubelet()
    until("number of GPUs after a restart", lambda: allocatable(gpu_node, COUNT) == "2", timeout_s=60)
