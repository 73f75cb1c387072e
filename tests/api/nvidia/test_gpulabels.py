"""Labels equal to GPU Feature Discovery's, and what Tessera reads back from them."""

import re
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.gpufacts import instance
from builders.nodefacts import gpu, node_of
from tessera.api import documents
from tessera.api.nvidia.gpulabels import TIMESTAMP, Labeling, expected_labels, gpu_labels, owns, stamped
from tessera.api.tessera.cluster import fleets
from tessera.core.gpu.inventory import GpuFacts, Inventory, MigMode
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import Mode
from tessera.core.node.nodesharing import NodeSharing, SharingEntry, Strategy, effective

COMMON = {
    "gfd.timestamp": "[0-9]{10}",
    "cuda.driver.major": "[0-9]+",
    "cuda.driver.minor": "[0-9]+",
    "cuda.driver.rev": "[0-9]*",
    "cuda.runtime.major": "[0-9]+",
    "cuda.runtime.minor": "[0-9]+",
    "cuda.driver-version.major": "[0-9]+",
    "cuda.driver-version.minor": "[0-9]+",
    "cuda.driver-version.revision": "[0-9]*",
    "cuda.driver-version.full": r"[0-9]+\.[0-9]+(\.[0-9]+)?",
    "cuda.runtime-version.major": "[0-9]+",
    "cuda.runtime-version.minor": "[0-9]+",
    "cuda.runtime-version.full": r"[0-9]+\.[0-9]+",
    "gpu.machine": ".*",
    "gpu.count": "[0-9]+",
    "gpu.replicas": "[0-9]+",
    "gpu.sharing-strategy": "none|mps|time-slicing",
    "gpu.product": "[A-Za-z0-9_.-]+",
    "gpu.memory": "[0-9]+",
    "gpu.family": "[a-z-]+",
    "gpu.mode": "unknown|compute|graphics",
    "mig.capable": "true|false",
    "gpu.compute.major": "[0-9]+",
    "gpu.compute.minor": "[0-9]+",
    "mps.capable": "true|false",
    "vgpu.present": "true|false",
}
OF_INSTANCES = {
    "multiprocessors": "[0-9]+",
    "engines.copy": "[0-9]+",
    "engines.decoder": "[0-9]+",
    "engines.encoder": "[0-9]+",
    "engines.jpeg": "[0-9]+",
    "engines.ofa": "[0-9]+",
    "slices.gi": "[0-9]+",
    "slices.ci": "[0-9]+",
}
SINGLE = COMMON | {"mig.strategy": "single"} | {f"gpu.{key}": pattern for key, pattern in OF_INSTANCES.items()}
MIXED = COMMON | {"mig.strategy": "mixed"}
PER_PROFILE = OF_INSTANCES | {
    "product": "[A-Za-z0-9_.-]+",
    "count": "[0-9]+",
    "replicas": "[0-9]+",
    "sharing-strategy": "none|mps|time-slicing",
    "memory": "[0-9]+",
}
"""What each label set is, as k8s-device-plugin's tests/expected-output*.txt have it; keys without `nvidia.com/`.

`vgpu.present` is set by the program and missing in the files.
"""


def a100(index: int = 0, layout: str | None = None, **more: object) -> GpuFacts:
    known: dict[str, object] = {"product": "NVIDIA A100-SXM4-40GB", "compute_capability": (8, 0)}
    facts = gpu(index, "A100-40GB", layout)
    return msgspec.structs.replace(facts, pci_class="0x030200", **(known | more))


def t4(index: int = 0) -> GpuFacts:
    return gpu(index, "T4", product="Tesla T4", compute_capability=(7, 5), pci_class="0x030200")


