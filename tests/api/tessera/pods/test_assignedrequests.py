"""What assignments of a node's pods say about shares, container by container."""

from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from builders.kubeobjects import containers, pod
from builders.shares import share
from builders.signed import keys, signed
from tessera.api.tessera.pods.assignedrequests import corrected, read_assigned_requests, unshown
from tessera.api.tessera.pods.assignments import write_shares
from tessera.core.cluster.snapshot import Share
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation
from tessera.core.deviceplugin.allocations.matching import Correction
from tessera.core.gpu.sharing import Mode
from tessera.core.workload.need import DeviceRequest, Form, Need

NEED, GPUSHARE = "tessera.dev/gpu-memory", "aliyun.com/gpu-mem"


mps = partial(share, mode=Mode.MPS)
NAMED = mps(3, 9, resource="nvidia.com/gpu")


def asking(
    limits: dict[str, dict[str, int]], *shares: Share, annotations: dict[str, str] | None = None
) -> dict[str, Any]:
    """Return a Pod object with a container for each name in `limits`."""
    metadata = {"namespace": "default", "uid": "", "creationTimestamp": "2026-01-31T12:00:00Z"}
    more = {"spec": {"containers": containers(limits)}, "annotations": annotations or {}}
    return pod("p", None, *shares, node="n", phase="Pending", metadata=metadata, **more)


def test_the_text_of_a_request_stays_as_it_is() -> None:
    """It is part of what an earlier agent has stored."""
    limits = {"main": {NEED: 6, "tessera.dev/gpu-compute": 30}}
    models = {"tessera.dev/gpu-model": "A100-40GB"}
    found = read_assigned_requests([asking(limits, mps(1, 6144), annotations=models)])
    (only,) = found.requests
    assert only.request_text == (
        '[{"resource":"tessera.dev/gpu-memory","form":"need","count":1,"memory_mib":6144,"compute_percent":30,'
        '"isolation":"driver","container":""},["A100-40GB"]]'
    )


