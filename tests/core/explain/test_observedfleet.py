"""What the page shows of a cluster: strips, who is on them, what is idle or wrong, and what is recommended."""

from typing import Any

import msgspec
import pytest

from builders.kubeobjects import Object, gpu, gpunode, mig_share, node, place, pod, share
from tessera.api.tessera.cluster.clusters import as_fields, read_cluster
from tessera.core.cluster.gpunodestate import DesiredDevices, UnhealthyDevice, Used
from tessera.core.explain.fleetview import (
    ContentionView,
    FleetChange,
    FleetView,
    GpuView,
    ImageView,
    ModelServerHistory,
    ModelView,
    PendingView,
    PodView,
    ScalePoint,
    WorkloadRecommendation,
    changes,
)
from tessera.core.explain.observedfleet import MeasuredUsage, PageObservation, fleet_view
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.storage.images.warmup import ObservedImage
from tessera.core.storage.models.nodemodels import ObservedModel
from tessera.core.usage.contention import Contention
from tessera.core.usage.rightsizing import Recommendation, Sizing
from tessera.core.workload.need import PodKey

NEED, MIG, WHOLE = {"tessera.dev/gpu-memory": 4}, {"nvidia.com/mig-1g.5gb": 1}, {"nvidia.com/gpu": 1}
A100 = "A100-40GB"


def view_of(*objects: Object, **more: Any) -> FleetView:
    on_nodes = {name: more.pop(name) for name in ("images", "models") if name in more}
    cluster = read_cluster(as_fields(objects))
    return fleet_view(PageObservation(cluster=cluster, measured=MeasuredUsage(**more), **on_nodes))


def only(*objects: Object, **more: Any) -> GpuView:
    (found,) = view_of(*objects, **more).nodes
    (one,) = found.gpus
    return one


def drawn(view: GpuView) -> list[tuple[object, ...]]:
    return [(p.start, p.size, p.label, p.state, p.exists, p.idle, [t.pod for t in p.pods]) for p in view.parts]


def test_instances_that_exist_are_planned_or_used_are_distinguished() -> None:
    layout = (place(A100, "1g.5gb", 6), place(A100, "2g.10gb", 0))
    desired = (DesiredDevices(gpu="GPU-a-0", instances=(place(A100, "1g.5gb", 2),)),)
    got = only(
        node(),
        gpunode("a", gpu(0, layout=layout), desired=desired),
        pod("p", MIG, mig_share(0, "1g.5gb", 6)),
        pod("new", MIG, mig_share(0, "1g.5gb", 4)),
    )
    assert drawn(got) == [
        (0, 2, "2g.10gb", "unused", True, False, []),
        (2, 1, "1g.5gb", "desired", False, False, []),
        (3, 1, "", "free", True, False, []),
        (4, 1, "1g.5gb", "allocated", False, False, ["new"]),
        (5, 1, "", "free", True, False, []),
        (6, 1, "1g.5gb", "allocated", True, False, ["p"]),
        (7, 1, "", "free", True, False, []),
    ]
    assert (got.width, got.mode, got.health, got.allocated_mib) == (8, "mig", "healthy", 2 * 4864)


def test_several_pods_take_turns_on_one_instance() -> None:
    shared = mig_share(0, "1g.5gb", 6, mode=Mode.MIG_TIME_SLICING)
    layout = gpu(0, layout=(place(A100, "1g.5gb", 6),))
    got = only(node(), gpunode("a", layout), pod("p", MIG, shared), pod("q", MIG, shared))
    assert [holder.pod for part in got.parts for holder in part.pods] == ["p", "q"]


def test_amounts_lie_one_after_the_other_with_what_is_free_behind_them() -> None:
    one, two = share(0, 16384, Mode.MPS), share(0, 8192, Mode.MPS)
    got = only(node(), gpunode("a", gpu(0)), pod("p", NEED, one), pod("q", NEED, two))
    assert drawn(got) == [
        (0, 16384, "16 GiB", "allocated", True, False, ["p"]),
        (16384, 8192, "8 GiB", "allocated", True, False, ["q"]),
        (24576, got.memory_mib - 24576, "", "free", True, False, []),
    ]
    assert got.width == got.memory_mib


