"""What a viewer of some namespaces sees of a page: no hidden name, whatever text it is in."""

import re
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from builders.kubeobjects import Object, gpu, gpunode, node, pod, share
from tessera.api.tessera.cluster.clusters import as_fields, read_cluster
from tessera.api.tessera.page.fleetjson import write_change, write_fleet
from tessera.core.cluster.compatibility import Rule
from tessera.core.cluster.gpunodestate import UnhealthyDevice
from tessera.core.explain.fleetscope import EVERYTHING, Scope, in_scope
from tessera.core.explain.fleetview import (
    ContentionView,
    FleetView,
    GpuPart,
    GpuView,
    ImageView,
    ModelServerHistory,
    NodeView,
    PendingView,
    PodView,
    ScalePoint,
    WorkloadRecommendation,
    changes,
)
from tessera.core.explain.observedfleet import PageObservation, fleet_view
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.sharing import Mode
from tessera.core.packing.firstobstacle import refused
from tessera.core.packing.fit.admission import Refusal
from tessera.core.usage.rightsizing import Sizing

NEED, MIG, WHOLE = {"tessera.dev/gpu-memory": 4}, {"nvidia.com/mig-1g.5gb": 1}, {"nvidia.com/gpu": 1}


A100 = "A100-40GB"


def seen(*objects: Object, **more: Any) -> FleetView:
    return fleet_view(PageObservation(cluster=read_cluster(as_fields(objects)), **more))


def test_who_sees_everything_gets_the_view_itself() -> None:
    view = seen(node(), gpunode("a", gpu(0)))
    assert in_scope(view, EVERYTHING) == view


def test_long_lists_are_cut_to_the_first_that_the_viewer_may_see() -> None:
    """A viewer of a small namespace sees it, however many others come first."""
    names = [f"{space}-{number}" for space, many in (("large", 700), ("small", 2)) for number in range(many)]
    view = FleetView(
        nodes=(),
        pending=tuple(PendingView(namespace=each[:5], pod=each, need="1 GiB") for each in names),
        model_servers=tuple(ModelServerHistory(namespace=each[:5], name=each, points=()) for each in names),
        recommendations=tuple(
            WorkloadRecommendation(
                namespace=each[:5], pod=each, container="c", node="n", gpu=0, device="whole", verdict=Sizing.UNUSED
            )
            for each in names
        ),
    )
    small, every = in_scope(view, Scope(namespaces=frozenset({"small"}))), in_scope(view, EVERYTHING)
    assert [each.name for each in small.model_servers] == ["small-0", "small-1"]
    assert [each.pod for each in small.recommendations] == ["small-0", "small-1"]
    assert [each.pod for each in small.pending] == ["small-0", "small-1"]
    assert [len(each) for each in (every.model_servers, every.recommendations, every.pending)] == [200, 500, 702]
    assert every.recommendations == view.recommendations[:500]


def test_others_are_parts_without_names() -> None:
    theirs = PodView(namespace="theirs", pod="secret", phase="running", isolation="hardware", memory_mib=5)
    mine = msgspec.structs.replace(theirs, namespace="mine", pod="open")
    part = GpuPart(start=0, size=1, label="1g", state="allocated", idle=True, pods=(theirs, mine))
    a_gpu = GpuView(
        index=0, model="A100", memory_mib=9, width=8, mode="mig", health="unhealthy", parts=(part,), used_mib=3,
        contention=(
            ContentionView(cause="thermal", caused_by=(mine, theirs)),
            ContentionView(cause="saturated", evenly=(mine, theirs)),
        ),
        problems=("Xid 79", "theirs/secret and mine/open overlap", "pod gone/x.y-1/main is gone, mine/p/c is not"),
    )  # fmt: skip
    point = ScalePoint(1.0, 1, 1, 1.0)
    view = FleetView(
        nodes=(
            NodeView(
                name="n",
                problem="of theirs/secret.",
                gpus=(a_gpu,),
                unplaced=(theirs,),
                images=(ImageView(image="i", state="s"),),
            ),
        ),
        pending=(
            PendingView(namespace="theirs", pod="w", need="1"),
            PendingView(namespace="mine", pod="w2", need="1", reason="once theirs/secret ends"),
            PendingView(namespace="mine", pod="w3", need="1", reason="no node is large enough"),
        ),
        model_servers=(
            ModelServerHistory(namespace="theirs", name="llm", points=(point,)),
            ModelServerHistory(namespace="mine", name="chat", points=(point,)),
        ),
        recommendations=tuple(
            WorkloadRecommendation(
                node="n", gpu=0, device="1g", namespace=each, pod="p", container="c", verdict=Sizing.UNUSED
            )
            for each in ("theirs", "mine")
        ),
        activity={"theirs/secret": 90, "mine/open": 3},
        memory_mib={"GPU-0": {"theirs/secret": 9, "mine/open": 4}, "GPU-1": {"theirs/secret": 9}},
        namespaces=("mine", "theirs"),
        notes=("theirs/secret cannot be read",),
    )
    got = in_scope(view, Scope(namespaces=frozenset({"mine"})))
    (one,) = got.nodes
    hidden, shown = one.gpus[0].parts[0].pods
    assert (one.gpus[0].parts[0].idle, one.gpus[0].used_mib) == (False, None)
    assert hidden == PodView(phase="running", isolation="hardware", memory_mib=5)
    assert shown == mine
    caused, even = one.gpus[0].contention
    assert (caused.caused_by, even.evenly) == ((mine, hidden), (mine, hidden))
    assert one.gpus[0].problems == (
        "Xid 79",
        "(another namespace) and mine/open overlap",
        "pod (another namespace) is gone, mine/p/c is not",
    )
    assert (one.problem, one.images, one.unplaced) == ("of (another namespace).", (), (hidden,))
    assert [(each.pod, each.reason) for each in got.pending] == [
        ("w2", "once (another namespace) ends"),
        ("w3", "no node is large enough"),
    ]
    assert got.pending_elsewhere == 1
    assert [each.name for each in got.model_servers] == ["chat"]
    assert [each.namespace for each in got.recommendations] == ["mine"]
    assert got.activity == {"mine/open": 3}
    assert got.memory_mib == {"GPU-0": {"mine/open": 4}}
    assert (got.namespaces, got.partial, got.notes) == (("mine",), True, ())


