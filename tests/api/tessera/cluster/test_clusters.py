"""A cluster is read whatever is wrong with some of its objects: they are named, the others are read."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.kubeobjects import Object, gpu, gpunode, node, pod, share
from tessera.api.tessera.cluster.clusters import PodMemory, as_fields, read_cluster
from tessera.core.cluster.cluster import Cluster, ObservedPod, Phase, Record
from tessera.core.cluster.gpunodestate import Claim
from tessera.core.explain.inspection import inspect
from tessera.core.packing.fit import Fleet
from tessera.core.packing.ledger import Ledger
from tessera.core.packing.plan import plan
from tessera.core.workload.need import PodKey

NEED = {"tessera.dev/gpu-memory": 4}
GOOD = (node(), gpunode("a", gpu(0), gpu(1)), pod("p", NEED, share(1, 4096)))


def read(*objects: Object, **more: Any) -> Cluster:
    return read_cluster(as_fields(objects), **more)


def only(*objects: Object) -> ObservedPod:
    (found,) = read(*objects).pods
    return found


# Keyed by a sentence: what is added to a good cluster; desired are words of the notes, all of them.
NOTED: dict[str, tuple[Object, list[str]]] = {
    "another kind": ({"kind": "Service", "metadata": {"name": "x"}}, []),
    "no kind": ({"metadata": {"name": "x"}}, []),
    "a kind that is a number": ({"kind": 5, "metadata": {"name": "x"}}, ["is not a text"]),
    "a pod without a name": ({"kind": "Pod", "metadata": {}}, ["metadata.name"]),
    "metadata that is a list": ({"kind": "Pod", "metadata": []}, ["metadata"]),
    "a name that is a number": ({"kind": "Node", "metadata": {"name": 7}}, ["metadata.name"]),
    "a pod twice": (GOOD[2], ["Pod once"]),
    "a node twice": (GOOD[0], ["Node once"]),
    "a report twice": (GOOD[1], ["GPUNode once"]),
    "a report of nobody": (gpunode("gone", gpu(0)), ["GPUNode gone is left out: there is no node"]),
    "a UID that is a number": (pod("x", metadata={"uid": 5}), ["metadata.uid"]),
    "a time that is a number": (pod("x", metadata={"creationTimestamp": 5}), ["metadata.creationTimestamp"]),
    "a status that is a list": (pod("x") | {"status": []}, ["status"]),
    "a pod on a node that is gone": (pod("x", NEED, node="gone"), ["pod ns/x is left out: it runs on node gone"]),
    "a pod whose request is nonsense": (
        pod("x", {"nvidia.com/gpu": "-1"}),
        ["pod ns/x cannot be read, and only its recorded devices count", "-1"],
    ),
    "a pending pod whose request is nonsense": (
        pod("x", {"nvidia.com/gpu": "-1"}, node=None),
        ["pod ns/x is left out", "-1"],
    ),
    "isolation in force that is no JSON": (
        node("b") | {"metadata": {"name": "b", "annotations": {"tessera.dev/enforcement": "{"}}},
        ["node b: the annotation tessera.dev/enforcement is not used"],
    ),
    "an assignment that is no JSON": (
        pod("x", NEED, annotations={"tessera.dev/assignment": "{"}),
        ["the devices recorded on pod ns/x are not used"],
    ),
}


@pytest.mark.parametrize("sentence", NOTED)
def test_what_is_wrong_is_noted_and_the_rest_is_read(sentence: str) -> None:
    more, want = NOTED[sentence]
    got = read(*GOOD, more)
    assert len(got.notes) == min(len(want), 1)
    assert [words for words in want if words not in got.notes[0]] == []
    assert ("ns/p", (1,)) in [(each.pod.key, tuple(share.gpu for share in each.shares)) for each in got.pods]
    Fleet.of(got.snapshot)


def test_a_report_that_cannot_be_read_leaves_the_labels() -> None:
    labeled = node("a", {"nvidia.com/gpu": "1"}, **{"nvidia.com/gpu.product": "Tesla-T4"})
    got = read(labeled, gpunode("a", gpu(0), gpu(0)))
    assert [each.model.name for each in got.nodes[0].node.gpus] == ["T4"]
    assert got.nodes[0].state is None
    assert "GPUNode a is left out" in got.notes[0]


def test_a_node_with_neither_a_report_nor_labels_has_the_problem_of_the_report_which_names_it_once() -> None:
    got = read(node("a", {"nvidia.com/gpu": "1"}), gpunode("a", gpu(0), gpu(0)))
    assert got.nodes[0].problem.endswith("line 1: GPUNode a: indices of GPUs: '0' is there twice: name each once")


def test_a_node_whose_gpus_cannot_be_told_is_there_with_its_problem() -> None:
    unknown = node("a", {"nvidia.com/gpu": "1"}, **{"nvidia.com/gpu.product": "GeForce-9999"})
    got = read(unknown, pod("p", {"nvidia.com/gpu": 1}))
    assert "GeForce-9999" in got.nodes[0].problem
    assert got.nodes[0].node.gpus == ()
    assert got.nodes[0].advertised == (("nvidia.com/gpu", 1),)
    assert [each.name for each in inspect(got).nodes] == ["a"]


def test_a_node_that_offers_nonsense_is_there_with_its_problem() -> None:
    for resource in ("tessera.dev/gpu-memory", "nvidia.com/gpu"):
        got = read(node("a", {resource: "x"}), gpunode("a", gpu(0)))
        assert f"status.allocatable[{resource}]" in got.nodes[0].problem


def test_notes_of_labels_are_kept() -> None:
    got = read(node("a", {"cpu": "1"}, **{"nvidia.com/gpu.product": "Tesla-T4"}))
    assert "advertises no GPU" in got.notes[0]


def test_recorded_devices_stay_as_recorded_and_planning_has_no_contradiction() -> None:
    got = read(*GOOD, pod("q", NEED, share(1, 40000)))
    assert [(each.pod.key, each.record, each.shares[0].memory_mib) for each in got.pods] == [
        ("ns/p", Record.RECORDED, 4096),
        ("ns/q", Record.RECORDED, 40000),
    ]
    assert got.notes == ()
    conflict = "44096 MiB of 40960 MiB are allocated; pods: ns/p, ns/q"
    assert got.snapshot.notes[0] == f"GPU 1 of a takes no new pods, as its allocations conflict: {conflict}"
    assert "the devices recorded on pod ns/q are not used" in got.snapshot.notes[1]
    assert not Fleet.of(got.snapshot).memory_left[1, 0]


def test_a_pod_that_cannot_be_read_holds_what_is_recorded() -> None:
    odd = pod("p", NEED, share(1, 4096), annotations={"tessera.dev/unknown": "x"})
    got = only(*GOOD[:2], odd)
    assert (got.record, got.shares, got.node) == (Record.RECORDED, (share(1, 4096),), "a")
    assert got.unread.startswith("metadata.annotations[tessera.dev/unknown]")
    assert got.problem == f"its request cannot be read: {got.unread}"


def test_a_plan_gives_nobody_what_is_recorded_of_a_pod_that_cannot_be_read() -> None:
    odd = pod("x", NEED, share(0, 40000), annotations={"tessera.dev/unknown": "x"})
    got = read(*GOOD, odd, pod("q", {"tessera.dev/gpu-memory": 38}, node=None)).snapshot
    assert [(each.pod.key, each.assignment.shares) for each in got.running if each.pod.key == "ns/x"] == [
        ("ns/x", (share(0, 40000),))
    ]
    assert plan(got).assignments == ()


def test_records_of_pods_that_cannot_be_read_close_a_gpu_like_others() -> None:
    odd = pod("x", NEED, share(1, 40000), annotations={"tessera.dev/unknown": "x"})
    got = read(*GOOD, odd)
    assert any("GPU 1 of a takes no new pods, as its allocations conflict" in note for note in got.snapshot.notes)
    assert bool(Ledger.of(got).impossible_shares)


# Keyed by a sentence: a pod that cannot be read; desired are its node, its phase and words of its problem.
UNREAD: dict[str, tuple[Object, str | None, Phase, str]] = {
    "without anything recorded": (pod("p", {"nvidia.com/gpu": "-1"}), "a", Phase.RUNNING, "cannot be read"),
    "with nonsense recorded": (
        pod("p", {"nvidia.com/gpu": "-1"}, annotations={"tessera.dev/assignment": "{"}),
        "a",
        Phase.RUNNING,
        "a list of shares",
    ),
    "without a node": (pod("p", {"nvidia.com/gpu": "-1"}, node=None), None, Phase.WAITING, "cannot be read"),
    "with a specification that is a list": (pod("p") | {"spec": []}, None, Phase.WAITING, "cannot be read"),
    "on a node that is a number": (pod("p", spec={"nodeName": 5}, node=None), None, Phase.WAITING, "cannot be read"),
}


@pytest.mark.parametrize("sentence", UNREAD)
def test_pods_that_cannot_be_read_are_there_with_their_problem(sentence: str) -> None:
    given_pod, want_node, phase, problem = UNREAD[sentence]
    got = only(*GOOD[:2], given_pod)
    assert (got.node, got.phase, got.shares, got.record) == (want_node, phase, (), Record.NONE)
    assert problem in got.problem


def versioned(each: Object, version: int) -> Object:
    return each | {"metadata": each["metadata"] | {"resourceVersion": str(version)}}


def test_pods_that_did_not_change_are_not_read_again() -> None:
    memory = PodMemory()

    def look(*pods: Object) -> Cluster:
        got = read_cluster(as_fields((*GOOD[:2], *pods)), memory=memory)
        assert got == read(*GOOD[:2], *pods), "memory does not change what is reported"
        return got

    first = versioned(pod("p", NEED, share(1, 4096)), 1)
    odd = versioned(pod("q", {"nvidia.com/gpu": "-1"}), 1)
    before = look(first, odd).pods[0]
    assert look(first, odd).pods[0].pod is before.pod
    moved = versioned(pod("p", NEED, share(0, 4096)), 2)
    assert look(moved, odd).pods[0].shares == (share(0, 4096),)
    assert look(moved).notes == ()
    assert look(first).pods[0].pod is not before.pod, "what was gone for a look is forgotten"
    nameless = versioned(pod("p", NEED, share(1, 4096), metadata={"uid": ""}), 1)
    assert look(nameless).pods[0].pod is not look(nameless).pods[0].pod


def test_a_pod_of_a_strange_version_cannot_be_read() -> None:
    assert "ns/x cannot be read" in read(*GOOD, pod("x", metadata={"resourceVersion": 5})).notes[0]


def test_the_unit_is_that_of_the_nodes_unless_it_is_given() -> None:
    objects = (node(), gpunode("a", gpu(0), unit_mib=1), pod("p", {"aliyun.com/gpu-mem": 4000}, node=None))
    assert read(*objects).snapshot.pending[0].need.requests[0].memory_mib == 4000
    assert read(*objects[:2], pod("p", {"aliyun.com/gpu-mem": 4}, node=None), unit_mib=1024).pods[0].pod.need.requests


def test_where_nodes_differ_the_largest_unit_counts_and_a_note_says_so() -> None:
    nodes = (node(), gpunode("a", gpu(0), unit_mib=1), node("b"), gpunode("b", gpu(0)))
    got = read(*nodes, pod("p", {"aliyun.com/gpu-mem": 9}, node=None))
    assert (got.share_unit_mib, got.snapshot.pending[0].need.requests[0].memory_mib) == (1024, 9 * 1024)
    assert any("in units of 1 MiB and 1024 MiB" in each for each in got.notes)
    assert read(*nodes, unit_mib=1).notes == ()


def test_what_a_node_says_of_itself() -> None:
    silent, sad, odd = node("b"), node("c"), node("d")
    silent["status"] = {}
    sad["status"]["conditions"] = [{"type": "Other", "status": "True"}, {"type": "Ready", "status": "Unknown"}]
    odd["status"] |= {"conditions": "none", "addresses": ["x", {"type": "InternalIP"}]}
    got = read(node(), silent, sad, odd)
    assert [(each.address, each.ready) for each in got.nodes] == [
        ("10.0.0.1", True),
        ("", True),
        ("10.0.0.1", False),
        ("", True),
    ]


def test_the_scheduler_and_what_it_said() -> None:
    conditions: list[Any] = [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}, "x"]
    assert only(pod("p", NEED, node=None, status={"conditions": conditions})).message == "0/3 nodes"
    assert only(pod("p", NEED, node=None)).scheduler == "tessera-scheduler"
    assert only(pod("p", NEED, node=None, spec={"schedulerName": None})).scheduler == "default-scheduler"


WORDS = [
    "name", "labels", "annotations", "containers", "resources", "limits", "nodeName", "allocatable", "gpus", "phase",
    "conditions", "claims", "type", "status", "nvidia.com/gpu", "tessera.dev/assignment",
]  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "a", "ns", "1Gi", "Running", "True"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=8,
)


@given(st.sampled_from(["Node", "Pod", "GPUNode"]), JSON, JSON, JSON)
def test_no_object_stops_the_reading(kind: str, metadata: Any, spec: Any, status: Any) -> None:
    strange = {"kind": kind, "metadata": metadata, "spec": spec, "status": status}
    named = strange | {"metadata": {"name": "z", "namespace": "ns", "annotations": metadata, "labels": metadata}}
    got = read(*GOOD, strange, named)
    assert next(each.pods[0].pod for each in inspect(got).nodes[0].gpus if each.pods) == "ns/p"


def test_a_node_that_is_not_ready_has_its_taint_before_the_control_plane_has_set_it() -> None:
    lost = node("a", {"cpu": "1"})
    lost["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    strange = node("b", {"cpu": "1"})
    strange["status"]["conditions"] = "none"
    taints = {each.node.name: [taint.key for taint in each.node.taints] for each in read(lost, strange).nodes}
    assert taints == {"a": ["node.kubernetes.io/unreachable"], "b": []}


def test_a_pod_waits_then_is_claimed_for_a_node_then_starts_and_runs() -> None:
    claim = Claim(uid="uid-p", pod=PodKey("ns/p"), shares=(share(1, 4096),))
    claimed = gpunode("a", gpu(0), gpu(1), claims=(claim,))
    unbound, bound = pod("p", NEED, node=None), pod("p", NEED, share(1, 4096), phase="Pending")
    assert [
        only(node(), gpunode("a", gpu(0), gpu(1)), unbound).phase,
        only(node(), claimed, unbound).phase,
        only(node(), claimed, bound).phase,
        only(node(), claimed, pod("p", NEED, share(1, 4096))).phase,
    ] == [Phase.WAITING, Phase.CLAIMED, Phase.STARTING, Phase.RUNNING]
