"""The agent on a real node: annotation, kubelet's record and container agree on memory shares made all at once."""

import random
from collections import Counter
from typing import Any

import pytest

from builders.shares import share
from judges.allocated import shares_of
from kube.gpunode import GpuNode
from kube.pods import busybox, environment, run, showing
from tessera.api.tessera.pods.assignments import write_shares
from tessera.clients.kubelet import PodResources

GPUS = ("4xA100-40GB",)
UNITS = "tessera.dev/gpu-memory"
ASSIGNMENT = "tessera.dev/assignment"
PODS = 50
COMMAND = showing("echo NODES=$(ls /dev | grep '^nvidia[0-9]')")
POLICY = {"apiVersion": "tessera.dev/v1alpha1", "kind": "NodePolicy", "gpus": [{"sharing": "memory-share"}]}


def desired_pods(rng: random.Random, per_gpu: int) -> list[dict[str, Any]]:
    """Return pods of equal and unequal sizes, in any order, with a GPU each that has room for them."""
    left = dict.fromkeys(range(4), per_gpu)
    made = []
    for number in range(PODS):
        units = rng.choice((1, 2, 2, 3, 5))
        gpu = rng.choice([gpu for gpu, room in left.items() if room >= units])
        left[gpu] -= units
        one = busybox(f"share-{number}", command=COMMAND, limits={UNITS: units})
        one["metadata"]["annotations"] = {ASSIGNMENT: write_shares((share(gpu, units * 1024),))}
        made.append(one)
    return made


def assigned_units(pods: list[dict[str, Any]]) -> Counter[int]:
    """Return how many units of each GPU pods were assigned when they were made."""
    units: Counter[int] = Counter()
    for one in pods:
        (assigned,) = shares_of(one)
        units[assigned["gpu"]] += assigned["memoryMiB"] // 1024
    return units


def gpu_of(variables: dict[str, str], uuids: tuple[str, ...]) -> int:
    """Return the GPU a container has: by its device file from CDI, else as NVIDIA's runtime reads the variable."""
    visible = variables["NVIDIA_VISIBLE_DEVICES"]
    return int(variables["NODES"].removeprefix("nvidia")) if visible == "void" else uuids.index(visible)


@pytest.mark.anyio
@pytest.mark.parametrize("strategy", ["cdi-cri", "envvar"])
async def test_annotation_record_and_environment_of_fifty_pods_agree(gpu_node: GpuNode, strategy: str) -> None:
    cluster = gpu_node.cluster
    plugin = {"migStrategy": "none", "plugin": {"deviceListStrategy": [strategy]}}
    gpu_node.start_agent(policy=POLICY, flags=plugin)
    gpu_node.until_offered((UNITS, 4 * 39))
    pods = desired_pods(random.Random(strategy), 39)
    run(cluster, *pods, timeout_s=150)
    record = {one.pod: len(one.device_ids) for one in await PodResources(gpu_node.node.pod_resources).list()}
    mismatches = []
    units_on: Counter[int] = Counter()
    for number in range(PODS):
        name = f"share-{number}"
        found = cluster.get("pod", name)
        units = int(found["spec"]["containers"][0]["resources"]["limits"][UNITS])
        variables = environment(cluster, name)
        gpu = gpu_of(variables, gpu_node.gpu_uuids())
        units_on[gpu] += units
        told = (found["metadata"]["annotations"][ASSIGNMENT], record[name], variables["TESSERA_GPU_MEMORY_MIB"])
        if told != (write_shares((share(gpu, units * 1024),)), units, str(units * 1024)):
            mismatches.append((name, gpu, *told))
    assert mismatches == []
    assert units_on == assigned_units(pods), (
        "whatever was exchanged, no GPU is allocated more or less than was assigned"
    )