def labels(
    inventory: Inventory, strategy: Strategy = "mixed", entries: tuple[SharingEntry, ...] = (), **more: object
) -> dict[str, str]:
    """Return the labels without their prefix."""
    gpus = effective(inventory, NodeSharing(strategy=strategy, entries=entries))
    labeling = msgspec.structs.replace(Labeling(strategy=strategy), **more)
    found = stamped(gpu_labels(inventory, gpus, labeling), {}, now_s=1_790_000_000)
    assert all(key.startswith("nvidia.com/") for key in found)
    return {key.removeprefix("nvidia.com/"): value for key, value in found.items()}


def shared(resource: str, replicas: int, mode: Mode = Mode.TIME_SLICING, rename: str = "") -> tuple[SharingEntry, ...]:
    return (SharingEntry(resource=resource, mode=mode, replicas=replicas, rename=rename),)


def check(found: dict[str, str], patterns: dict[str, str]) -> None:
    assert set(found) == set(patterns)
    for key, pattern in patterns.items():
        assert re.fullmatch(pattern, found[key]), f"{key}={found[key]}"


def test_whole_gpus_have_exactly_the_published_labels() -> None:
    check(labels(node_of(t4(0), t4(1)), "none"), COMMON)


def test_single_has_exactly_the_published_labels() -> None:
    check(labels(node_of(a100(0, "all-1g.5gb"), a100(1, "all-1g.5gb")), "single"), SINGLE)


def test_mixed_has_exactly_the_published_labels() -> None:
    profiles = ("1g.5gb", "2g.10gb", "3g.20gb")
    own = {f"mig-{name}.{key}": pattern for name in profiles for key, pattern in PER_PROFILE.items()}
    check(labels(node_of(a100(0, "all-balanced"))), MIXED | own)


def test_no_gpu_has_no_labels() -> None:
    assert labels(node_of()) == {}