def test_a_whole_gpu_has_no_part_left() -> None:
    got = only(node(), gpunode("a", gpu(0)), pod("p", WHOLE, share(0, 40000, Mode.WHOLE)))
    assert drawn(got) == [(0, got.memory_mib, "whole", "allocated", True, False, ["p"])]


def test_idle_is_what_is_allocated_and_known_not_to_be_used() -> None:
    whole = (node(), pod("p", WHOLE, share(0, 40000, Mode.WHOLE)))
    two = (node(), pod("p", NEED, share(0, 8192, Mode.MPS)), pod("q", NEED, share(0, 8192, Mode.MPS)))
    one_g = (node(), pod("p", MIG, mig_share(0, "1g.5gb", 6)))
    plain, partitioned = gpu(0), gpu(0, layout=(place(A100, "1g.5gb", 6),))

    def idle(objects: tuple[Object, ...], a_gpu: Any, used: tuple[Used, ...], **active: float) -> list[bool]:
        activity = {("a", PodKey(f"ns/{name}")): percent for name, percent in active.items()}
        got = only(*objects, gpunode("a", a_gpu, used=used), activity=activity)
        return [part.idle for part in got.parts if part.state == "allocated"]

    nothing, some = Used(gpu="GPU-a-0", memory_mib=0), Used(gpu="GPU-a-0", memory_mib=99)
    other = Used(gpu="GPU-other", memory_mib=0)
    assert idle(whole, plain, ()) == [False]
    assert idle(whole, plain, (nothing,)) == [True]
    assert idle(whole, plain, (some, other)) == [False]
    assert idle(whole, plain, (some,), p=4.9) == [True]
    assert idle(whole, plain, (some,), p=5.0) == [False]
    assert idle(whole, plain, (nothing,), p=90.0) == [False]
    assert idle(two, plain, (nothing,), p=0.0) == [True, False]
    in_use = Used(gpu="GPU-a-0", placement=place(A100, "1g.5gb", 6), memory_mib=72)
    assert idle(one_g, partitioned, (in_use,)) == [False]
    for empty_mib in (0, 14):  # as drivers report it of an instance without a process
        assert idle(one_g, partitioned, (msgspec.structs.replace(in_use, memory_mib=empty_mib),)) == [True]


OWNERS = {
    ("ReplicaSet", "vllm-7d4b9c6f58"): "vllm",
    ("ReplicaSet", "gpt-2-7d4b9c6f58"): "gpt-2",
    ("ReplicaSet", "bert-large"): "bert-large",
    ("Job", "train"): "train",
    ("Job", "embed-7d4b9c6f58"): "embed-7d4b9c6f58",
    ("StatefulSet", "web"): "web",
}
"""The workload by kind and name of the owner."""


@pytest.mark.parametrize("owner", OWNERS)
def test_a_pod_s_workload_is_its_owner_s_wherever_it_is_shown(owner: tuple[str, str]) -> None:
    kind, name = owner
    owned = {"ownerReferences": [{"apiVersion": "v1", "kind": kind, "name": name, "uid": "u", "controller": True}]}
    objects = (
        node(),
        gpunode("a", gpu(0)),
        pod("train-0-x2x4b", WHOLE, share(0, 40000, Mode.WHOLE), metadata=owned),
        pod("train-1-x2x4b", NEED, node=None, metadata=owned),
        pod("unplaced", WHOLE, metadata=owned),
    )
    advice = Recommendation(
        node="a", gpu=0, device="whole", namespace="ns", pod="train-0-x2x4b", container="c", verdict=Sizing.UNUSED
    )
    slow = Contention(cause="thermal", caused_by=("ns/train-0-x2x4b/c", "ns/gone/c"))
    got = view_of(*objects, recommendations=(advice,), contention={("a", "GPU-a-0"): (slow,)})
    (only_node,) = got.nodes
    (only_gpu,) = only_node.gpus
    (slowdown,) = only_gpu.contention
    want = OWNERS[owner]
    assert [each.workload for each in only_gpu.parts[0].pods] == [want]
    assert [each.workload for each in only_node.unplaced] == [want]
    assert [each.workload for each in got.pending] == [want]
    assert [each.workload for each in got.recommendations] == [want]
    assert [each.workload for each in slowdown.caused_by] == [want, ""]