def test_what_slows_a_gpu_is_shown_to_those_with_a_pod_on_it() -> None:
    def view(*namespaces: str) -> FleetView:
        parts = tuple(
            GpuPart(start=start, size=1, state="allocated", pods=(PodView(namespace=each, pod="p"),))
            for start, each in enumerate(namespaces)
        )
        slow = ContentionView(cause="saturated", caused_by=(PodView(namespace="theirs", pod="p"),))
        a_gpu = GpuView(
            index=0, model="T4", memory_mib=9, width=2, mode="", health="", parts=parts, contention=(slow,),
            throttled=("power-cap",),
        )  # fmt: skip
        return FleetView(nodes=(NodeView(name="n", gpus=(a_gpu,)),))

    mine = Scope(namespaces=frozenset({"mine"}))
    for hidden in (view("theirs", "theirs"), view()):
        (a_gpu,) = in_scope(hidden, mine).nodes[0].gpus
        assert (a_gpu.contention, a_gpu.throttled) == ((), ())
    (a_gpu,) = in_scope(view("mine", "theirs"), mine).nodes[0].gpus
    assert a_gpu.contention == (ContentionView(cause="saturated", caused_by=(PodView(),)),)
    assert a_gpu.throttled == ("power-cap",)


HIDDEN = st.from_regex(r"zq[a-z0-9]{1,4}([-.][a-z0-9]{1,3})?", fullmatch=True)


NAMESPACE = st.from_regex(r"zq[a-z0-9]{1,4}(-[a-z0-9]{1,3})?", fullmatch=True)


TEXTS = (
    "when {0}/{1} on n ends, this pod gets 20 GiB of GPU 1",
    "on n, {0}/{1}, {0}/{1} and 3 more would have to move",
    "on n, these would have to move: {0}/{1} (its priority 5 is above 0)",
    "4096 MiB of 1024 MiB are allocated; pods: mine/p, {0}/{1}",
    "({0}/{1})",
    '"{0}/{1}/main"',
    "{0}/{1} is allocated GPU 9, which the node does not have",
    "is held by {0}/{1}.",
    "the pod {0}/{1}: it has ended",
)