@pytest.mark.parametrize(
    ("case", "inventory", "strategy", "entries", "want"),
    [
        (
            "two T4",
            node_of(t4(0), t4(1)),
            "none",
            (),
            {
                "gpu.product": "Tesla-T4",
                "gpu.count": "2",
                "gpu.memory": "15360",
                "gpu.replicas": "1",
                "gpu.sharing-strategy": "none",
                "gpu.family": "turing",
                "gpu.compute.major": "7",
                "gpu.compute.minor": "5",
                "gpu.mode": "compute",
                "mig.capable": "false",
                "mps.capable": "false",
                "cuda.driver.rev": "",
                "cuda.runtime-version.full": "13.0",
            },
        ),
        (
            "a T4 of fourteen replicas",
            node_of(t4()),
            "mixed",
            shared("nvidia.com/gpu", 14),
            {
                "gpu.product": "Tesla-T4-SHARED",
                "gpu.count": "1",
                "gpu.replicas": "14",
                "gpu.sharing-strategy": "time-slicing",
                "mig.strategy": "mixed",
            },
        ),
        (
            "renamed replicas keep the product's name",
            node_of(t4()),
            "none",
            shared("nvidia.com/gpu", 4, rename="nvidia.com/gpu.shared"),
            {"gpu.product": "Tesla-T4", "gpu.replicas": "4", "gpu.sharing-strategy": "time-slicing"},
        ),
        (
            "MPS",
            node_of(t4()),
            "none",
            shared("nvidia.com/gpu", 4, Mode.MPS),
            {"gpu.product": "Tesla-T4-SHARED", "gpu.sharing-strategy": "mps", "mps.capable": "true"},
        ),
        (
            "single: instances are GPUs",
            node_of(*(a100(index, "all-1g.5gb") for index in range(8))),
            "single",
            (),
            {
                "gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb",
                "gpu.count": "56",
                "gpu.memory": "1024",
                "gpu.replicas": "1",
                "gpu.slices.gi": "1",
                "gpu.slices.ci": "1",
                "mig.capable": "true",
            },
        ),
        (
            "single and shared",
            node_of(a100(0, "all-2g.10gb")),
            "single",
            shared("nvidia.com/gpu", 3),
            {
                "gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-2g.10gb-SHARED",
                "gpu.count": "3",
                "gpu.replicas": "3",
                "gpu.sharing-strategy": "time-slicing",
                "gpu.slices.gi": "2",
            },
        ),
        (
            "single without MIG is as none",
            node_of(t4()),
            "single",
            (),
            {"gpu.product": "Tesla-T4", "gpu.count": "1", "mig.strategy": "single"},
        ),
        (
            "single with GPUs cut and whole is invalid",
            node_of(a100(0, "all-1g.5gb"), a100(1)),
            "single",
            (),
            {"gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-INVALID", "gpu.count": "0", "gpu.replicas": "0"},
        ),
        (
            "single with several profiles is invalid",
            node_of(a100(0, "all-balanced")),
            "single",
            (),
            {"gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-INVALID", "gpu.memory": "0", "gpu.sharing-strategy": ""},
        ),
        (
            "single with a GPU that is cut into nothing is invalid",
            node_of(a100(0, "all-1g.5gb"), a100(1, "all-1g.5gb", instances=())),
            "single",
            (),
            {"gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-INVALID"},
        ),
        (
            "mixed: GPUs that are cut count, and are not shared",
            node_of(a100(0, "all-balanced")),
            "mixed",
            (),
            {
                "gpu.product": "NVIDIA-A100-SXM4-40GB",
                "gpu.count": "1",
                "gpu.replicas": "0",
                "gpu.sharing-strategy": "none",
                "mig-1g.5gb.count": "2",
                "mig-2g.10gb.count": "1",
                "mig-3g.20gb.count": "1",
                "mig-3g.20gb.product": "NVIDIA-A100-SXM4-40GB-MIG-3g.20gb",
                "mig-3g.20gb.replicas": "1",
                "mig-3g.20gb.slices.gi": "3",
            },
        ),
        (
            "mixed: profiles shared",
            node_of(a100(0, "all-balanced")),
            "mixed",
            shared("nvidia.com/mig-1g.5gb", 4),
            {
                "mig-1g.5gb.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED",
                "mig-1g.5gb.replicas": "4",
                "mig-1g.5gb.sharing-strategy": "time-slicing",
                "mig-2g.10gb.product": "NVIDIA-A100-SXM4-40GB-MIG-2g.10gb",
                "mig-2g.10gb.sharing-strategy": "none",
            },
        ),
        (
            "mixed: a whole GPU beside one that is cut may be shared",
            node_of(a100(0, "all-1g.5gb"), a100(1)),
            "mixed",
            shared("nvidia.com/gpu", 2),
            {"gpu.product": "NVIDIA-A100-SXM4-40GB-SHARED", "gpu.count": "2", "gpu.replicas": "2"},
        ),
        (
            "of several models the one with the most GPUs is described",
            node_of(a100(0), t4(1), t4(2)),
            "none",
            (),
            {"gpu.product": "Tesla-T4", "gpu.count": "2", "mig.capable": "true"},
        ),
        (
            "of different numbers of replicas the usual one",
            node_of(t4(0), t4(1), t4(2)),
            "none",
            (SharingEntry(resource="nvidia.com/gpu", mode=Mode.TIME_SLICING, replicas=4, devices=("0", "2")),),
            {"gpu.replicas": "4", "gpu.product": "Tesla-T4-SHARED", "gpu.count": "3"},
        ),
        (
            "a driver that tells little",
            node_of(gpu(0, "T4", product="Tesla T4", memory_total_mib=0)),
            "none",
            (),
            {"gpu.mode": "unknown", "gpu.machine": "unknown"},
        ),
    ],
)
def test_labels_say_what_the_node_offers(
    case: str, inventory: Inventory, strategy: Strategy, entries: tuple[SharingEntry, ...], want: dict[str, str]
) -> None:
    found = labels(inventory, strategy, entries)
    assert {key: found.get(key) for key in want} == want, case


