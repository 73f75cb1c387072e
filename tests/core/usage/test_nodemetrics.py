"""What is exposed of a node's GPUs."""

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.usage import GPU, INSTANCES, LARGE, PARTITIONED, SMALL, WHOLE, allocation, instance
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.readings import (
    EngineActivity,
    GpuReading,
    InstanceReading,
    ProcessReading,
    RemappedRows,
)
from tessera.core.usage import nodemetrics
from tessera.core.usage.attribution import ContainerDevice, Owner, attribute_usage
from tessera.core.usage.families import Family
from tessera.core.usage.nodemetrics import NODE_METRICS, node_families, series_bound
from tessera.core.usage.observation import DeviceStatus, GpuCounts, NodeUsage

SMALL_ONE, LARGE_ONE = DeviceId("GPU-1", SMALL), DeviceId("GPU-1", LARGE)
FULL = GpuReading(
    memory_used_mib=700,
    gpu_percent=30,
    memory_percent=10,
    encoder_percent=0,
    decoder_percent=0,
    activity=EngineActivity(graphics_percent=50, sm_percent=25, tensor_percent=12.5, dram_percent=0),
    sm_clock_mhz=1410,
    memory_clock_mhz=1215,
    temperature_c=61,
    power_watts=250.5,
    energy_mj=123456,
    clocks_event_reasons=0x24,
    ecc_corrected=1,
    ecc_uncorrected=0,
    remapped_rows=RemappedRows(corrected=1, uncorrected=2, failed=False),
)


def values(families: tuple[Family, ...], name: str, *labels: str) -> Mapping[tuple[str, ...], float]:
    samples = next((each.samples for each in families if each.metric.name == name), ())
    return {tuple(dict(each.labels).get(label, "") for label in labels): each.value for each in samples}


def usage(reading: GpuReading, *allocations: object, owners: dict[int, Owner] | None = None) -> NodeUsage:
    own = attribute_usage(GPU, reading, allocations, {} if owners is None else owners)  # type: ignore[arg-type]  # allocations
    return NodeUsage(node="n1", gpus=(own,))


def test_a_whole_gpu_of_one_pod_has_dcgm_s_labels_and_the_pod_s() -> None:
    families = node_families(usage(FULL, allocation("a", exclusive=True, allocated_mib=40000)))
    power = next(each for each in families if each.metric.name == "DCGM_FI_DEV_POWER_USAGE")
    assert [dict(each.labels) for each in power.samples] == [
        {
            "gpu": "0",
            "UUID": "GPU-0",
            "pci_bus_id": "00000000:07:00.0",
            "device": "nvidia0",
            "modelName": "NVIDIA A100-SXM4-40GB",
            "Hostname": "n1",
            "hostname": "n1",
            "namespace": "team",
            "pod": "a",
            "container": "main",
            "pod_uid": "uid-a",
        }
    ]
    want = {
        "DCGM_FI_DEV_FB_USED": 700,
        "DCGM_FI_DEV_FB_FREE": GPU.memory_mib - 700,
        "DCGM_FI_DEV_GPU_UTIL": 30,
        "DCGM_FI_DEV_GPU_TEMP": 61,
        "DCGM_FI_DEV_POWER_USAGE": 250.5,
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.5,
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.125,
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": 2,
        "tessera_device_memory_used_bytes": 700 << 20,
        "tessera_container_memory_allocated_bytes": 40000 << 20,
        "tessera_gpu_lost": 0,
    }
    assert {name: dict(values(families, name))[()] for name in want} == want
    throttled = values(families, "tessera_gpu_throttled", "cause")
    assert [cause for (cause,), value in throttled.items() if value] == ["power-cap", "thermal"]
    assert dict(values(families, "tessera_gpu_layout_info", "layout")) == {("off",): 1}


def test_what_is_not_measured_has_no_series_and_an_idle_gpu_no_pod() -> None:
    families = node_families(usage(GpuReading(memory_used_mib=3)))
    names = {each.metric.name for each in families}
    assert not names & {"DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_GPU_UTIL", "tessera_gpu_throttled"}
    assert dict(values(families, "DCGM_FI_DEV_FB_USED", "pod")) == {("",): 3}


