"""All of Tessera on a real cluster: the scheduler asks the server, it assigns, the agent creates, and the pod runs."""

from collections.abc import Iterator
from typing import Any

import pytest

from kube import pods
from kube.gpunode import GpuNode
from tessera.api.tessera.cluster.clusters import as_fields, read_cluster
from tessera.core.explain.podexplanation import explain_pod
from tessera.core.packing.obstacles import Cause
from tessera.core.workload.need import PodKey
from testbed.cluster import Cluster
from testbed.images import BUSYBOX
from testbed.processes import until

GPUS = ("2xA100-40GB",)
OURS = "tessera-scheduler"
ASSIGNMENT = "tessera.dev/assignment"
ISOLATION = "tessera.dev/isolation"


@pytest.fixture
def whole(whole_cluster: Cluster) -> Iterator[GpuNode]:
    """Give the node, with units of memory offered, and take all pods away afterwards."""
    node = GpuNode(whole_cluster, whole_cluster.nodes[0])
    node.until_offered(("tessera.dev/gpu-memory", 2 * 39))
    yield node
    pods.remove(whole_cluster)


def ours(name: str, limits: dict[str, int], *, isolation: str = "", **spec: Any) -> dict[str, Any]:
    """Return a pod that names our scheduler."""
    pod = pods.busybox(name, limits=limits, schedulerName=OURS, **spec)
    pod["metadata"]["annotations"] = {ISOLATION: isolation} if isolation else {}
    return pod


def annotations(cluster: Cluster, name: str) -> dict[str, str]:
    found = cluster.get("pod", name)["metadata"]["annotations"]
    return {str(key): str(value) for key, value in found.items()}


def visible(cluster: Cluster, name: str) -> str:
    return pods.devices(cluster, name)


def test_a_need_runs_by_default(whole: GpuNode) -> None:
    pods.run(whole.cluster, ours("six", {"tessera.dev/gpu-memory": 6}))
    assert ASSIGNMENT in annotations(whole.cluster, "six")
    assert visible(whole.cluster, "six") in {*whole.gpu_uuids(), *whole.mig_uuids()}


def test_needs_without_isolation_are_packed_on_one_gpu(whole: GpuNode) -> None:
    pods.run(whole.cluster, *(ours(name, {"tessera.dev/gpu-memory": 6}, isolation="none") for name in ("one", "two")))
    assert visible(whole.cluster, "one") == visible(whole.cluster, "two")
    assert visible(whole.cluster, "one") in whole.gpu_uuids()


def test_a_need_of_hardware_isolation_gets_a_slice_that_nobody_named(whole: GpuNode) -> None:
    assert whole.mig_uuids() == ()
    limits = {"tessera.dev/gpu-memory": 8, "tessera.dev/gpu-compute": 20}
    pods.run(whole.cluster, ours("alone", limits, isolation="hardware"))
    assert visible(whole.cluster, "alone") in whole.mig_uuids()


def test_a_need_of_two_gpus_gets_both(whole: GpuNode) -> None:
    limits = {"tessera.dev/gpu-memory": 6, "tessera.dev/gpu-count": 2}
    pods.run(whole.cluster, ours("both", limits, isolation="none"))
    assert set(visible(whole.cluster, "both").split(",")) == set(whole.gpu_uuids())


def test_containers_of_a_gpushare_pod_lie_on_one_gpu(whole: GpuNode) -> None:
    pod = ours("pair", {"aliyun.com/gpu-mem": 2})
    (first,) = pod["spec"]["containers"]
    pod["spec"]["containers"] = [first, {**first, "name": "second"}]
    pods.run(whole.cluster, pod)
    told = annotations(whole.cluster, "pair")
    assert told["ALIYUN_COM_GPU_MEM_POD"] == "4"
    for name in ("main", "second"):
        environment = pods.environment(whole.cluster, "pair", "-c", name)
        assert environment["ALIYUN_COM_GPU_MEM_IDX"] == told["ALIYUN_COM_GPU_MEM_IDX"]
        assert environment["ALIYUN_COM_GPU_MEM_CONTAINER"] == "2"


