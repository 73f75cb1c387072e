"""What assignments of a node's pods say about shares, container by container."""

from typing import Any

import pytest

from tessera.api.tessera.pods.assignedrequests import corrected, read_assigned_requests, unshown
from tessera.api.tessera.pods.assignments import write_shares
from tessera.core.cluster.snapshot import Share
from tessera.core.deviceplugin.kubeletallocations import KubeletAllocation
from tessera.core.deviceplugin.matching import Correction
from tessera.core.gpu.sharing import Mode
from tessera.core.workload.need import Isolation

NEED, GPUSHARE = "tessera.dev/gpu-memory", "aliyun.com/gpu-mem"


def share(gpu: int, memory_mib: int, resource: str = NEED, mode: Mode = Mode.MPS, container: str = "main") -> Share:
    return Share(
        gpu=gpu,
        mode=mode,
        memory_mib=memory_mib,
        compute_percent=0,
        isolation=Isolation.DRIVER,
        resource=resource,
        container=container,
    )


def pod(limits: dict[str, dict[str, int]], *shares: Share, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    """Return a Pod object with a container for each name in `limits`."""
    own = {"tessera.dev/assignment": write_shares(shares)} if shares else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": "default",
            "name": "p",
            "creationTimestamp": "2026-01-31T12:00:00Z",
            "annotations": {**own, **(annotations or {})},
        },
        "spec": {
            "nodeName": "n",
            "containers": [
                {"name": name, "resources": {"limits": {key: str(count) for key, count in each.items()}}}
                for name, each in limits.items()
            ],
        },
        "status": {"phase": "Pending"},
    }