def test_pods_of_a_shared_gpu_have_their_own_memory_and_the_rest_is_nobody_s() -> None:
    reading = GpuReading(
        memory_used_mib=500, gpu_percent=70, processes=(ProcessReading(pid=1, memory_mib=300, sm_percent=60),)
    )
    shared = usage(reading, allocation("a"), allocation("b"), owners={1: Owner(uid="uid-a", container="main")})
    families = node_families(shared)
    assert dict(values(families, "DCGM_FI_DEV_FB_USED", "pod")) == {("",): 200, ("a",): 300, ("b",): 0}
    assert dict(values(families, "DCGM_FI_DEV_GPU_UTIL", "pod")) == {("",): 70, ("a",): 60, ("b",): 0}
    assert dict(values(families, "tessera_device_containers", "gpu")) == {("0",): 2}
    unlimited = node_families(usage(GpuReading(), allocation("a", allocated_mib=None), allocation("b")))
    assert dict(values(unlimited, "tessera_container_memory_allocated_bytes", "pod")) == {("b",): 1 << 30}


def test_an_allocation_says_whether_its_device_is_exclusive() -> None:
    name = "tessera_container_memory_allocated_bytes"
    alone = node_families(usage(GpuReading(), allocation("a", exclusive=True)))
    assert dict(values(alone, name, "pod", "exclusive", "part")) == {("a", "true", ""): 1 << 30}
    shared = node_families(usage(GpuReading(), allocation("a"), allocation("b")))
    assert dict(values(shared, name, "pod", "exclusive", "part")) == {
        ("a", "false", "memory"): 1 << 30,
        ("b", "false", "memory"): 1 << 30,
    }
    replica = msgspec.structs.replace(allocation("a"), replica=True)
    sliced = node_families(usage(GpuReading(), replica, replica))
    assert dict(values(sliced, name, "pod", "exclusive", "part")) == {("a", "false", "replica"): 1 << 30}


def test_unknown_memory_has_no_series() -> None:
    facts = msgspec.structs.replace(GPU, memory_mib=0)
    own = attribute_usage(
        facts, GpuReading(memory_used_mib=3), [allocation("a", exclusive=True, allocated_mib=None)], {}
    )
    families = node_families(NodeUsage(node="n1", gpus=(own,)))
    names = {each.metric.name for each in families}
    assert "tessera_device_memory_used_bytes" in names
    unknown = {"device_memory", "gpu_memory", "device_memory_allocated", "container_memory_allocated"}
    assert not names & {"DCGM_FI_DEV_FB_FREE", *(f"tessera_{each}_bytes" for each in unknown)}


def test_the_allocated_memory_of_a_device_is_known_if_that_of_each_container_is() -> None:
    name = "tessera_device_memory_allocated_bytes"
    assert dict(values(node_families(usage(GpuReading())), name)) == {(): 0}
    assert dict(values(node_families(usage(GpuReading(), allocation("a"), allocation("b"))), name)) == {(): 2 << 30}
    part = usage(GpuReading(), allocation("a"), allocation("b", allocated_mib=None))
    assert not values(node_families(part), name)


def test_instances_have_their_profile_and_id_and_the_gpu_its_free_slices() -> None:
    reading = GpuReading(
        temperature_c=50,
        instances=(
            InstanceReading(placement=SMALL, memory_used_mib=10),
            InstanceReading(placement=LARGE, memory_used_mib=900),
        ),
    )
    own = attribute_usage(PARTITIONED, reading, [allocation("a", LARGE_ONE, exclusive=True)], {})
    families = node_families(NodeUsage(node="n1", gpus=(own,)))
    labels = ("GPU_I_PROFILE", "GPU_I_ID", "pod")
    assert dict(values(families, "DCGM_FI_DEV_FB_USED", *labels)) == {
        ("1g.5gb", "7", ""): 10,
        ("3g.20gb", "2", "a"): 900,
    }
    assert dict(values(families, "DCGM_FI_DEV_GPU_TEMP", *labels)) == {("", "", ""): 50}
    assert dict(values(families, "tessera_gpu_free_memory_slices", "gpu")) == {("1",): 4}
    assert dict(values(families, "tessera_gpu_largest_free_memory_slices", "gpu")) == {("1",): 4}
    assert dict(values(families, "tessera_gpu_layout_info", "layout")) == {("1g.5gb@0,3g.20gb@4",): 1}