def test_what_the_driver_does_not_tell_is_left_out() -> None:
    found = labels(node_of(gpu(0, "T4", memory_total_mib=0)))
    assert not {"gpu.memory", "gpu.family", "gpu.compute.major"} & set(found)


OURS = {"nvidia.com/gpu.count": "2", "nvidia.com/gpu.product": "T4"}
OTHERS = {"example.com/zone": "a", "nvidia.com/mig.config": "all-1g.5gb"}
# sentence: (labels the node has, time they get in seconds)
STAMPS = {
    "nothing was there": ({}, "200"),
    "the same was there": ({**OURS, TIMESTAMP: "100"}, "100"),
    "the same was there beside others' labels": ({**OTHERS, **OURS, TIMESTAMP: "100"}, "100"),
    "the same was there without a time": (OURS, "200"),
    "a value differs": ({**OURS, "nvidia.com/gpu.count": "1", TIMESTAMP: "100"}, "200"),
    "a label of ours is missing": ({"nvidia.com/gpu.count": "2", TIMESTAMP: "100"}, "200"),
    "a stale label of ours is there": ({**OURS, "nvidia.com/gpu.memory": "9", TIMESTAMP: "100"}, "200"),
}


@pytest.mark.parametrize("case", STAMPS)
def test_the_time_is_that_of_the_last_change(case: str) -> None:
    present, want = STAMPS[case]
    assert stamped(OURS, present, now_s=200) == {**OURS, TIMESTAMP: want}


def test_a_node_without_labels_of_ours_has_no_time_of_their_change() -> None:
    assert stamped({}, {**OURS, TIMESTAMP: "100"}, now_s=200) == {}


def test_attributes_in_a_profiles_name_become_dots() -> None:
    on = MigMode(current=True, pending=True)
    media = instance(Placement(0, 1, "1g.5gb+me"), "MIG-0", 1)
    found = labels(node_of(a100(0, None, mig=on, instances=(media,))))
    assert found["mig-1g.5gb.me.product"] == "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb.me"
    assert found["mig-1g.5gb.me.count"] == "1"


@pytest.mark.parametrize(
    ("capability", "want"),
    [
        ((2, 0), "undefined"),
        ((7, 0), "volta"),
        ((8, 6), "ampere"),
        ((8, 9), "ada-lovelace"),
        ((9, 0), "hopper"),
        ((12, 0), "blackwell"),
    ],
)
def test_the_family_follows_from_the_compute_capability(capability: tuple[int, int], want: str) -> None:
    assert labels(node_of(gpu(0, "T4", compute_capability=capability)))["gpu.family"] == want


LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")


@given(st.text(max_size=90), st.text(max_size=90), st.sampled_from(["single", "mixed", "none"]))
def test_every_value_may_be_a_labels(product: str, machine: str, strategy: Strategy) -> None:
    """Source of the grammar: Kubernetes, Labels and Selectors."""
    cut = a100(0, "all-1g.5gb", product=product)
    for found in (
        labels(node_of(cut), strategy, machine=machine),
        labels(node_of(cut, t4(1)), strategy, machine=machine),
    ):
        for key, value in found.items():
            assert LABEL_VALUE.fullmatch(value), f"{key}={value}"


def test_a_long_product_keeps_what_follows_its_name() -> None:
    name = "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"
    cut = gpu(0, "RTX-PRO-6000-Blackwell-96GB", "all-1g.24gb", product=name)
    value = labels(node_of(cut), "single")["gpu.product"]
    assert len(value) <= 63
    assert value.startswith("NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Workstation")
    assert value.endswith("-MIG-1g.24gb")


