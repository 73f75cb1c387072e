"""A cluster as partitioning sees it: who is pending, what is recorded, and claims of pods that are not seen yet."""

from builders.kubeobjects import Object, gpu, gpunode, mig_share, node, pod
from tessera.api.tessera.cluster.clusters import as_fields, read_cluster
from tessera.core.cluster.gpunodestate import Claim
from tessera.core.packing.partitioning.observing import observe_cluster
from tessera.core.packing.partitioning.records import PartitioningState
from tessera.core.workload.need import PodKey

SLICE = {"nvidia.com/mig-1g.5gb": 1}


def observed(*objects: Object) -> PartitioningState:
    return observe_cluster(read_cluster(as_fields([node("a"), gpunode("a", gpu(0)), *objects])))


def test_pods_that_request_gpus_and_are_not_ending_are_pending() -> None:
    ending = pod("ends", SLICE, node="", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    found = observed(pod("waits", SLICE, node=""), pod("plain", {}, node=""), ending)
    assert [each.key for each in found.pending] == ["ns/waits"]


def test_only_recorded_shares_count_as_used() -> None:
    found = observed(
        pod("recorded", SLICE, mig_share(0, "1g.5gb", 6), node="a"),
        pod("unknown", SLICE, node="a"),
        pod("waits", SLICE, node=""),
    )
    used = {each.pod.key: [share.start for share in each.assignment.shares] for each in found.running}
    assert used == {"ns/recorded": [6], "ns/unknown": []}


def test_a_claim_counts_until_its_pod_is_observed() -> None:
    claims = tuple(
        Claim(uid=f"uid-{name}", pod=PodKey(f"ns/{name}"), shares=(mig_share(0, "1g.5gb", start),))
        for name, start in (("comes", 5), ("here", 6))
    )
    here = pod("here", SLICE, mig_share(0, "1g.5gb", 6), node="a")
    found = observe_cluster(read_cluster(as_fields([node("a"), gpunode("a", gpu(0), claims=claims), here])))
    used = [(each.pod.key, [share.start for share in each.assignment.shares]) for each in found.running]
    assert used == [("ns/here", [6]), ("ns/comes", [5])]


def test_nodes_whose_agents_do_not_report_have_no_state() -> None:
    labels = {"nvidia.com/gpu.product": "Tesla-T4"}
    found = observed(node("without-agent", {"nvidia.com/gpu": "1"}, **labels))
    assert sorted(each.name for each in found.nodes) == ["a", "without-agent"]
    assert [each.name for each in found.states] == ["a"]
