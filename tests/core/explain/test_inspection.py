"""Who holds what: read from objects, shown GPU by GPU, whatever is wrong with some of them."""

from typing import Any

import msgspec
import pytest

from builders.kubeobjects import Object, gpu, gpunode, mig_share, node, place, pod, share
from tessera.api.tessera.cluster.clusters import as_fields, read_cluster
from tessera.core.cluster.cluster import Phase, Record
from tessera.core.cluster.enforcement import Level
from tessera.core.cluster.gpunodestate import Claim, DesiredDevices, Impairment, UnhealthyDevice, Used
from tessera.core.explain.inspection import GpuHealth, GpuInspection, Inspection, NodeInspection, inspect
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.workload.need import PodKey

NEED, MIG = {"tessera.dev/gpu-memory": 4}, {"nvidia.com/mig-1g.5gb": 1}
A100 = "A100-40GB"
LAYOUT = (place(A100, "1g.5gb", 6), place(A100, "2g.10gb", 0))


def inspection(*objects: Object, names: tuple[str, ...] = ()) -> Inspection:
    return inspect(read_cluster(as_fields(objects)), names)


def only(*objects: Object) -> NodeInspection:
    (found,) = inspection(*objects).nodes
    return found


def first(*objects: Object) -> GpuInspection:
    return only(*objects).gpus[0]


def test_a_cut_gpu() -> None:
    got = first(
        node(),
        gpunode("a", gpu(0, layout=LAYOUT), used=(Used(gpu="GPU-a-0", memory_mib=3000),)),
        pod("p", MIG, mig_share(0, "1g.5gb", 6)),
    )
    assert [(each.start, each.size, each.profile, each.state, each.pods) for each in got.slices] == [
        (0, 2, "2g.10gb", "unused", ()),
        (2, 4, "", "free", ()),
        (6, 1, "1g.5gb", "allocated", ("ns/p",)),
        (7, 1, "", "free", ()),
    ]
    assert (got.allocated_mib, got.allocated_percent, got.used_mib) == (4864, 14, 3000)
    assert (got.modes, got.level, got.health, got.auto) == ((Mode.MIG,), Level.HARDWARE, GpuHealth.HEALTHY, True)
    assert got.conflicts == ()


def test_what_is_declared_and_not_in_force_is_noted_once() -> None:
    impaired = (Impairment(kind="Overridden", subject="label x", by="GPUPolicy y", message="label x has no effect"),)
    nodes = [each for name in "ab" for each in (node(name), gpunode(name, gpu(0, node=name), impaired=impaired))]
    assert inspection(*nodes, node("c")).notes == ("a, b: label x has no effect",)
    assert inspection(*nodes, names=("b",)).notes == ("b: label x has no effect",)