EXPECTED: dict[str, tuple[str, str, dict[str, str]]] = {
    "managed": (
        "8xH100-80GB",
        "auto",
        {"gpu.product": "NVIDIA-H100-80GB-HBM3", "gpu.count": "8", "gpu.memory": "81559", "mig.capable": "true"},
    ),
    "without MIG": ("2xT4", "auto", {"gpu.product": "Tesla-T4", "gpu.family": "turing", "mig.capable": "false"}),
    "replicas": ("T4", "{time-slicing: 4}", {"gpu.product": "Tesla-T4-SHARED", "gpu.replicas": "4"}),
    "partitioned, mixed": (
        "2xA100-40GB",
        "{mig: all-balanced}",
        {"mig-1g.5gb.count": "4", "mig-3g.20gb.product": "NVIDIA-A100-SXM4-40GB-MIG-3g.20gb"},
    ),
    "partitioned, single": (
        "2xA100-40GB",
        "{mig: all-1g.5gb, strategy: single}",
        {"gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "gpu.count": "14", "mig.strategy": "single"},
    ),
}


@pytest.mark.parametrize("case", EXPECTED)
def test_a_described_node_has_the_labels_that_discovery_would_set(case: str) -> None:
    gpus, sharing, want = EXPECTED[case]
    text = f"nodes: [{{name: a, gpus: {gpus}, sharing: {sharing}}}]"
    (read,) = fleets.read(documents.read("fleet.yaml", text)).nodes
    got = expected_labels(read.gpus)
    assert {key: got[f"nvidia.com/{key}"] for key in want} == want
    assert got.items() <= dict(read.labels).items()
    assert not [key for key in got if "engines" in key or "cuda" in key or "machine" in key]


def test_a_described_node_without_gpus_has_none() -> None:
    assert expected_labels(()) == {}


def test_labels_are_owned_and_others_are_not() -> None:
    for strategy in ("none", "single", "mixed"):
        for key in gpu_labels(
            node_of(a100(0, "all-1g.5gb")),
            effective(node_of(a100(0, "all-1g.5gb")), NodeSharing(strategy=strategy)),
            Labeling(strategy=strategy),
        ):
            assert owns(key), key
    for key in (
        "nvidia.com/mig.config",
        "nvidia.com/mig.config.state",
        "nvidia.com/device-plugin.config",
        "nvidia.com/gpu.present",
        "nvidia.com/gpu.deploy.dcgm",
        "nvidia.com/gpu.clique",
        "example.com/gpu.count",
        "nvidia.com/gpu",
    ):
        assert not owns(key), key


@pytest.mark.parametrize(
    ("case", "inventory", "strategy", "entries"),
    [
        ("whole GPUs in replicas", node_of(t4(0), t4(1)), "none", shared("nvidia.com/gpu", 14)),
        ("single", node_of(a100(0, "all-1g.5gb"), a100(1, "all-1g.5gb")), "single", ()),
        ("single, shared", node_of(a100(0, "all-3g.20gb")), "single", shared("nvidia.com/gpu", 4)),
        ("mixed, shared", node_of(a100(0, "all-balanced")), "mixed", shared("nvidia.com/mig-1g.5gb", 4, Mode.MPS)),
    ],
)
def test_a_planner_reads_from_the_labels_what_the_node_offers(
    case: str, inventory: Inventory, strategy: Strategy, entries: tuple[SharingEntry, ...]
) -> None:
    gpus = effective(inventory, NodeSharing(strategy=strategy, entries=entries))
    want = Counter[tuple[str, Mode, int]]()
    allocatable = Counter[str]()
    for device in (each for every in gpus for each in every.devices):
        want[device.resource, device.mode, device.clients] += 1
        allocatable[device.resource] += device.clients
    metadata: documents.Plain = {"name": "n", "labels": dict(gpu_labels(inventory, gpus, Labeling(strategy=strategy)))}
    status: documents.Plain = {"allocatable": {name: str(count) for name, count in allocatable.items()}}
    text = documents.write({"kind": "Node", "metadata": metadata, "status": status})
    snapshot = fleets.read(documents.read("node.yaml", text))
    (read,) = snapshot.nodes
    found = Counter((each.resource, each.mode, each.clients) for every in read.gpus for each in every.devices)
    assert found == want, case
    assert snapshot.notes == (), case