def test_a_node_that_claims_the_gpu_of_another_takes_nothing_from_it() -> None:
    liar = gpunode("b", gpu(0))
    liar["status"]["gpus"][0]["uuid"] = "GPU-a-0"
    objects = [node(), node("b"), gpunode("a", gpu(0)), liar]
    objects += [pod(name, WHOLE, share(0, 40000, Mode.WHOLE), node=on) for name, on in (("p", "a"), ("q", "b"))]
    memory_mib = {(name, "GPU-a-0"): {PodKey("ns/p"): 5, PodKey("ns/q"): 7} for name in "ab"}
    assert view_of(*objects, memory_mib=memory_mib).memory_mib == {"GPU-a-0": {"ns/p": 5, "ns/q": 7}}


def test_a_measured_percent_changes_no_node() -> None:
    objects = (node(), pod("p", WHOLE, share(0, 40000, Mode.WHOLE)), gpunode("a", gpu(0)))

    def seen(**active: float) -> FleetView:
        of_pods = {PodKey(f"ns/{name}"): percent for name, percent in active.items()}
        memory_mib = {("a", "GPU-a-0"): {key: 100 * round(percent) for key, percent in of_pods.items()}}
        return view_of(*objects, activity={("a", key): each for key, each in of_pods.items()}, memory_mib=memory_mib)

    before, after = seen(p=50.4, gone=9), seen(p=61.6)
    assert (before.activity, after.activity) == ({"ns/p": 50}, {"ns/p": 62})
    assert after.memory_mib == {"GPU-a-0": {"ns/p": 6200}}
    assert changes(before, seen(p=50.2)) == FleetChange()
    assert changes(before, after) == FleetChange(activity={"ns/p": 62}, memory_mib={"GPU-a-0": {"ns/p": 6200}})
    assert changes(before, seen(p=0.2)).nodes, "it is idle now"


def test_what_is_wrong_is_named_on_its_gpu_and_node() -> None:
    unhealthy = (UnhealthyDevice(device=DeviceId("GPU-a-0"), reason="Xid 79"),)
    found = view_of(
        node(),
        gpunode("a", gpu(0), unhealthy=unhealthy),
        pod("p", WHOLE, share(0, 40960, Mode.WHOLE)),
        pod("q", WHOLE, share(0, 40960, Mode.WHOLE)),
        pod("far", WHOLE, share(7, 40960, Mode.WHOLE)),
    )
    (one,) = found.nodes
    assert one.gpus[0].health == "unhealthy"
    assert one.gpus[0].problems[0] == "Xid 79"
    assert len(one.gpus[0].problems) > 1
    assert one.problem == "ns/far is allocated GPU 7, which the node does not have"


LABELS = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB", "nvidia.com/gpu.count": "1"}


def test_labels_alone_say_less_than_an_agent() -> None:
    (one,) = view_of(node("a", {"nvidia.com/gpu": "1"}, **LABELS)).nodes
    assert (one.gpus[0].health, one.gpus[0].mode) == ("unknown", "")