def test_an_empty_gpu_is_offered_in_its_modes_and_not_fragmented() -> None:
    got = only(
        node(),
        gpunode("a", gpu(0), gpu(1, sharing=Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", 4),)))),
        pod("w", NEED, node=None),
    )
    assert [each.modes for each in got.gpus] == [gpu(0).sharing.modes, (Mode.TIME_SLICING,)]
    assert [each.level for each in got.gpus] == [None, None]
    assert [(each.free_percent, each.fragmentation_percent) for each in got.gpus] == [(100, 0), (100, None)]
    assert [each.slices for each in got.gpus] == [(), ()]


# What is fixed or managed, and whether inspect calls it `auto`.
CHOOSERS = {
    "managed": (Sharing(), True),
    "managed, narrowed to two modes": (Sharing(modes=(Mode.WHOLE, Mode.MPS)), True),
    "managed, as MIG alone": (Sharing(modes=(Mode.MIG,)), True),
    "fixed as whole": (Sharing(modes=(Mode.WHOLE,)), False),
    "fixed as memory share": (Sharing(modes=(Mode.MEMORY_SHARE,)), False),
    "fixed as MPS by amounts": (Sharing(modes=(Mode.MPS,)), False),
    "a fixed layout": (Sharing(modes=(Mode.MIG,), layout=LAYOUT, allow_repartition=False), False),
}


@pytest.mark.parametrize("sharing", CHOOSERS)
def test_an_idle_gpu_is_auto_only_where_nobody_fixed_its_sharing(sharing: str) -> None:
    declared, auto = CHOOSERS[sharing]
    got = first(node(), gpunode("a", gpu(0, sharing=declared)))
    assert got.auto is auto
    assert auto or got.modes == declared.modes


def test_a_gpu_of_a_node_without_agent_is_not_auto() -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB", "nvidia.com/gpu.count": "1"}
    without = first(node("a", {"nvidia.com/gpu": "1"}, **labels))
    assert (without.auto, without.modes, without.health) == (False, (), GpuHealth.UNKNOWN)


def test_fragmentation_is_what_the_pods_cannot_use_of_what_is_free() -> None:
    waiting = [pod(f"w{number}", {"nvidia.com/mig-3g.20gb": 1}, node=None) for number in range(3)]
    got = first(
        node(),
        gpunode("a", gpu(0)),
        pod("p", MIG, mig_share(0, "1g.5gb", 1)),
        pod("q", MIG, mig_share(0, "1g.5gb", 5)),
        *waiting,
    )
    assert got.free_percent == 75
    assert got.fragmentation_percent == 60  # three of five devices asked for: 3g.20gb starts at 0 and 4


def test_desired_instances_are_drawn_where_nobody_is_in_their_way() -> None:
    desired = (DesiredDevices(gpu="GPU-a-0", instances=(place(A100, "1g.5gb", 0), place(A100, "1g.5gb", 6))),)
    got = first(node(), gpunode("a", gpu(0), desired=desired), pod("p", MIG, mig_share(0, "2g.10gb", 0)))
    assert [(each.start, each.state) for each in got.slices] == [
        (0, "allocated"),
        (2, "free"),
        (6, "desired"),
        (7, "free"),
    ]


def test_how_far_pods_are() -> None:
    claim = Claim(uid="uid-c", pod=PodKey("ns/c"), shares=(share(0, 1024),))
    refused = [{"type": "PodScheduled", "status": "False", "message": "no"}]
    got = inspection(
        node(),
        gpunode("a", gpu(0), claims=(claim,)),
        pod("r", NEED, share(0, 4096)),
        pod("s", NEED, share(0, 4096), phase="Pending"),
        pod("c", {"tessera.dev/gpu-memory": 1}, node=None),
        pod("e", NEED, share(0, 4096), metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}),
        pod("f", NEED, share(0, 4096), phase="Succeeded"),
        pod("w", NEED, node=None, status={"conditions": refused}),
        pod("x", {}, node=None),
    )
    (view,) = got.nodes
    assert [(each.pod, each.phase, each.ending) for each in view.gpus[0].pods] == [
        ("ns/r", Phase.RUNNING, False),
        ("ns/s", Phase.STARTING, False),
        ("ns/c", Phase.CLAIMED, False),
        ("ns/e", Phase.RUNNING, True),
    ]
    assert [(each.pod, each.need, each.scheduler, each.message) for each in got.pending] == [
        ("ns/w", "4 GiB with driver isolation", "tessera-scheduler", "no")
    ]


def test_what_is_unhealthy_is_reported() -> None:
    unhealthy = (
        UnhealthyDevice(device=DeviceId("GPU-a-0"), reason="Xid 79"),
        UnhealthyDevice(device=DeviceId("GPU-a-1", LAYOUT[0]), reason="Xid 43"),
        UnhealthyDevice(device=DeviceId("GPU-a-2")),
    )
    got = only(
        node(),
        gpunode("a", gpu(0), gpu(1, layout=LAYOUT), gpu(2), gpu(3), unhealthy=unhealthy),
        pod("w", NEED, node=None),
    )
    assert [(each.health, each.reasons) for each in got.gpus] == [
        (GpuHealth.UNHEALTHY, ("Xid 79",)),
        (GpuHealth.UNHEALTHY, ("1g.5gb at 6: Xid 43",)),
        (GpuHealth.UNHEALTHY, ("unhealthy",)),
        (GpuHealth.HEALTHY, ()),
    ]
    assert [each.fragmentation_percent for each in got.gpus] == [None, None, None, 0]


def test_memory_in_use_is_the_gpus_or_that_of_its_instances() -> None:
    used = (
        Used(gpu="GPU-a-0", memory_mib=9),
        Used(gpu="GPU-a-0", placement=LAYOUT[0], memory_mib=3),
        Used(gpu="GPU-a-1", placement=LAYOUT[0], memory_mib=3),
        Used(gpu="GPU-a-1", placement=LAYOUT[1], memory_mib=4),
    )
    got = only(node(), gpunode("a", gpu(0), gpu(1), gpu(2), used=used))
    assert [each.used_mib for each in got.gpus] == [9, 7, None]


ENFORCEMENT = (
    '[{"gpu":"GPU-a-0","mode":"mps","level":"driver-mps"},{"gpu":"GPU-a-0","mode":"memory-share","level":"driver-dmem"},'
    '{"gpu":"GPU-a-1","placement":{"start":0,"size":4,"profile":"3g.20gb"},"mode":"mig-mps","level":"driver-mps"}]'
)

# Keyed by a sentence: annotations of the node, the share held; desired is the isolation in force.
LEVELS: dict[str, tuple[str, Any, Level]] = {
    "by mode where no agent says": ("", share(0, 1024, Mode.MPS), Level.DRIVER_MPS),
    "nothing by mode": ("", share(0, 1024), Level.NONE),
    "the driver's limits in force": (ENFORCEMENT, share(0, 1024), Level.DRIVER_DMEM),
    "MPS in force": (ENFORCEMENT, share(0, 1024, Mode.MPS), Level.DRIVER_MPS),
    "MPS that is not in force": (ENFORCEMENT, share(1, 1024, Mode.MPS), Level.NONE),
    "an instance by MPS": (ENFORCEMENT, mig_share(1, "3g.20gb", 0, mode=Mode.MIG_MPS), Level.DRIVER_MPS),
    "another instance by MPS": (ENFORCEMENT, mig_share(1, "3g.20gb", 4, mode=Mode.MIG_MPS), Level.NONE),
    "an instance": (ENFORCEMENT, mig_share(1, "3g.20gb", 4), Level.HARDWARE),
    "an annotation that is no JSON": ("{", share(0, 1024, Mode.MPS), Level.DRIVER_MPS),
}


@pytest.mark.parametrize("sentence", LEVELS)
def test_the_isolation_in_force(sentence: str) -> None:
    text, held, want = LEVELS[sentence]
    machine = node()
    machine["metadata"]["annotations"] = {"tessera.dev/enforcement": text} if text else {}
    got = only(machine, gpunode("a", gpu(0), gpu(1)), pod("p", NEED, held))
    assert got.gpus[held.gpu].level is want


def test_the_weakest_isolation_of_those_on_a_gpu_is_reported() -> None:
    sharing = Sharing(
        modes=(Mode.MIG, Mode.MIG_TIME_SLICING), layout=LAYOUT, allow_repartition=False, replicas=(("2g.10gb", 2),)
    )
    shared = mig_share(0, "2g.10gb", 0, mode=Mode.MIG_TIME_SLICING)
    got = first(
        node(), gpunode("a", gpu(0, sharing=sharing)), pod("p", MIG, mig_share(0, "1g.5gb", 6)), pod("q", NEED, shared)
    )
    assert [each.level for each in got.pods] == [Level.HARDWARE, Level.NONE]
    assert got.level is Level.NONE
    assert got.modes == (Mode.MIG, Mode.MIG_TIME_SLICING)


# Keyed by a sentence: what pods hold of GPU 0 of two; desired are words of the conflicts of the GPU, and of the node.
CONFLICTS: dict[str, tuple[list[Any], list[str], list[str]]] = {
    "nothing wrong": ([share(0, 1024)], [], []),
    "more memory than there is": (
        [share(0, 40960), share(0, 1024)],
        ["41984 MiB of 40960 MiB are allocated; pods: ns/p0, ns/p1"],
        [],
    ),
    "more compute than there is": (
        [share(0, 1024, Mode.MPS, percent=60), share(0, 1024, Mode.MPS, percent=50)],
        ["110 % of the compute is allocated"],
        [],
    ),
    "instances that overlap": (
        [mig_share(0, "3g.20gb", 0), mig_share(0, "2g.10gb", 2)],
        ["share memory slice 2", "ns/p0 is allocated 3g.20gb at 0, which does not exist", "ns/p1 is allocated"],
        [],
    ),
    "one instance twice": (
        [mig_share(0, "1g.5gb", 6), mig_share(0, "1g.5gb", 6)],
        ["2 pods use 1g.5gb (mig), which allows 1"],
        [],
    ),
    "an instance that the model does not have": (
        [msgspec.structs.replace(mig_share(0, "1g.5gb", 6), profile="9g.90gb")],
        ["A100-40GB has no profile 9g.90gb; pods: ns/p0", "does not exist"],
        [],
    ),
    "an instance at no start": (
        [msgspec.structs.replace(mig_share(0, "1g.5gb", 6), start=None)],
        ["1g.5gb does not start at None; pods: ns/p0", "does not exist"],
        [],
    ),
    "a start without a profile": (
        [msgspec.structs.replace(mig_share(0, "1g.5gb", 6), profile=None)],
        ["A100-40GB has no profile None; pods: ns/p0"],
        [],
    ),
    "an instance that does not exist": (
        [mig_share(0, "1g.5gb", 5)],
        ["ns/p0 is allocated 1g.5gb at 5, which does not exist"],
        [],
    ),
    "the whole GPU beside others": (
        [share(0, 40960, Mode.WHOLE), share(0, 1024)],
        ["the whole GPU is allocated, and 1 more of its devices", " MiB are allocated"],
        [],
    ),
    "the whole GPU twice": (
        [share(0, 40960, Mode.WHOLE), share(0, 40960, Mode.WHOLE)],
        ["the whole GPU is allocated, and 1 more of its devices", " MiB are allocated"],
        [],
    ),
    "an instance beside a share": (
        [mig_share(0, "1g.5gb", 6), share(0, 1024)],
        ["shares of different modes on one GPU: memory-share, mig"],
        [],
    ),
    "two kinds of amounts": (
        [share(0, 1024), share(0, 1024, Mode.MPS)],
        ["shares of different modes on one GPU: memory-share, mps"],
        [],
    ),
    "a GPU that is not there": ([share(7, 1024)], [], ["ns/p0 is allocated GPU 7, which the node does not have"]),
}


@pytest.mark.parametrize("sentence", CONFLICTS)
def test_what_cannot_be_is_shown_and_named(sentence: str) -> None:
    held, want, want_node = CONFLICTS[sentence]
    pods = [pod(f"p{number}", NEED, each) for number, each in enumerate(held)]
    waiting = pod("w", NEED, node=None)
    got = only(node(), gpunode("a", gpu(0, layout=(place(A100, "1g.5gb", 6),)), gpu(1)), *pods, waiting)
    assert [words for words, found in zip(want, got.gpus[0].conflicts, strict=True) if words not in found] == []
    assert list(got.conflicts) == want_node
    if want:
        assert len(got.gpus[0].pods) == len(held)
    assert got.gpus[1].fragmentation_percent == 0, "the neighbor is looked at all the same"


def test_instances_that_are_to_be_cut_may_not_exist_yet() -> None:
    assert (
        first(node(), gpunode("a", gpu(0)), pod("p", NEED, mig_share(0, "1g.5gb", 6), phase="Pending")).conflicts == ()
    )


def test_nodes_without_an_agent_are_read_from_labels() -> None:
    labeled = node("a", {"nvidia.com/gpu": "2"}, **{"nvidia.com/gpu.product": "Tesla-T4"})
    got = only(labeled, pod("p", {"nvidia.com/gpu": 1}))
    assert [(each.health, each.model, each.used_mib) for each in got.gpus] == [(GpuHealth.UNKNOWN, "T4", None)] * 2
    assert [(each.pod, each.record) for each in got.gpus[0].pods] == [("ns/p", Record.UNRECORDED)]
    assert (got.reported, got.address, got.ready) == (False, "10.0.0.1", True)


def test_amounts_that_nobody_recorded_lie_on_no_gpu() -> None:
    shared = node(
        "a", {"aliyun.com/gpu-mem": "30"}, **{"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.count": "2"}
    )
    got = only(shared, pod("p", {"aliyun.com/gpu-mem": 5}), pod("q", {"nvidia.com/mig-1g.5gb": 1}))
    assert [each.pods for each in got.gpus] == [(), ()]
    assert [(each.pod, each.memory_mib) for each in got.unplaced] == [("ns/p", 5120), ("ns/q", 0)]
    assert (got.unplaced_mib, got.allocated_mib, got.memory_mib) == (5120, 0, 2 * 15360)


def test_only_nodes_with_gpus_are_shown_unless_they_are_named() -> None:
    objects = (node("plain"), node("b"), gpunode("b", gpu(0, node="b")))
    assert [each.name for each in inspection(*objects).nodes] == ["b"]
    assert [each.name for each in inspection(*objects, names=("plain",)).nodes] == ["plain"]


def test_of_a_namespace_the_nodes_with_its_pods_are_shown_and_those_that_wait() -> None:
    nodes = [each for name in "ab" for each in (node(name), gpunode(name, gpu(0, node=name)))]
    objects = [
        *nodes,
        pod("p", NEED, share(0, 4096)),
        pod("q", NEED, share(0, 4096), node="b", metadata={"namespace": "ns2"}),
        pod("w", NEED, node=None),
        pod("v", NEED, node=None, metadata={"namespace": "ns2"}),
    ]
    cluster = read_cluster(as_fields(objects))
    found = {each: inspect(cluster, namespace=each) for each in ("ns", "ns2", "n", "")}
    assert {name: [each.name for each in one.nodes] for name, one in found.items()} == {
        "ns": ["a"], "ns2": ["b"], "n": [], "": ["a", "b"],
    }  # fmt: skip
    assert {name: {each.pod for each in one.pending} for name, one in found.items()} == {
        "ns": {"ns/w"}, "ns2": {"ns2/v"}, "n": set(), "": {"ns/w", "ns2/v"},
    }  # fmt: skip


def test_nothing_at_all() -> None:
    assert inspection() == Inspection(nodes=())


def test_a_large_cluster_is_looked_at_in_one_go() -> None:
    """Nothing is done once for each pair of nodes, or of pods: a cluster of thousands would take minutes."""
    names = [f"n{number}" for number in range(300)]
    nodes = [each for name in names for each in (node(name), gpunode(name, *(gpu(i, node=name) for i in range(8))))]
    pods = [pod(f"p{number}", NEED, share(number % 8, 4096), node=names[number // 8]) for number in range(2400)]
    got = inspection(*nodes, *pods)
    assert sum(len(each.pods) for view in got.nodes for each in view.gpus) == 2400


@pytest.mark.parametrize(
    ("mib", "want"), [(0, 0), (1, 1), (1024, 1), (1025, 2), (80_900, 79), (81_559, 79), (81_560, 80)]
)
def test_what_fits_on_a_gpu_is_never_more_than_its_units(mib: int, want: int) -> None:
    assert first(node(), gpunode("a", gpu(0, "H100-80GB"))).in_units(mib, 1024) == want