def test_statuses_and_counts_are_those_of_the_agent() -> None:
    own = attribute_usage(PARTITIONED, GpuReading(), [], {})
    statuses = (
        DeviceStatus(device=DeviceId("GPU-1"), healthy=True),
        DeviceStatus(device=SMALL_ONE, healthy=False, orphaned=True, mode="mig-mps", isolation="driver-mps"),
        DeviceStatus(device=DeviceId("GPU-gone"), healthy=False),
    )
    counts = (GpuCounts(gpu="GPU-1", last_xid=79, xids=(("hardware", 2),), layout_changes=3),)
    families = node_families(NodeUsage(node="n1", gpus=(own,), statuses=statuses, counts=counts, sees_processes=False))
    assert dict(values(families, "tessera_device_healthy", "GPU_I_ID")) == {("",): 1, ("7",): 0}
    assert dict(values(families, "tessera_device_orphaned", "GPU_I_ID")) == {("",): 0, ("7",): 1}
    assert dict(values(families, "tessera_device_sharing_info", "GPU_I_ID", "mode", "isolation")) == {
        ("7", "mig-mps", "driver-mps"): 1
    }
    assert dict(values(families, "tessera_gpu_xid_errors_total", "class")) == {
        ("application",): 0,
        ("hardware",): 2,
        ("other",): 0,
    }
    assert dict(values(families, "DCGM_FI_DEV_XID_ERRORS")) == {(): 79}
    assert dict(values(families, "tessera_gpu_layout_changes_total")) == {(): 3}
    assert dict(values(families, "tessera_exporter_process_attribution", "hostname")) == {("n1",): 0}


def test_counts_of_memory_errors_go_on_when_the_pod_has_ended() -> None:
    """A double-bit error ends its pod: in a series of the pod it would be the first value, which is no increase."""
    total = "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"
    during = node_families(usage(FULL, allocation("a", exclusive=True, allocated_mib=40000)))
    after = node_families(usage(msgspec.structs.replace(FULL, ecc_uncorrected=1)))
    assert dict(values(during, total, "UUID", "pod")) == {("GPU-0", ""): 0}
    assert dict(values(after, total, "UUID", "pod")) == {("GPU-0", ""): 1}
    energy = dict(values(during, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "UUID", "pod_uid"))
    assert energy == {("GPU-0", ""): FULL.energy_mj}, "with a pod's labels that of short jobs would be lost"


def test_the_memory_of_a_gpu_is_that_of_the_whole_whatever_its_instances_take() -> None:
    uses = (attribute_usage(GPU, GpuReading(), [], {}), attribute_usage(PARTITIONED, GpuReading(), [], {}))
    families = node_families(NodeUsage(node="n1", gpus=uses))
    whole = GPU.memory_mib << 20
    assert dict(values(families, "tessera_gpu_memory_bytes", "UUID")) == {("GPU-0",): whole, ("GPU-1",): whole}


def test_each_metric_is_counted_in_the_bound_of_series() -> None:
    counted = {*nodemetrics._OF_GPU, *nodemetrics._OF_DEVICE, *nodemetrics._OF_CONTAINER, *nodemetrics._OF_NODE}
    by_label = {each for each in NODE_METRICS if each.labels in {("cause",), ("class",), ("mode", "isolation")}}
    assert counted.isdisjoint(by_label)
    assert counted | by_label == {*NODE_METRICS}


def test_the_page_about_metrics_says_the_bound_of_series() -> None:
    node = series_bound(0, 0, 0)
    device, container = series_bound(0, 1, 0) - node, series_bound(0, 0, 1) - node
    gpu = series_bound(1, 0, 0) - node - device
    said = (
        f"At the most {gpu} for a GPU, {device} for a device (a MIG instance, or a GPU without MIG) and {container} for"
    )
    assert said in " ".join((Path(__file__).parents[3] / "docs/metrics.md").read_text().split())


