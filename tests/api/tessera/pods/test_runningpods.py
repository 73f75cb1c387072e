"""A live cluster: running pods with the devices they hold, recorded or not, and pods that wait."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.shares import share, whole
from tessera.api import documents
from tessera.api.tessera.cluster import fleets
from tessera.api.tessera.pods.assignments import write_shares
from tessera.core.cluster.snapshot import Snapshot
from tessera.core.gpu.sharing import Mode
from tessera.core.packing.fit import Fleet
from tessera.errors import InvalidInput

Plain = documents.Plain
A100 = "NVIDIA-A100-SXM4-40GB"


def gpu_node(product: str, resource: str, count: int, name: str = "n", **labels: str) -> Plain:
    found: dict[str, Plain] = {"nvidia.com/gpu.product": product}
    found |= {f"nvidia.com/{key}": value for key, value in labels.items()}
    capacity: Plain = {"cpu": "64", "memory": "256Gi", "pods": "110", resource: str(count)}
    return {"kind": "Node", "metadata": {"name": name, "labels": found}, "status": {"allocatable": capacity}}


def listed(name: str, limits: dict[str, str], node_name: str | None = "n", **more: Plain) -> Plain:
    annotations, created = more.pop("annotations", None), more.pop("created", None)
    metadata: Plain = {"name": name, "namespace": "ns", "annotations": annotations, "creationTimestamp": created}
    container: Plain = {"name": "main", "resources": {"limits": dict(limits)}}
    spec: dict[str, Plain] = {"containers": [container], "nodeName": node_name}
    return {"kind": "Pod", "metadata": metadata, "spec": spec | more, "status": {"phase": "Running"}}


def read(*items: Plain) -> Snapshot:
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(items)}, indent=1)
    return fleets.read(documents.read("cluster.json", text))


def shares_by_pod(snapshot: Snapshot) -> dict[str, list[tuple[int, Mode, int | None]]]:
    """By pod name: GPU, mode and start of each share; the snapshot is consistent."""
    Fleet.of(snapshot)
    return {
        each.pod.key.removeprefix("ns/"): [(share.gpu, share.mode, share.start) for share in each.assignment.shares]
        for each in snapshot.running
    }


GPU = {"nvidia.com/gpu": "1"}
WHOLE, MIG, SHARE = Mode.WHOLE, Mode.MIG, Mode.MEMORY_SHARE


def test_unrecorded_devices_are_those_that_fit_in_order_of_name() -> None:
    got = read(
        gpu_node(A100, "nvidia.com/gpu", 4), listed("b", GPU), listed("a", {"nvidia.com/gpu": "2"}), listed("c", {})
    )
    assert shares_by_pod(got) == {"a": [(0, WHOLE, None), (1, WHOLE, None)], "b": [(2, WHOLE, None)], "c": []}
    assert got.notes == ()


def test_unrecorded_slices() -> None:
    slices = {"nvidia.com/mig-3g.20gb": "1"}
    got = read(gpu_node(A100, "nvidia.com/mig-3g.20gb", 4), *(listed(name, slices) for name in "abc"))
    assert shares_by_pod(got) == {"a": [(0, MIG, 0)], "b": [(0, MIG, 4)], "c": [(1, MIG, 0)]}


def test_cordoned_and_tainted_nodes_keep_their_pods() -> None:
    cordoned = gpu_node(A100, "nvidia.com/gpu", 1)
    assert isinstance(cordoned, dict)
    cordoned["spec"] = {"unschedulable": True, "taints": [{"key": "x", "effect": "NoSchedule"}]}
    assert shares_by_pod(read(cordoned, listed("a", GPU))) == {"a": [(0, WHOLE, None)]}


def test_gpushare_records_the_gpu() -> None:
    cluster = gpu_node("Tesla-T4", "aliyun.com/gpu-mem", 28, **{"gpu.count": "2"})
    share = {"aliyun.com/gpu-mem": "5"}
    got = read(
        cluster,
        listed("a", share),
        listed("b", share, annotations={"ALIYUN_COM_GPU_MEM_IDX": "1"}),
        listed("c", share, annotations={"scheduler.framework.gpushare.allocation": '{"0": {"1": 5}, "1": {"0": 2}}'}),
        listed("d", {}, annotations={"ALIYUN_COM_GPU_MEM_IDX": "1"}),
    )
    assert shares_by_pod(got) == {
        "a": [(0, SHARE, None)],
        "b": [(1, SHARE, None)],
        "c": [(0, SHARE, None), (1, SHARE, None)],
        "d": [],
    }
    assert {share.memory_mib for each in got.running for share in each.assignment.shares} == {5120, 2048}


def test_gpushare_in_mib() -> None:
    cluster = gpu_node("Tesla-T4", "aliyun.com/gpu-mem", 15109)
    got = read(cluster, listed("a", {"aliyun.com/gpu-mem": "8000"}, annotations={"ALIYUN_COM_GPU_MEM_IDX": "0"}))
    assert got.running[0].assignment.shares[0].memory_mib == 8000


def test_tessera_records_the_shares() -> None:
    shares = (share(1, 9856, at="2g.10gb@2", percent=28),)
    annotations: Plain = {"tessera.dev/assignment": write_shares(shares)}
    got = read(
        gpu_node(A100, "nvidia.com/gpu", 2),
        listed("a", {"tessera.dev/gpu-memory": "9"}, annotations=annotations),
        listed("b", GPU),
    )
    assert shares_by_pod(got) == {"a": [(1, MIG, 2)], "b": [(0, WHOLE, None)]}
    assert got.running[0].assignment.shares == shares


def test_a_pod_whose_record_is_unreadable_still_holds_its_devices() -> None:
    cluster = gpu_node("Tesla-T4", "aliyun.com/gpu-mem", 14)
    got = read(cluster, listed("a", {"aliyun.com/gpu-mem": "5"}, annotations={"ALIYUN_COM_GPU_MEM_IDX": "x"}))
    assert shares_by_pod(got) == {"a": [(0, SHARE, None)]}
    assert got.notes[0].startswith("the devices recorded on pod ns/a are not used: cluster.json, document 1, line ")


def record(*shares: dict[str, Plain]) -> Plain:
    whole: dict[str, Plain] = {
        "gpu": 0,
        "mode": "whole",
        "memory_mib": 1,
        "compute_percent": 100,
        "isolation": "hardware",
        "resource": "nvidia.com/gpu",
    }
    return {"tessera.dev/assignment": json.dumps([whole | share for share in shares])}


NOTES: dict[str, tuple[Plain, str]] = {
    "a recorded GPU that is not there": (
        listed("a", GPU, annotations=record({"gpu": 7})),
        "the devices recorded on pod ns/a are not used: pod ns/a on node n: GPU 7: the node does not have it",
    ),
    "a node that is not there": (listed("a", GPU, "m"), "pod ns/a is left out: it runs on node m, which is not among"),
    "a pod that cannot be read": (
        listed("a", GPU, annotations={"tessera.dev/isolation": "x"}),
        "pod ns/a cannot be read, and only its recorded devices count: cluster.json, document 1, line 28: Pod ns/a: ",
    ),
    "more devices than the node shows": (
        listed("a", {"nvidia.com/gpu": "3"}),
        "pod ns/a has devices that node n does not report; they are not counted",
    ),
    "an index that is none": (
        listed("a", {"aliyun.com/gpu-mem": "1"}, annotations={"ALIYUN_COM_GPU_MEM_IDX": "-1"}),
        "ALIYUN_COM_GPU_MEM_IDX: '-1' is not the index of a GPU",
    ),
    "an allocation that is none": (
        listed("a", GPU, annotations={"scheduler.framework.gpushare.allocation": "{"}),
        "gpushare.allocation]: it is not JSON of container index, GPU index and amount (it is not complete JSON)",
    ),
    "an allocation of words": (
        listed("a", GPU, annotations={"scheduler.framework.gpushare.allocation": '{"0": {"x": 1}}'}),
        "gpushare.allocation]: it is not JSON of container index, GPU index and amount (",
    ),
    "an assignment that is none": (
        listed("a", GPU, annotations={"tessera.dev/assignment": "[{}]"}),
        "it is not a version and a list of shares in JSON ([0].gpu: it is missing)",
    ),
    "an assignment nested without end": (
        listed("a", GPU, annotations={"tessera.dev/assignment": '[{"x":' + "[" * 100_000}),
        "(it is nested too deeply)",
    ),
    "an allocation nested without end": (
        listed("a", GPU, annotations={"scheduler.framework.gpushare.allocation": '{"0":' + "[" * 100_000}),
        "gpushare.allocation]: it is not JSON of container index, GPU index and amount (",
    ),
    "an assignment beyond a GPU": (
        listed("a", GPU, annotations=record({"compute_percent": 101})),
        "([0].compute_percent: 101 is not at most 100)",
    ),
}


@pytest.mark.parametrize(("item", "want"), NOTES.values(), ids=NOTES)
def test_what_does_not_agree_is_noted(item: Plain, want: str) -> None:
    got = read(gpu_node(A100, "nvidia.com/gpu", 2), item, listed("z", GPU))
    assert want in got.notes[0]
    assert len(got.notes) == 1
    assert shares_by_pod(got)["z"]


def test_devices_of_other_plugins_are_not_counted_as_gpus() -> None:
    got = read(
        gpu_node(A100, "nvidia.com/gpu", 2), listed("a", GPU | {"rdma/hca": "1"}), listed("b", {"amd.com/gpu": "1"})
    )
    assert shares_by_pod(got) == {"a": [(0, WHOLE, None)], "b": []}
    assert got.notes == ()


def test_pods_that_wait_are_in_order_of_creation() -> None:
    got = read(
        gpu_node(A100, "nvidia.com/gpu", 2),
        listed("late", GPU, None, created="2025-02-01T00:00:00Z", priority=5),
        listed("unknown", GPU, None),
        listed("early", GPU, None, created="2025-01-01T00:00:00Z"),
    )
    assert [(each.key, each.priority) for each in got.pending] == [("ns/early", 0), ("ns/late", 5), ("ns/unknown", 0)]
    assert got.running == ()


def test_finished_pods_hold_nothing() -> None:
    done = listed("a", GPU)
    assert isinstance(done, dict)
    done["status"] = {"phase": "Failed"}
    got = read(gpu_node(A100, "nvidia.com/gpu", 1), done)
    assert (got.running, got.pending) == ((), ())


def test_a_pod_twice_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"Pod ns/a: pod ns/a is there twice: name each pod once"):
        read(gpu_node(A100, "nvidia.com/gpu", 1), listed("a", GPU), listed("a", GPU))


_LIMITS = st.dictionaries(
    st.sampled_from(["nvidia.com/gpu", "nvidia.com/mig-3g.20gb", "aliyun.com/gpu-mem", "tessera.dev/gpu-memory"]),
    st.integers(0, 12).map(str),
    max_size=1,
)
_RECORDS: st.SearchStrategy[Plain] = st.none() | st.builds(
    lambda gpu, mode, percent: record({"gpu": gpu, "mode": mode, "compute_percent": percent}),
    st.integers(-1, 3),
    st.sampled_from([*Mode]),
    st.integers(0, 101),
)


@given(
    st.sampled_from(["nvidia.com/gpu", "nvidia.com/mig-3g.20gb", "aliyun.com/gpu-mem"]),
    st.lists(st.tuples(_LIMITS, _RECORDS), max_size=6),
)
def test_no_device_is_ever_over_granted(resource: str, pods: list[tuple[dict[str, str], Plain]]) -> None:
    items = [listed(f"p{index}", limits, annotations=notes) for index, (limits, notes) in enumerate(pods)]
    got = read(gpu_node(A100, resource, 2), *items)
    assert len(shares_by_pod(got)) + sum("left out" in note for note in got.notes) == len(pods)


@given(
    st.recursive(
        st.text() | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_any_annotation_is_read_or_noted(value: Plain) -> None:
    with contextlib.suppress(InvalidInput):
        for key in ("tessera.dev/assignment", "scheduler.framework.gpushare.allocation", "ALIYUN_COM_GPU_MEM_IDX"):
            read(gpu_node(A100, "nvidia.com/gpu", 1), listed("a", GPU, annotations={key: json.dumps(value)}))


def hami_node() -> Plain:
    listed = [{"id": f"GPU-{index}", "index": index, "devmem": 40960, "health": True} for index in range(2)]
    registered = json.dumps([each | {"type": A100} for each in listed])
    metadata: Plain = {"name": "n", "annotations": {"hami.io/node-nvidia-register": registered}}
    return {"kind": "Node", "metadata": metadata, "status": {"allocatable": {"nvidia.com/gpu": "20"}}}


def test_what_hami_gave_is_held_by_the_uuid_of_the_gpu() -> None:
    own: Plain = {"hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,3000,30:GPU-0,NVIDIA,90000,0:;"}
    got = read(hami_node(), listed("a", {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "3000"}, annotations=own))
    assert shares_by_pod(got) == {"a": [(1, SHARE, None), (0, SHARE, None)]}
    assert [share.memory_mib for share in got.running[0].assignment.shares] == [3000, 40960]
    assert not got.running[0].unrecorded
    assert got.notes == ()


@pytest.mark.parametrize("text", ["GPU-7,NVIDIA,3000,30:;", "GPU-1,NVIDIA:;"])
def test_what_hami_cannot_have_given_is_noted_and_guessed(text: str) -> None:
    own: Plain = {"hami.io/vgpu-devices-allocated": text}
    got = read(hami_node(), listed("a", GPU, annotations=own))
    assert shares_by_pod(got) == {"a": [(0, WHOLE, None)]}
    assert got.running[0].unrecorded
    assert "the devices recorded on pod ns/a are not used: " in got.notes[0]


def test_pods_whose_devices_nobody_recorded_are_marked() -> None:
    recorded: Plain = {"ALIYUN_COM_GPU_MEM_IDX": "1"}
    share: dict[str, str] = {"aliyun.com/gpu-mem": "4"}
    node = gpu_node("Tesla-T4", "aliyun.com/gpu-mem", 30, **{"gpu.count": "2"})
    got = read(node, listed("a", share), listed("b", share, annotations=recorded), listed("c", {"cpu": "1"}))
    assert {each.pod.key: each.unrecorded for each in got.running} == {"ns/a": True, "ns/b": False, "ns/c": False}


def test_a_lost_gpu_is_one_that_no_pod_is_recorded_on() -> None:
    node = gpu_node(A100, "nvidia.com/gpu", 2, **{"gpu.count": "3"})
    held_gpu = whole(2, 40960)
    got = read(node, listed("a", GPU, annotations={"tessera.dev/assignment": write_shares((held_gpu,))}))
    assert [gpu.sharing.modes for gpu in got.nodes[0].gpus][1] == ()
    assert shares_by_pod(got) == {"a": [(2, WHOLE, None)]}


def test_pods_on_a_node_whose_gpus_are_not_known_are_no_news_each() -> None:
    unknown = gpu_node("X9", "nvidia.com/gpu", 2, name="m")
    got = read(gpu_node(A100, "nvidia.com/gpu", 2), unknown, listed("a", GPU, "m"))
    assert got.notes == ()
    assert [bool(node.problem) for node in got.nodes] == [False, True]


def test_a_lost_gpu_of_gpushare_is_closed() -> None:
    node = gpu_node("Tesla-T4", "aliyun.com/gpu-mem", 30, **{"gpu.count": "2"})
    assert isinstance(node, dict)
    status = node["status"]
    assert isinstance(status, dict)
    node["status"] = status | {"allocatable": {"aliyun.com/gpu-mem": "15"}, "capacity": {"aliyun.com/gpu-mem": "30"}}
    got = read(node, listed("a", {"aliyun.com/gpu-mem": "5"}, annotations={"ALIYUN_COM_GPU_MEM_IDX": "1"}))
    assert [(gpu.sharing.modes, gpu.memory_mib) for gpu in got.nodes[0].gpus] == [((), 15360), ((SHARE,), 15360)]
    assert "1 of its 2 GPUs is not offered (15 allocatable of 30)" in got.notes[0]