INDEX = {"ALIYUN_COM_GPU_MEM_IDX": "2", "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "77"}
GPUSHARE_ALLOCATION = "scheduler.framework.gpushare.allocation"
ALLOCATION = {GPUSHARE_ALLOCATION: '{"0": {"1": 3, "2": 3}}'}

# sentence: (pod, [(container, resource, units, [(GPU, MiB)], position, bound to the pod)])
DUES: dict[str, tuple[dict[str, Any], list[tuple[str, str, int, list[tuple[int, int]], int, str]]]] = {
    "a need": (pod({"main": {NEED: 6}}, share(1, 6144)), [("main", NEED, 6, [(1, 6144)], 0, "")]),
    "a need on two GPUs takes the units of one": (
        pod({"main": {NEED: 6, "tessera.dev/gpu-count": 2}}, share(1, 6144), share(0, 6144)),
        [("main", NEED, 6, [(1, 6144), (0, 6144)], 0, "")],
    ),
    "two containers": (
        pod({"a": {NEED: 6}, "b": {NEED: 2}}, share(1, 6144, container="a"), share(0, 2048, container="b")),
        [("a", NEED, 6, [(1, 6144)], 0, ""), ("b", NEED, 2, [(0, 2048)], 1, "")],
    ),
    "exact devices are the kubelet's to choose": (
        pod({"a": {"nvidia.com/gpu": 1}, "b": {NEED: 2}}, share(3, 9, "nvidia.com/gpu", container="a"), share(0, 2048)),
        [("b", NEED, 2, [(0, 2048)], 1, "")],
    ),
    "exact devices that the kubelet has not recorded yet": (
        pod({"a": {"nvidia.com/gpu": 1}, "b": {NEED: 2}}, share(0, 2048, container="b")),
        [("b", NEED, 2, [(0, 2048)], 0, "")],
    ),
    "resources that are no GPUs have no share": (
        pod({"a": {"rdma/hca": 1}, "b": {NEED: 2}}, share(0, 2048, container="b")),
        [("b", NEED, 2, [(0, 2048)], 0, "")],
    ),
    "only exact devices": (pod({"a": {"nvidia.com/gpu": 1}}, share(3, 9, "nvidia.com/gpu")), []),
    "gpushare's index": (
        pod({"main": {GPUSHARE: 5}}, annotations=INDEX),
        [("main", GPUSHARE, 5, [(2, 5120)], 0, "")],
    ),
    "gpushare's index for two containers": (
        pod({"a": {GPUSHARE: 5}, "b": {GPUSHARE: 3}}, annotations=INDEX),
        [("a", GPUSHARE, 5, [(2, 5120)], 0, "default/p"), ("b", GPUSHARE, 3, [(2, 3072)], 0, "default/p")],
    ),
    "gpushare's allocation on two GPUs": (
        pod({"main": {GPUSHARE: 6}}, annotations=ALLOCATION),
        [("main", GPUSHARE, 6, [(1, 3072), (2, 3072)], 0, "")],
    ),
    "nothing is assigned": (pod({"main": {NEED: 6}}), []),
}


@pytest.mark.parametrize("case", DUES)
def test_what_is_due(case: str) -> None:
    given, want = DUES[case]
    found = read_assigned_requests([given])
    assert found.notes == ()
    assert [
        (
            each.key.container,
            each.key.resource,
            each.units,
            [(part.gpu, part.memory_mib) for part in each.shares],
            each.at,
            each.bound,
        )
        for each in found.requests
    ] == want


def test_age_and_end() -> None:
    plain = pod({"main": {NEED: 6}}, share(1, 6144))
    assert read_assigned_requests([plain]).requests[0].since_ns == 1_769_860_800 * 10**9
    assert read_assigned_requests([pod({"main": {GPUSHARE: 5}}, annotations=INDEX)]).requests[0].since_ns == 77
    for text in ("0", "9" * 19):
        hurried = pod({"main": {NEED: 6}}, share(1, 6144), annotations={"ALIYUN_COM_GPU_MEM_ASSUME_TIME": text})
        assert read_assigned_requests([hurried]).requests[0].since_ns == 1_769_860_800 * 10**9, (
            "only a binding's word counts"
        )
    endless = pod({"main": {GPUSHARE: 5}}, annotations=INDEX | {"ALIYUN_COM_GPU_MEM_ASSUME_TIME": "9" * 5000})
    assert read_assigned_requests([endless]).requests[0].since_ns == 1_769_860_800 * 10**9
    assert not read_assigned_requests([plain]).requests[0].ending
    assert not read_assigned_requests([plain]).requests[0].running
    assert read_assigned_requests([plain | {"status": {"phase": "Running"}}]).requests[0].running
    plain["metadata"] |= {"deletionTimestamp": "2026-01-31T12:00:00Z", "creationTimestamp": None}
    assert read_assigned_requests([plain]).requests[0].ending
    assert read_assigned_requests([plain]).requests[0].since_ns == 0
    assert read_assigned_requests([plain | {"status": {"phase": "Failed"}}]).requests == ()


# sentence: (pod, what the note says)
UNUSABLE: dict[str, tuple[dict[str, Any], str]] = {
    "an assignment that is no JSON": (
        pod({"main": {NEED: 6}}, annotations={"tessera.dev/assignment": "{"}),
        "shares in JSON",
    ),
    "fewer shares than devices": (
        pod({"a": {NEED: 6}, "b": {NEED: 6}}, share(1, 6144)),
        "an assignment of 1 shares; expected one for each of the 2 devices asked",
    ),
    "more shares than devices": (pod({"a": {NEED: 6}}, share(1, 6144), share(1, 6144)), "of the 1 devices asked"),
    "no shares at all": (
        pod({"main": {GPUSHARE: 6}}, annotations={"tessera.dev/assignment": "[]"}),
        "an assignment of 0 shares",
    ),
    "an allocation of less than nothing": (
        pod({"main": {GPUSHARE: 1}}, annotations={GPUSHARE_ALLOCATION: '{"0": {"0": 16, "1": -15}}'}),
        "Expected `int` >= 0",
    ),
    "an allocation of more than there is": (
        pod({"main": {GPUSHARE: 1}}, annotations={GPUSHARE_ALLOCATION: '{"0": {"0": 10000000000000000000000000}}'}),
        "Expected `int` <= 1048576",
    ),
    "an allocation on a GPU that is none": (
        pod({"main": {GPUSHARE: 1}}, annotations={GPUSHARE_ALLOCATION: '{"0": {"-1": 1}}'}),
        "Expected `str` matching regex",
    ),
    "a time that is none": (
        pod({"main": {NEED: 6}}, share(1, 6144)) | {"metadata": {"name": "p", "creationTimestamp": "soon"}},
        "expected a time",
    ),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_a_pod_that_cannot_be_read_leaves_the_others(case: str) -> None:
    given, want = UNUSABLE[case]
    if case == "a time that is none":
        given["metadata"]["annotations"] = {"tessera.dev/assignment": write_shares((share(1, 6144),))}
    found = read_assigned_requests([given, pod({"main": {NEED: 1}}, share(0, 1024))])
    assert len(found.requests) == 1
    assert len(found.notes) == 1
    assert want in found.notes[0]


# sentence: (changes of a pod that runs with devices, whether the record lacks it)
SHOWN: dict[str, tuple[dict[str, Any], bool]] = {
    "a running pod": ({}, True),
    "a pod that waits": ({"status": {"phase": "Pending"}}, False),
    "a pod without status": ({"status": None}, False),
    "a pod that ends": ({"metadata": {"name": "p", "namespace": "default", "deletionTimestamp": "now"}}, False),
    "a pod without devices": ({"spec": {"containers": [{"name": "a", "resources": {"limits": {"cpu": 1}}}]}}, False),
    "a pod that asks what the kubelet does not know": (
        {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/mig-9g.999gb": "1"}}}]}},
        False,
    ),
    "a pod that asks none": ({"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 0}}}]}}, False),
    "a pod with a MIG instance": (
        {"spec": {"containers": [{"name": "a"}, {"resources": {"limits": {"nvidia.com/mig-1g.5gb": "1"}}}]}},
        True,
    ),
    "a pod without specification": ({"spec": None}, False),
    "the pod in the record": ({"metadata": {"name": "q", "namespace": "default"}}, False),
}


@pytest.mark.parametrize("case", SHOWN)
def test_running_pods_that_the_record_lacks(case: str) -> None:
    changes, want = SHOWN[case]
    record = [
        KubeletAllocation(namespace="default", pod="q", container="a", resource="nvidia.com/gpu", device_ids=("1",))
    ]
    known = {NEED, "nvidia.com/gpu", "nvidia.com/mig-1g.5gb"}
    running = pod({"main": {NEED: 6}}) | {"status": {"phase": "Running"}}
    assert unshown([running | changes], record, known) == (("default/p",) if want else ())


def test_a_correction_changes_one_container_s_shares() -> None:
    given = pod({"a": {NEED: 6}, "b": {NEED: 2}}, share(1, 6144, container="a"), share(0, 2048, container="b"))
    second = read_assigned_requests([given]).requests[1]
    moved = (share(3, 2048, container="b"),)
    assert corrected(given, Correction(request=second, shares=moved)) == {
        "tessera.dev/assignment": write_shares((share(1, 6144, container="a"), *moved))
    }


def test_a_correction_of_gpushare_s_annotations_says_it_their_way_too() -> None:
    given = pod({"main": {GPUSHARE: 5}}, annotations=INDEX)
    request = read_assigned_requests([given]).requests[0]
    moved = (share(0, 5120, GPUSHARE, Mode.MEMORY_SHARE),)
    got = corrected(given, Correction(request=request, shares=moved))
    assert got["ALIYUN_COM_GPU_MEM_IDX"] == "0"
    assert got["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "true"
    given["metadata"]["annotations"] |= got
    assert read_assigned_requests([given]).requests[0].shares == moved


# sentence: (what another pod asks and has beside one that asks 6 units and has an amount, whether the two may change)
CHANGES: dict[str, tuple[dict[str, Any], bool]] = {
    "another kind of share for the same ask": (pod({"main": {NEED: 6}}, share(1, 9856, mode=Mode.MIG)), True),
    "another amount for the same ask": (pod({"main": {NEED: 6}}, share(1, 40960, mode=Mode.WHOLE)), True),
    "another claim to compute": (pod({"main": {NEED: 6, "tessera.dev/gpu-compute": 5}}, share(1, 6144)), False),
    "another isolation": (
        pod({"main": {NEED: 6}}, share(1, 6144), annotations={"tessera.dev/isolation": "hardware"}),
        False,
    ),
    "another GPU model": (pod({"main": {NEED: 6}}, share(1, 6144), annotations={"tessera.dev/gpu-model": "T4"}), False),
    "another size": (pod({"main": {NEED: 7}}, share(1, 7168)), False),
}


@pytest.mark.parametrize("case", CHANGES)
def test_which_pods_may_change_shares(case: str) -> None:
    other, want = CHANGES[case]
    first, second = read_assigned_requests([pod({"main": {NEED: 6}}, share(0, 6144)), other]).requests
    assert (first.specification == second.specification) is want


def test_init_containers_have_what_their_pod_has_and_sidecars_their_own() -> None:
    each = pod({"main": {NEED: 8}}, share(0, 8192))
    init = {"name": "init", "resources": {"limits": {NEED: "4"}}}
    sidecar = {"name": "proxy", "restartPolicy": "Always", "resources": {"limits": {"cpu": "1"}}}
    each["spec"]["initContainers"] = [init, sidecar]
    found = {request.key.container: request for request in read_assigned_requests([each]).requests}
    assert {name: (request.units, request.initial) for name, request in found.items()} == {
        "main": (8, False),
        "init": (4, True),
    }
    assert found["init"].shares == found["main"].shares


def test_pods_of_one_name_in_two_namespaces_exchange_no_single_containers() -> None:
    """Their containers share one share each, so that only whole pods could change places."""
    pods = []
    for namespace in ("honest", "tenant"):
        each = pod({"a": {GPUSHARE: 2}, "b": {GPUSHARE: 2}}, annotations=INDEX)
        pods.append({**each, "metadata": {**each["metadata"], "namespace": namespace}})
    requests = read_assigned_requests(pods).requests
    kinds = {(each.key.namespace, each.specification) for each in requests}
    assert len(requests) == 4
    assert len({specification for _, specification in kinds}) == 2 == len(kinds)