def test_a_gpu_that_the_driver_never_showed_is_lost_and_nothing_else_is_said_of_it() -> None:
    families = node_families(NodeUsage(node="n1", unseen=(3,)))
    labels = (("gpu", "3"), ("Hostname", "n1"), ("hostname", "n1"))
    found = {each.metric.name: [(sample.labels, sample.value) for sample in each.samples] for each in families}
    assert found.pop("tessera_gpu_lost") == [(labels, 1)]
    assert found.pop("tessera_device_healthy") == [(labels, 0)]
    assert found.keys() == {"tessera_exporter_containers_left_out", "tessera_exporter_process_attribution"}


def test_a_lost_gpu_says_so_and_has_no_measurements() -> None:
    gone = msgspec.structs.replace(GPU, lost=True)
    statuses = (
        DeviceStatus(device=WHOLE, healthy=False),
        DeviceStatus(device=WHOLE, mode="mps", isolation="driver-mps"),
    )
    own = attribute_usage(gone, GpuReading(), [allocation("a")], {})
    families = node_families(NodeUsage(node="n1", gpus=(own,), statuses=statuses))
    assert dict(values(families, "tessera_gpu_lost")) == {(): 1}
    assert dict(values(families, "tessera_device_healthy")) == {(): 0}
    known = {"lost", "memory_bytes", "layout_info", "xid_errors_total", "layout_changes_total"}
    on_device = {"memory_bytes", "memory_allocated_bytes", "containers", "healthy", "orphaned", "sharing_info"}
    assert {each.metric.name for each in families} - {
        "tessera_exporter_containers_left_out",
        "tessera_exporter_process_attribution",
    } == {
        "DCGM_FI_DEV_XID_ERRORS",
        "tessera_container_memory_allocated_bytes",
        *(f"tessera_gpu_{each}" for each in known),
        *(f"tessera_device_{each}" for each in on_device),
    }


def test_too_many_containers_are_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodemetrics, "_MOST_CONTAINERS", 2)
    reading = GpuReading(memory_used_mib=900, processes=())
    families = node_families(usage(reading, *(allocation(name, allocated_mib=1024) for name in "abc")))
    assert dict(values(families, "DCGM_FI_DEV_FB_USED", "pod")) == {("a",): 0, ("b",): 0, ("",): 900}
    assert dict(values(families, "tessera_exporter_containers_left_out", "hostname")) == {("n1",): 1}
    assert dict(values(families, "tessera_device_containers")) == {(): 3}
    assert dict(values(families, "tessera_device_memory_allocated_bytes")) == {(): 3 << 30}


def test_a_device_whose_container_is_left_out_is_allocated_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory in use is nobody's in no series, and measurements of it have no pod."""
    monkeypatch.setattr(nodemetrics, "_MOST_CONTAINERS", 1)
    allocations = [
        allocation("a", SMALL_ONE, exclusive=True),
        allocation("b", LARGE_ONE, exclusive=True, allocated_mib=2048),
    ]
    parts = tuple(InstanceReading(placement=each.placement, memory_used_mib=500) for each in INSTANCES)
    first = attribute_usage(PARTITIONED, GpuReading(instances=parts), allocations, {})
    whole = msgspec.structs.replace(GPU, uuid="GPU-9", index=9)
    last = attribute_usage(whole, FULL, [allocation("c", DeviceId("GPU-9"), exclusive=True)], {})
    families = node_families(NodeUsage(node="n1", gpus=(first, last)))
    assert dict(values(families, "DCGM_FI_DEV_FB_USED", "pod")) == {("a",): 500}
    assert set(values(families, "DCGM_FI_DEV_POWER_USAGE", "gpu", "pod")) == {("9", "")}
    assert set(values(families, "DCGM_FI_DEV_FB_FREE", "gpu", "pod")) == {("1", "a"), ("1", ""), ("9", "")}
    assert set(values(families, "tessera_device_containers", "gpu", "GPU_I_PROFILE").values()) == {1}
    assert set(values(families, "tessera_container_memory_allocated_bytes", "pod")) <= {("a",)}
    assert dict(values(families, "tessera_exporter_containers_left_out", "hostname")) == {("n1",): 2}