def test_images_model_servers_and_pods_without_a_known_gpu() -> None:
    images = {"a": (ObservedImage(image="vllm:1", state="Present", bytes=7),)}
    server = ModelServerHistory(namespace="ns", name="llm", points=(ScalePoint(1.0, 2, 1, 3.5),))
    waiting = pod("w", NEED, node=None, status={"conditions": [UNSCHEDULED]})
    lost = pod("lost", {"nvidia.com/gpu": 2}, annotations={})
    found = view_of(node(), gpunode("a", gpu(0)), waiting, lost, images=images, model_servers=(server,))
    (one,) = found.nodes
    assert one.images == (ImageView(image="vllm:1", state="Present", bytes=7),)
    assert found.model_servers == (server,)
    assert [(each.namespace, each.pod) for each in one.unplaced] == [("ns", "lost")]
    assert found.pending == (
        PendingView(namespace="ns", pod="w", need="4 GiB with driver isolation", reason="no room"),
    )
    assert found.namespaces == ("ns",)


# Keyed by a sentence: what a node reports of a model; the state that is shown, and the percent that is fetched.
MODELS: dict[str, tuple[ObservedModel, str, int | None]] = {
    "nothing is there": (ObservedModel(name="m"), "Missing", None),
    "its size is not known yet": (ObservedModel(name="m", state="Fetching"), "Fetching", None),
    "a part is there": (ObservedModel(name="m", state="Fetching", fetched_bytes=3, total_bytes=8), "Fetching", 37),
    "more than its size": (ObservedModel(name="m", state="Fetching", fetched_bytes=9, total_bytes=8), "Fetching", 100),
    "it is there, and a later revision comes": (
        ObservedModel(name="m", state="Fetching", revision="r", fetched_bytes=2, total_bytes=8), "Ready", 25,
    ),
    "it is there, and the last fetch failed": (
        ObservedModel(name="m", state="Failed", revision="r", fetched_bytes=2, total_bytes=8), "Ready", None,
    ),
    "it failed": (ObservedModel(name="m", state="Failed", fetched_bytes=2, total_bytes=8), "Failed", None),
}  # fmt: skip


@pytest.mark.parametrize("case", MODELS)
def test_models_are_ready_as_soon_as_one_revision_is_there(case: str) -> None:
    reported, state, percent = MODELS[case]
    told = msgspec.structs.replace(reported, bytes=7, containers=2)
    (one,) = view_of(node(), gpunode("a", gpu(0)), models={"a": (told,)}).nodes
    assert one.models == (
        ModelView(model="m", state=state, revision=told.revision, bytes=7, containers=2, fetched_percent=percent),
    )


UNSCHEDULED = {"type": "PodScheduled", "status": "False", "message": "no room"}


def test_the_pods_that_slow_down_a_gpu_are_shown_as_on_their_devices() -> None:
    objects = (node(), *(pod(each, NEED, share(0, 8192, Mode.MPS)) for each in "pq"), gpunode("a", gpu(0)))
    found = Contention(cause="thermal", caused_by=("ns/q/one", "ns/gone/c", "ns/q/two"), affected=("ns/p/c",))
    other = Contention(cause="saturated", evenly=("ns/q/one", "ns/gone/c"))
    own = Contention(cause="saturated", evenly=("ns/q/one", "ns/q/two"))
    got = only(
        *objects,
        activity={("a", PodKey("ns/q")): 80.0},
        contention={("a", "GPU-a-0"): (found, other, own), ("a", "GPU-other"): (found,)},
    )
    (_, q) = (each for part in got.parts for each in part.pods)
    gone = PodView(namespace="ns", pod="gone")
    assert got.contention == (
        ContentionView(cause="thermal", caused_by=(q, gone)),
        ContentionView(cause="saturated", evenly=(q, gone)),
        ContentionView(cause="saturated", caused_by=(q,)),
    ), "containers of one pod share with nobody else"