INDEX = {"ALIYUN_COM_GPU_MEM_IDX": "2", "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "77"}
GPUSHARE_ALLOCATION = "scheduler.framework.gpushare.allocation"
ALLOCATION = {GPUSHARE_ALLOCATION: '{"0": {"1": 3, "2": 3}}'}

# sentence: (pod, [(container, resource, units, [(GPU, MiB)], position, bound to the pod)])
DUES: dict[str, tuple[dict[str, Any], list[tuple[str, str, int, list[tuple[int, int]], int, str]]]] = {
    "a need": (asking({"main": {NEED: 6}}, mps(1, 6144)), [("main", NEED, 6, [(1, 6144)], 0, "")]),
    "a need on two GPUs takes the units of one": (
        asking({"main": {NEED: 6, "tessera.dev/gpu-count": 2}}, mps(1, 6144), mps(0, 6144)),
        [("main", NEED, 6, [(1, 6144), (0, 6144)], 0, "")],
    ),
    "two containers": (
        asking({"a": {NEED: 6}, "b": {NEED: 2}}, mps(1, 6144, container="a"), mps(0, 2048, container="b")),
        [("a", NEED, 6, [(1, 6144)], 0, ""), ("b", NEED, 2, [(0, 2048)], 1, "")],
    ),
    "exact devices are the kubelet's to choose": (
        asking({"a": {"nvidia.com/gpu": 1}, "b": {NEED: 2}}, replace(NAMED, container="a"), mps(0, 2048)),
        [("b", NEED, 2, [(0, 2048)], 1, "")],
    ),
    "exact devices that the kubelet has not recorded yet": (
        asking({"a": {"nvidia.com/gpu": 1}, "b": {NEED: 2}}, mps(0, 2048, container="b")),
        [("b", NEED, 2, [(0, 2048)], 0, "")],
    ),
    "resources that are no GPUs have no share": (
        asking({"a": {"rdma/hca": 1}, "b": {NEED: 2}}, mps(0, 2048, container="b")),
        [("b", NEED, 2, [(0, 2048)], 0, "")],
    ),
    "only exact devices": (asking({"a": {"nvidia.com/gpu": 1}}, NAMED), []),
    "gpushare's index": (
        asking({"main": {GPUSHARE: 5}}, annotations=INDEX),
        [("main", GPUSHARE, 5, [(2, 5120)], 0, "")],
    ),
    "gpushare's index for two containers": (
        asking({"a": {GPUSHARE: 5}, "b": {GPUSHARE: 3}}, annotations=INDEX),
        [("a", GPUSHARE, 5, [(2, 5120)], 0, "default/p"), ("b", GPUSHARE, 3, [(2, 3072)], 0, "default/p")],
    ),
    "gpushare's allocation on two GPUs": (
        asking({"main": {GPUSHARE: 6}}, annotations=ALLOCATION),
        [("main", GPUSHARE, 6, [(1, 3072), (2, 3072)], 0, "")],
    ),
    "gpushare's allocation on two GPUs for two containers": (
        asking({"a": {GPUSHARE: 3}, "b": {GPUSHARE: 3}}, annotations=ALLOCATION),
        [(name, GPUSHARE, 3, [(1, 3072), (2, 3072)], 0, "default/p") for name in "ab"],
    ),
    "nothing is assigned": (asking({"main": {NEED: 6}}), []),
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
    plain = asking({"main": {NEED: 6}}, mps(1, 6144))
    assert read_assigned_requests([plain]).requests[0].since_ns == 1_769_860_800 * 10**9
    assert read_assigned_requests([asking({"main": {GPUSHARE: 5}}, annotations=INDEX)]).requests[0].since_ns == 77
    assert read_assigned_requests([asking({"main": {GPUSHARE: 5}}, annotations=INDEX)]).requests[0].created_ns == (
        1_769_860_800 * 10**9
    )
    for text in ("0", "9" * 19):
        hurried = asking({"main": {NEED: 6}}, mps(1, 6144), annotations={"ALIYUN_COM_GPU_MEM_ASSUME_TIME": text})
        assert read_assigned_requests([hurried]).requests[0].since_ns == 1_769_860_800 * 10**9, (
            "only a binding's word counts"
        )
    endless = asking({"main": {GPUSHARE: 5}}, annotations=INDEX | {"ALIYUN_COM_GPU_MEM_ASSUME_TIME": "9" * 5000})
    assert read_assigned_requests([endless]).requests[0].since_ns == 1_769_860_800 * 10**9
    assert not read_assigned_requests([plain]).requests[0].ending
    assert not read_assigned_requests([plain]).requests[0].running
    assert read_assigned_requests([plain | {"status": {"phase": "Running"}}]).requests[0].running
    for policy, ends in (("Always", False), ("OnFailure", True), ("Never", True)):
        pod = plain | {"spec": plain["spec"] | {"restartPolicy": policy}}
        assert read_assigned_requests([pod]).requests[0].ends is ends
    plain["metadata"] |= {"deletionTimestamp": "2026-01-31T12:00:00Z", "creationTimestamp": None}
    assert read_assigned_requests([plain]).requests[0].ending
    assert read_assigned_requests([plain]).requests[0].since_ns == 0
    assert read_assigned_requests([plain | {"status": {"phase": "Failed"}}]).requests == ()


# sentence: (pod, what the note says)
UNUSABLE: dict[str, tuple[dict[str, Any], str]] = {
    "an assignment that is no JSON": (
        asking({"main": {NEED: 6}}, annotations={"tessera.dev/assignment": "{"}),
        "shares in JSON",
    ),
    "fewer shares than devices": (
        asking({"a": {NEED: 6}, "b": {NEED: 6}}, mps(1, 6144)),
        "assignment of pod default/p: it has 1 shares, and 2 devices are requested",
    ),
    "more shares than devices": (
        asking({"a": {NEED: 6}}, mps(1, 6144), mps(1, 6144)),
        "it has 2 shares, and 1 devices are requested",
    ),
    "no shares at all": (
        asking({"main": {GPUSHARE: 6}}, annotations={"tessera.dev/assignment": "[]"}),
        "assignment of pod default/p: it has 0 shares, and 1 devices are requested",
    ),
    "an allocation of less than nothing": (
        asking({"main": {GPUSHARE: 1}}, annotations={GPUSHARE_ALLOCATION: '{"0": {"0": 16, "1": -15}}'}),
        "([...][...]: what is there is not at least 0)",
    ),
    "an allocation of more than there is": (
        asking({"main": {GPUSHARE: 1}}, annotations={GPUSHARE_ALLOCATION: '{"0": {"0": 10000000000000000000000000}}'}),
        "what is there is not at most 1048576",
    ),
    "an allocation on a GPU that is none": (
        asking({"main": {GPUSHARE: 1}}, annotations={GPUSHARE_ALLOCATION: '{"0": {"-1": 1}}'}),
        "a key of [...]: what is there is not a text that matches",
    ),
    "a time that is none": (
        asking({"main": {NEED: 6}}, mps(1, 6144)) | {"metadata": {"name": "p", "creationTimestamp": "soon"}},
        "creationTimestamp: 'soon' is not a time, as 2026-01-31T12:00:00Z",
    ),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_a_pod_that_cannot_be_read_leaves_the_others(case: str) -> None:
    given, want = UNUSABLE[case]
    if case == "a time that is none":
        given["metadata"]["annotations"] = {"tessera.dev/assignment": write_shares((mps(1, 6144),))}
    found = read_assigned_requests([given, asking({"main": {NEED: 1}}, mps(0, 1024))])
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
    "a pod that asks so much that a kubelet counts none": (
        {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1e30"}}}]}},
        False,
    ),
    "a pod that asks thousands": ({"spec": {"containers": [{"resources": {"limits": {NEED: "6k"}}}]}}, True),
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
    running = asking({"main": {NEED: 6}}) | {"status": {"phase": "Running"}}
    assert unshown([running | changes], record, known) == (("default/p",) if want else ())


def test_a_correction_changes_one_container_s_shares() -> None:
    given = asking({"a": {NEED: 6}, "b": {NEED: 2}}, mps(1, 6144, container="a"), mps(0, 2048, container="b"))
    second = read_assigned_requests([given]).requests[1]
    moved = (mps(3, 2048, container="b"),)
    assert corrected(given, Correction(request=second, shares=moved)) == {
        "tessera.dev/assignment": write_shares((mps(1, 6144, container="a"), *moved))
    }


def test_a_correction_of_gpushare_s_annotations_says_it_their_way_too() -> None:
    given = asking({"main": {GPUSHARE: 5}}, annotations=INDEX)
    request = read_assigned_requests([given]).requests[0]
    moved = (share(0, 5120, Mode.MEMORY_SHARE, resource=GPUSHARE),)
    got = corrected(given, Correction(request=request, shares=moved))
    assert got["ALIYUN_COM_GPU_MEM_IDX"] == "0"
    assert got["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "true"
    given["metadata"]["annotations"] |= got
    assert read_assigned_requests([given]).requests[0].shares == moved


# sentence: (what another pod asks and has beside one that asks 6 units and has an amount, whether the two may change)
CHANGES: dict[str, tuple[dict[str, Any], bool]] = {
    "another kind of share for the same ask": (asking({"main": {NEED: 6}}, share(1, 9856, mode=Mode.MIG)), True),
    "another amount for the same ask": (asking({"main": {NEED: 6}}, share(1, 40960, Mode.WHOLE, resource=NEED)), True),
    "another claim to compute": (asking({"main": {NEED: 6, "tessera.dev/gpu-compute": 5}}, mps(1, 6144)), False),
    "another isolation": (
        asking({"main": {NEED: 6}}, mps(1, 6144), annotations={"tessera.dev/isolation": "hardware"}),
        False,
    ),
    "another GPU model": (
        asking({"main": {NEED: 6}}, mps(1, 6144), annotations={"tessera.dev/gpu-model": "T4"}),
        False,
    ),
    "another size": (asking({"main": {NEED: 7}}, mps(1, 7168)), False),
}


@pytest.mark.parametrize("case", CHANGES)
def test_which_pods_may_change_shares(case: str) -> None:
    other, want = CHANGES[case]
    first, second = read_assigned_requests([asking({"main": {NEED: 6}}, mps(0, 6144)), other]).requests
    assert (first.specification == second.specification) is want


def test_init_containers_have_what_their_pod_has_and_sidecars_their_own() -> None:
    each = asking({"main": {NEED: 8}}, mps(0, 8192))
    init = {"name": "init", "resources": {"limits": {NEED: "4"}}}
    sidecar = {"name": "proxy", "restartPolicy": "Always", "resources": {"limits": {"cpu": "1"}}}
    each["spec"]["initContainers"] = [init, sidecar]
    found = {request.key.container: request for request in read_assigned_requests([each]).requests}
    assert {name: (request.units, request.initial) for name, request in found.items()} == {
        "main": (8, False),
        "init": (4, True),
    }
    assert found["init"].shares == found["main"].shares


def limits(name: str, gib: int, gpus: int = 1, *, sidecar: bool = False) -> dict[str, Any]:
    count = {"tessera.dev/gpu-count": str(gpus)} if gpus > 1 else {}
    made = {"name": name, "resources": {"limits": {NEED: str(gib), **count}}}
    return made | ({"restartPolicy": "Always"} if sidecar else {})


GIVEN: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]], tuple[Share, ...], dict[str, list[int]]]] = {
    "not what a sidecar beside it has": (
        [limits("proxy", 30, sidecar=True), limits("init", 30)],
        [{"name": "main"}],
        (share(0, 30720), share(1, 30720)),
        {"proxy": [0], "init": [1]},
    ),
    "what is enough for it": (
        [limits("init", 8)],
        [limits("a", 4), limits("b", 6)],
        (share(0, 4096), share(1, 8192)),
        {"a": [0], "b": [1], "init": [1]},
    ),
    "several GPUs of one container": (
        [limits("init", 8)],
        [limits("main", 4, 2)],
        (share(0, 8192), share(1, 8192)),
        {"main": [0, 1], "init": [0]},
    ),
    "several of its own, where no container has as many": (
        [limits("init", 4, 2)],
        [limits("main", 4)],
        (share(0, 4096), share(0, 4096), share(1, 4096)),
        {"main": [0], "init": [0, 1]},
    ),
}


def test_an_init_container_has_nothing_where_all_that_was_signed_is_a_sidecars() -> None:
    sidecar = DeviceRequest(resource=NEED, form=Form.NEED, memory_mib=4096, container="proxy")
    each = asking(
        {}, annotations={"tessera.dev/assignment": write_shares((share(0, 4096),), Need(requests=(sidecar,)))}
    )
    init = [limits("proxy", 4, sidecar=True), limits("init", 4)]
    each["spec"] |= {"initContainers": init, "containers": [{"name": "main"}]}
    requests = read_assigned_requests([signed(each)], keys=keys()).requests
    assert [request.key.container for request in requests] == ["proxy"]


@pytest.mark.parametrize("case", GIVEN)
def test_an_init_container_has(case: str) -> None:
    init, containers, shares, want = GIVEN[case]
    each = asking({}, *shares)
    each["spec"] |= {"initContainers": init, "containers": containers}
    requests = read_assigned_requests([each]).requests
    assert [request.key.container for request in requests] == [*dict.fromkeys(r.key.container for r in requests)]
    assert {r.key.container: [share.gpu for share in r.shares] for r in requests} == want


def test_pods_of_one_name_in_two_namespaces_exchange_no_single_containers() -> None:
    """Their containers share one share each, so that only whole pods could change places."""
    pods = []
    for namespace in ("honest", "tenant"):
        each = asking({"a": {GPUSHARE: 2}, "b": {GPUSHARE: 2}}, annotations=INDEX)
        pods.append({**each, "metadata": {**each["metadata"], "namespace": namespace}})
    requests = read_assigned_requests(pods).requests
    kinds = {(each.key.namespace, each.specification) for each in requests}
    assert len(requests) == 4
    assert len({specification for _, specification in kinds}) == 2 == len(kinds)


@pytest.mark.parametrize("unit_mib", [1, 1024])
@pytest.mark.parametrize(
    ("init", "main", "memory_mib", "parts"),
    [
        ({}, {"a": 4, "b": 4}, 8192, {"a": 4096, "b": 4096}),
        ({}, {"a": 3000, "b": 1000}, 4000, {"a": 3000, "b": 1000}),
        ({"init": 8}, {"a": 4, "b": 2}, 8192, {"init": 8192, "a": 4096, "b": 2048}),
        ({"init": 2}, {"a": 4, "b": 2}, 6144, {"init": 2048, "a": 4096, "b": 2048}),
    ],
)
def test_containers_divide_what_was_assigned_whatever_the_node_counts_in_by_now(
    init: dict[str, int], main: dict[str, int], memory_mib: int, parts: dict[str, int], unit_mib: int
) -> None:
    request = DeviceRequest(resource=GPUSHARE, form=Form.SHARE, memory_mib=memory_mib)
    given = share(0, memory_mib, resource=GPUSHARE, container="")
    annotations = {"tessera.dev/assignment": write_shares((given,), Need(requests=(request,)))}
    each = asking({name: {GPUSHARE: units} for name, units in main.items()}, annotations=annotations)
    each["spec"]["initContainers"] = containers({name: {GPUSHARE: units} for name, units in init.items()})
    requests = read_assigned_requests([signed(each)], share_unit_mib=unit_mib, keys=keys()).requests
    assert {r.key.container: sum(share.memory_mib for share in r.shares) for r in requests} == parts
    assert {r.key.container: r.units for r in requests} == init | main