def test_two_instances_of_one_id_are_one_series() -> None:
    twin = msgspec.structs.replace(PARTITIONED, instances=(INSTANCES[0], msgspec.structs.replace(INSTANCES[0])))
    families = node_families(NodeUsage(node="n1", gpus=(attribute_usage(twin, GpuReading(), [], {}),)))
    memory = next(each for each in families if each.metric.name == "tessera_device_memory_bytes")
    assert len(memory.samples) == 1


ANYTHING = st.one_of(
    st.none(), st.integers(-(2**64), 2**65), st.floats(allow_nan=True, allow_infinity=True), st.just(2**64 - 1)
)
READINGS = st.builds(
    GpuReading,
    **{
        name: ANYTHING
        for name in GpuReading.__struct_fields__
        if name not in {"activity", "remapped_rows", "instances", "processes"}
    },
    activity=st.one_of(st.none(), st.builds(EngineActivity, sm_percent=ANYTHING, graphics_percent=ANYTHING)),
    instances=st.lists(
        st.builds(InstanceReading, placement=st.sampled_from([SMALL, LARGE]), memory_used_mib=ANYTHING)
    ).map(tuple),
    processes=st.lists(
        st.builds(
            ProcessReading,
            pid=st.integers(-2, 9),
            memory_mib=ANYTHING,
            sm_percent=ANYTHING,
            gpu_instance=st.sampled_from([None, 2, 7, 99]),
        )
    ).map(tuple),
)


@settings(max_examples=60)
@given(
    READINGS,
    st.booleans(),
    st.lists(st.sampled_from([allocation(n, d) for n in "ab" for d in (WHOLE, SMALL_ONE, LARGE_ONE)])),
    st.one_of(st.none(), st.dictionaries(st.integers(1, 9), st.just(Owner(uid="uid-a", container="main")))),
)
def test_whatever_a_driver_says_values_are_possible_series_unique_and_bounded(
    reading: GpuReading, partitioned: bool, allocations: list[object], owners: dict[int, Owner] | None
) -> None:
    facts = PARTITIONED if partitioned else GPU
    own = attribute_usage(facts, reading, allocations, owners)  # type: ignore[arg-type]  # they are allocations
    statuses = tuple(DeviceStatus(device=each.device, mode="whole") for each in own.devices)
    families = node_families(NodeUsage(node="n1", gpus=(own,), statuses=statuses))
    samples = [each for family in families for each in family.samples]
    assert all(0 <= each.value < 2**63 for each in samples)
    for family in families:
        assert family.metric in NODE_METRICS
        assert len({each.labels for each in family.samples}) == len(family.samples)
    containers = sum(len(each.containers) for each in own.devices)
    assert len(samples) <= series_bound(1, len(facts.instances), containers)
    allocated = {
        each.allocation.pod for device in own.devices for each in device.containers if each.memory_mib is not None
    }
    assert allocated == {pod for (pod,) in values(families, "DCGM_FI_DEV_FB_USED", "pod") if pod}


def test_a_gpu_without_mig_has_no_layout() -> None:
    plain = msgspec.structs.replace(GPU, mig=None)
    families = node_families(NodeUsage(node="n1", gpus=(attribute_usage(plain, GpuReading(), [], {}),)))
    assert not values(families, "tessera_gpu_layout_info")
    assert dict(values(families, "tessera_gpu_lost")) == {(): 0}