@st.composite
def fleets(draw: st.DrawFn) -> tuple[FleetView, set[str]]:
    """Return a view of which a viewer sees the namespace `mine`, and the names that must not be seen."""
    hidden = [(draw(NAMESPACE), draw(HIDDEN)) for _ in range(draw(st.integers(1, 4)))]

    def text() -> str:
        return draw(st.sampled_from(TEXTS)).format(*draw(st.sampled_from(hidden)))

    def pods() -> tuple[PodView, ...]:
        named = [PodView(namespace=namespace, pod=name) for namespace, name in hidden]
        return (*named, PodView(namespace="mine", pod="p"))

    part = GpuPart(start=0, size=1, state="allocated", pods=pods())
    a_gpu = GpuView(
        index=0, model="A100", memory_mib=1, width=1, mode="", health="healthy", parts=(part,), problems=(text(),)
    )
    others = msgspec.structs.replace(
        a_gpu,
        index=1,
        parts=(msgspec.structs.replace(part, pods=part.pods[:-1]),),
        contention=(ContentionView(cause="saturated", evenly=part.pods[:-1]),),
    )
    images = (ImageView(image=text(), state="Present"),)
    one = NodeView(name="n", problem=text(), gpus=(a_gpu, others), unplaced=pods(), images=images)
    view = FleetView(
        nodes=(one,),
        pending=(
            *(PendingView(namespace=namespace, pod=name, need="1") for namespace, name in hidden),
            PendingView(namespace="mine", pod="w", need="1", reason=text()),
        ),
        model_servers=(
            *(ModelServerHistory(namespace=namespace, name=name, points=()) for namespace, name in hidden),
            ModelServerHistory(namespace="mine", name="s", points=()),
        ),
        activity={f"{namespace}/{name}": 5 for namespace, name in hidden},
        memory_mib={"GPU-0": {f"{namespace}/{name}": 5 for namespace, name in hidden}},
        namespaces=("mine", *(namespace for namespace, _ in hidden)),
        notes=(text(),),
    )
    return view, {name for pair in hidden for name in pair}


@given(fleets())
def test_no_hidden_name_is_in_any_byte(drawn_fleet: tuple[FleetView, set[str]]) -> None:
    view, hidden = drawn_fleet
    shown = in_scope(view, Scope(namespaces=frozenset({"mine"})))
    sent = write_fleet(shown) + write_change(changes(FleetView(nodes=()), shown))
    assert not [name for name in hidden if name.encode() in sent]
    assert b"mine" in sent


MESSAGES = (
    *(rule.value for rule in Rule),
    *(refused(rule, "team/gpu=a100").text for rule in Refusal),
    "0/3 nodes are available: 1 Insufficient tessera.dev/gpu-memory. preemption: 0/3 nodes are available: none",
    "1 node(s) didn't match Pod's node affinity/selector, 1 node(s) had untolerated taint {gpu/dedicated: true}",
    "the pod selects team/gpu=a100, the node has /dev/nvidia0: see docs/mig.md or https://tessera.dev/mig",
)


@given(st.sampled_from(MESSAGES), st.data())
def test_a_message_reads_the_same_whatever_other_pods_are_called(message: str, data: st.DataObject) -> None:
    """Otherwise a viewer learns which exist, and anyone's pod blanks the messages of all others."""
    words = sorted(set(re.findall("[a-z0-9][-a-z0-9]*", message)))
    named = [
        PodView(namespace=data.draw(st.sampled_from(words)), pod=data.draw(st.sampled_from(words)))
        for _ in range(data.draw(st.integers(0, 5)))
    ]
    part = GpuPart(start=0, size=1, state="allocated", pods=tuple(named))
    a_gpu = GpuView(
        index=0, model="A100", memory_mib=1, width=1, mode="", health="healthy", parts=(part,), problems=(message,)
    )
    view = FleetView(
        nodes=(NodeView(name="n", problem=message, gpus=(a_gpu,)),),
        pending=(PendingView(namespace="mine", pod="p", need="1", reason=message),),
        namespaces=tuple(each.namespace for each in named),
    )
    got = in_scope(view, Scope(namespaces=frozenset({"mine"})))
    assert (got.nodes[0].problem, got.nodes[0].gpus[0].problems, got.pending[0].reason) == (
        message, (message,), message,
    )  # fmt: skip


ORPHANS = "pod zq-gone/zqz is deleted, and its processes still use it"


def test_pods_whose_devices_contradict_are_named_to_those_who_may_see_them() -> None:
    objects = (
        node(),
        pod("mine", WHOLE, share(0, 40000, Mode.WHOLE)),
        *(
            pod(each, WHOLE, share(index, 40000, Mode.WHOLE), metadata={"namespace": "zq"})
            for each, index in (("zqx", 0), ("zqy", 9))
        ),
        gpunode("a", gpu(0), unhealthy=(UnhealthyDevice(device=DeviceId("GPU-a-0"), reason=ORPHANS),)),
    )
    view = seen(*objects)
    texts = [view.nodes[0].problem, *view.nodes[0].gpus[0].problems]
    assert [name for name in ("zq/zqx", "zq/zqy", "zq-gone/zqz") if not any(name in each for each in texts)] == []
    got = in_scope(view, Scope(namespaces=frozenset({"ns"})))
    assert b"zq" not in write_fleet(got)
    assert "ns/mine" in "".join(got.nodes[0].gpus[0].problems)
