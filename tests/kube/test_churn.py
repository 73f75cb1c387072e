"""Pods of every kind that come and go on a whole cluster: each has what is on record for it, and nobody is stranded."""

import random
from typing import Any

from judges.allocated import shares_of
from kube import pods
from kube.gpunode import GpuNode
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.mig import is_legal, placements_of
from tessera.sim.nvmlsim import Machine
from testbed.cluster import Cluster
from testbed.processes import until

GPUS = ("2xA100-40GB",)
OURS = "tessera-scheduler"
ASSIGNMENT = "tessera.dev/assignment"
NEED, COMPUTE = "tessera.dev/gpu-memory", "tessera.dev/gpu-compute"
A100 = model("A100-40GB")
ROUNDS, AT_ONCE = 8, 5

KINDS: tuple[tuple[dict[str, int], str], ...] = (
    ({NEED: 4}, "none"),
    ({NEED: 9}, "none"),
    ({NEED: 4}, "hardware"),
    ({NEED: 4, COMPUTE: 20}, "hardware"),
    ({NEED: 9}, "hardware"),
    ({"aliyun.com/gpu-mem": 3}, "none"),
    ({"nvidia.com/mig-1g.5gb": 1}, ""),
    ({"nvidia.com/mig-2g.10gb": 1}, ""),
    ({"nvidia.com/gpu": 1}, ""),
)


def asking(name: str, kind: tuple[dict[str, int], str]) -> dict[str, Any]:
    limits, isolation = kind
    one = pods.busybox(name, limits=limits, schedulerName=OURS)
    one["metadata"]["annotations"] = {"tessera.dev/isolation": isolation} if isolation else {}
    return one


def present(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """Return the pods of the test that are not being deleted, by name."""
    found = cluster.get("pods", "-l", "made-by=test")["items"]
    return {each["metadata"]["name"]: each for each in found if "deletionTimestamp" not in each["metadata"]}


def kind_of(pod: dict[str, Any]) -> str:
    """Return the first resource a pod asks."""
    return str(next(iter(pod["spec"]["containers"][0]["resources"]["limits"])))


def running(found: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: each for name, each in found.items() if each["status"]["phase"] == "Running"}


def devices(node: GpuNode) -> dict[str, tuple[int, str | None, int | None]]:
    """Return GPU, profile and start of each device of the driver, by UUID."""
    with Machine(node.node.gpu_state) as machine:
        gpus = machine.describe()["gpus"]
    whole = {gpu["uuid"]: (gpu["index"], None, None) for gpu in gpus}
    cut = {
        part["uuid"]: (gpu["index"], each["profile"], each["start"])
        for gpu in gpus
        for each in gpu["instances"]
        for part in each["compute_instances"]
    }
    return {**whole, **cut}


def check_granted(found: dict[str, dict[str, Any]]) -> None:
    """Check that what pods hold goes together on each GPU."""
    for gpu in (0, 1):
        held = [share for each in found.values() for share in shares_of(each) if share["gpu"] == gpu]
        cut = [share for share in held if share.get("profile") is not None]
        places = [
            next(place for place in placements_of(A100, share["profile"]) if place.start == share["start"])
            for share in cut
        ]
        assert is_legal(A100, tuple(sorted(places))), held
        assert not cut or len(cut) == len(held), held
        assert sum(share["memoryMiB"] for share in held) <= A100.memory_mib, held
        assert sum(share["mode"] == "whole" for share in held) in {0, len(held)}, held


def test_pods_of_every_kind_come_and_go(whole_cluster: Cluster) -> None:
    cluster, rng = whole_cluster, random.Random(7)
    node = GpuNode(cluster, cluster.nodes[0])
    ran: set[str] = set()
    for number in range(ROUNDS):
        cluster.apply(*(asking(f"r{number}-{each}", rng.choice(KINDS)) for each in range(AT_ONCE)))
        node.let_it_run(rng.uniform(1, 8))
        found = present(cluster)
        check_granted(found)
        ran |= {kind_of(each) for each in running(found).values()}
        refused = [each["status"].get("message") for each in found.values() if each["status"]["phase"] == "Failed"]
        assert refused == []
        gone = rng.sample(sorted(found), k=len(found) // 2)
        if gone:
            cluster.kubectl("delete", "pod", *gone, "--wait=false")

    def settled() -> bool:
        """Whether each pod that was given a node runs; others wait for room."""
        found = present(cluster)
        return all(name in running(found) for name, each in found.items() if each["spec"].get("nodeName"))

    until("pods that have a node run", settled, timeout_s=120, found=lambda: str(pods.troubles(cluster)))
    found = running(present(cluster))
    check_granted(found)
    until("all is on record", lambda: all(map(shares_of, running(present(cluster)).values())), timeout_s=60)
    where = devices(node)
    for name, each in running(present(cluster)).items():
        told = {(share["gpu"], share.get("profile"), share.get("start")) for share in shares_of(each)}
        seen = {where[uuid] for uuid in pods.devices(cluster, name).split(",")}
        assert told == seen, name
    failed = [
        each["status"].get("message") for each in present(cluster).values() if each["status"]["phase"] == "Failed"
    ]
    assert failed == []
    assert len(ran) > len(KINDS) // 3, "too few kinds of pods ran for this test to prove anything"
    pods.remove(cluster)
    # What is left of all that is nobody's: it goes for a pod that wants the whole GPU.
    pods.run(cluster, *(asking(f"whole{each}", ({"nvidia.com/gpu": 1}, "")) for each in (0, 1)))
    until("all is on record", lambda: all(map(shares_of, present(cluster).values())), timeout_s=60)
    held = [(share["gpu"], share["mode"]) for each in present(cluster).values() for share in shares_of(each)]
    assert sorted(held) == [(0, "whole"), (1, "whole")]
    pods.remove(cluster)