DCGM_NODE = (
    ("be839661-c0f5-7452-284b-b875666df60c", "00000000:1B:00.0"),
    ("21c6d9d7-46cd-7e91-99c3-7b6a06a3faea", "00000000:43:00.0"),
    ("5d9cc71f-b438-dc00-707d-c6c12bcfede1", "00000000:52:00.0"),
    ("81d888ca-dd11-328c-45fa-d6807a1afa6a", "00000000:61:00.0"),
    ("c4c7f4f8-af86-6966-c0b2-7c1e40c18347", "00000000:9D:00.0"),
    ("7845680c-0e07-1670-c2bb-9f018cd7864b", "00000000:C3:00.0"),
    ("f70b214f-9fe8-5a4e-0499-0ff9572959ff", "00000000:D1:00.0"),
    ("eb5c9999-ebc3-9a6e-58cc-494befb69b8a", "00000000:DF:00.0"),
)
"""UUIDs and addresses of the eight H100 of DCGM exporter's table for MIG on Kubernetes; GPU 0 has two `1g.10gb`.

Source: NVIDIA dcgm-exporter, `internal/pkg/transformation/kubernetes_mig_test.go`.
"""
DCGM_TABLE = {
    "instance 11 of GPU 0, a pod's": (0, "1g.10gb", "11", 14, 9969),
    "instance 13 of GPU 0": (0, "1g.10gb", "13", 14, 9969),
    **{f"GPU {number}": (number, "", "", 0, 81079) for number in range(1, 8)},
}
"""GPU, profile and id of the instance, FB_USED and FB_FREE in MiB, from the same file."""


def dcgm_node(allocated: str) -> tuple[Family, ...]:
    """Return what is exposed of that node; the pod of the table, or one of many on a shared device, is on `allocated`.

    Args:
        allocated: `11` for that GPU instance of GPU 0, `1` to `7` for a GPU.

    """
    h100 = model("H100-80GB")
    small = tuple(instance(number, Placement(at, 1, "1g.10gb"), 9983) for number, at in ((11, 0), (13, 2)))
    uses = []
    for number, (uuid, address) in enumerate(DCGM_NODE):
        facts = msgspec.structs.replace(
            PARTITIONED if number == 0 else GPU,
            index=number,
            minor=number,
            uuid=f"GPU-{uuid}",
            product="NVIDIA H100 80GB HBM3",
            pci_bus_id=address,
            model=h100,
            memory_total_mib=81559,
            memory_mib=81079,
            instances=small if number == 0 else (),
        )
        parts = tuple(InstanceReading(placement=each.placement, memory_used_mib=14) for each in small)
        reading = GpuReading(instances=parts) if number == 0 else GpuReading(memory_used_mib=0)
        device = DeviceId(facts.uuid, small[0].placement if number == 0 else None)
        holds = (allocated == "11") if number == 0 else allocated == str(number)
        pod = ContainerDevice(namespace="testing", pod="ollama", container="ollama", uid="u", device=device)
        uses.append(attribute_usage(facts, reading, [pod] if holds else [], {}))
    return node_families(NodeUsage(node="localhost", gpus=tuple(uses)))


@pytest.mark.parametrize("allocated", ["11", "1", "7", ""])
@pytest.mark.parametrize("case", DCGM_TABLE)
def test_dcgm_exporter_s_table_for_mig(case: str, allocated: str) -> None:
    """Each row has its values and labels, whoever holds what; the pod's labels are on what it was allocated alone."""
    number, profile, part, used, free = DCGM_TABLE[case]
    uuid, address = DCGM_NODE[number]
    instance_labels = {"GPU_I_PROFILE": profile, "GPU_I_ID": part} if profile else {}
    own = (part or str(number)) == allocated
    pod = {"namespace": "testing", "pod": "ollama", "container": "ollama", "pod_uid": "u"} if own else {}
    want = {
        "gpu": str(number),
        "UUID": f"GPU-{uuid}",
        "pci_bus_id": address,
        "device": f"nvidia{number}",
        "modelName": "NVIDIA H100 80GB HBM3",
        "Hostname": "localhost",
        "hostname": "localhost",
    }
    families = {each.metric.name: each.samples for each in dcgm_node(allocated)}
    for name, value in (("DCGM_FI_DEV_FB_USED", used), ("DCGM_FI_DEV_FB_FREE", free)):
        rows = [(dict(each.labels), each.value) for each in families[name]]
        assert len(rows) == len(DCGM_TABLE)
        assert rows.count((want | instance_labels | pod, value)) == 1