def test_a_server_that_ends_takes_nothing_with_it(whole: GpuNode) -> None:
    pods.run(whole.cluster, ours("before", {"tessera.dev/gpu-memory": 6}, isolation="none"))
    whole.cluster.processes.stop("server")
    whole.cluster.apply(ours("after", {"tessera.dev/gpu-memory": 6}, isolation="none"))
    whole.cluster.start_part("server")
    whole.cluster.kubectl("wait", "--for=condition=Ready", "pod/before", "pod/after", "--timeout=120s")
    assert visible(whole.cluster, "before") == visible(whole.cluster, "after")


def test_an_exact_request_is_cut_for_where_nobody_has_cut(whole: GpuNode) -> None:
    pods.run(whole.cluster, ours("exact", {"nvidia.com/mig-2g.10gb": 1}))
    assert visible(whole.cluster, "exact") in whole.mig_uuids()


def test_what_fits_nowhere_waits_with_a_reason(whole: GpuNode) -> None:
    whole.cluster.apply(ours("large", {"tessera.dev/gpu-memory": 60}))

    def said() -> str:
        found = whole.cluster.get("pod", "large")["status"].get("conditions", ())
        return " ".join(each.get("message", "") for each in found if each["type"] == "PodScheduled")

    until("a reason", lambda: "0/1 nodes are available" in said(), timeout_s=60, found=said)
    assert "A100" in said() or "GiB" in said(), said()


def test_a_pod_that_counts_in_mib_on_a_node_that_counts_in_gib_gets_the_reason(whole: GpuNode) -> None:
    """kube-scheduler asks nobody about the node, and says no more than that there are too few units."""
    odd = ours("mib", {"tessera.dev/gpu-memory": 6000})
    odd["metadata"]["annotations"]["tessera.dev/gpu-memory-unit"] = "MiB"
    whole.cluster.apply(odd)

    def said() -> str:
        found = whole.cluster.get("pod", "mib")["status"].get("conditions", ())
        return " ".join(each.get("message", "") for each in found if each["type"] == "PodScheduled")

    until("a reason", lambda: "Insufficient tessera.dev/gpu-memory" in said(), timeout_s=60, found=said)
    cluster = read_cluster(as_fields(whole.cluster.get("nodes,pods,gpunodes", "-A")["items"]))
    explained = explain_pod(cluster, PodKey("default/mib"))
    assert explained is not None
    assert [each.obstacle and each.obstacle.cause for each in explained.nodes] == [Cause.REFUSED]
    assert "counts tessera.dev/gpu-memory in MiB and the node in GiB" in str(explained.nodes)


GUIDE = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "binpack-1", "labels": {"app": "binpack-1"}},
    "spec": {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "binpack-1"}},
        "template": {
            "metadata": {"labels": {"app": "binpack-1", "made-by": "test"}},
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [
                    {
                        "name": "binpack-1",
                        "image": BUSYBOX,
                        "command": ["sh", "-c", pods.SLEEP],
                        "resources": {"limits": {"aliyun.com/gpu-mem": 2}},
                    }
                ],
            },
        },
    },
}
"""The first manifest of gpushare's user guide with an image that is here; it names no scheduler."""


def test_the_manifests_of_gpushares_guide_work_unchanged(whole: GpuNode) -> None:
    cluster = whole.cluster
    cluster.apply(GUIDE)
    try:
        cluster.kubectl("wait", "--for=condition=Available", "deployment/binpack-1", "--timeout=120s")
        found = cluster.get("pods", "-l", "app=binpack-1")["items"]
        assert [each["spec"]["schedulerName"] for each in found] == [OURS] * 2
        for each in found:
            told = each["metadata"]["annotations"]
            assert told["ALIYUN_COM_GPU_MEM_POD"] == "2"
            environment = pods.environment(cluster, each["metadata"]["name"])
            assert environment["ALIYUN_COM_GPU_MEM_CONTAINER"] == "2"
            assert environment["ALIYUN_COM_GPU_MEM_IDX"] == told["ALIYUN_COM_GPU_MEM_IDX"]
    finally:
        cluster.kubectl("delete", "deployment", "binpack-1", "--ignore-not-found")


def test_a_need_that_names_no_scheduler_runs(whole: GpuNode) -> None:
    pods.run(whole.cluster, pods.busybox("unnamed", limits={"tessera.dev/gpu-memory": 6}))
    assert whole.cluster.get("pod", "unnamed")["spec"]["schedulerName"] == OURS
    assert ASSIGNMENT in annotations(whole.cluster, "unnamed")