def test_a_node_is_believed_about_its_own_pods_and_gpus_alone() -> None:
    objects = (
        *(each for name in "ab" for each in (node(name), gpunode(name, gpu(0, node=name)))),
        pod("p", WHOLE, share(0, 40000, Mode.WHOLE), node="a"),
        pod("q", WHOLE, share(0, 40000, Mode.WHOLE), node="b"),
    )
    slow = Contention(cause="thermal", scope="node", caused_by=("ns/p/c", "ns/q/c"))
    advice = Recommendation(
        node="b", gpu=0, device="whole", namespace="ns", pod="p", container="c", verdict=Sizing.UNUSED
    )
    got = view_of(
        *objects,
        activity={("b", PodKey("ns/p")): 90.0, ("b", PodKey("ns/q")): 20.0},
        memory_mib={("b", gpu): {PodKey("ns/p"): 9, PodKey("ns/q"): 8} for gpu in ("GPU-a-0", "GPU-b-0")},
        contention={("b", "GPU-a-0"): (slow,), ("b", "GPU-b-0"): (slow,)},
        recommendations=(advice, msgspec.structs.replace(advice, pod="q")),
    )
    first, second = (each.gpus[0] for each in got.nodes)
    assert got.activity == {"ns/q": 20}
    assert got.memory_mib == {"GPU-b-0": {"ns/q": 8}}
    assert first.contention == ()
    assert [[each.pod for each in slowdown.caused_by] for slowdown in second.contention] == [["q"]]
    assert [each.pod for each in got.recommendations] == ["q"]


def test_a_node_fills_the_page_neither_with_words_nor_with_pods_that_nobody_has() -> None:
    """Of pods that ended meanwhile there are few."""
    objects = (node(), gpunode("a", gpu(0)), pod("p", WHOLE, share(0, 40000, Mode.WHOLE)))
    invented = tuple(f"ns/gone-{number}/c" for number in range(25_000))
    words = ("kube-system/Visit evil.example to sign in/c", f"ns/{'g' * 300}/c", "ns//c", "c")
    slow = Contention(cause="thermal", caused_by=(*words, *invented, "ns/p/c"), evenly=(*invented, "ns/p/c"))
    (found,) = only(*objects, contention={("a", "GPU-a-0"): (slow,)}).contention
    for shown in (found.caused_by, found.evenly):
        *gone, own = (each.pod for each in shown)
        assert own == "p"
        assert gone == [f"gone-{number}" for number in range(16)]


def test_what_is_not_settled_is_recommended_for_pods_that_are_there() -> None:
    long = Recommendation(
        node="a", gpu=0, device="whole", namespace="ns", pod="p", container="c", observed_s=900, verdict=Sizing.UNUSED
    )
    others: tuple[dict[str, Any], ...] = ({"verdict": Sizing.UNKNOWN}, {"pod": "gone"}, {"verdict": Sizing.FITS})
    given_all = (*(msgspec.structs.replace(long, **each) for each in others), long)
    mine = pod("p", WHOLE, share(0, 40000, Mode.WHOLE))
    (found,) = view_of(node(), gpunode("a", gpu(0)), mine, recommendations=given_all).recommendations
    assert found == WorkloadRecommendation(**msgspec.structs.asdict(long))


# Laws


def test_sharing_fixed_by_an_administrator_is_a_strip_too() -> None:
    fixed = Sharing(modes=(Mode.TIME_SLICING,), replicas=(("nvidia.com/gpu", 4),))
    got = only(node(), gpunode("a", gpu(0, sharing=fixed)), pod("p", WHOLE, share(0, 10000, Mode.TIME_SLICING)))
    assert [part.state for part in got.parts] == ["allocated", "free"]


def test_a_pending_pod_has_the_nodes_on_which_the_instances_that_it_requests_are_planned() -> None:
    layout = (place(A100, "1g.5gb", 6),)
    desired = (
        DesiredDevices(gpu="GPU-a-0", instances=(*layout, place(A100, "2g.10gb", 0), place(A100, "2g.10gb", 2))),
    )
    pending = (
        pod("two", {"nvidia.com/mig-2g.10gb": 1}, node=None),
        pod("one", MIG, node=None),
        pod("amount", NEED, node=None),
    )
    got = view_of(node(), gpunode("a", gpu(0, layout=layout), desired=desired), *pending)
    assert {each.pod: each.created_on for each in got.pending} == {"two": ("a",), "one": (), "amount": ()}
