"""Why a pod is pending, in one sentence over all nodes; the obstacles themselves are in test_obstacles."""

import msgspec
import pytest

from builders.fleets import A30, T4, amount, gpu, node, plain_share, pod_of, pods, slices
from builders.shares import whole
from tessera.core.cluster.snapshot import Assignment, Gpu, Node, NodeName, Running, Snapshot, Taint
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.packing.obstacles import Cause
from tessera.core.packing.plan import plan
from tessera.core.packing.reasons import Reasons
from tessera.core.workload.need import DeviceRequest, Need

WHOLE = Need(requests=(DeviceRequest(resource="nvidia.com/gpu"),))
SHARED = Sharing(modes=(Mode.MEMORY_SHARE,))
REPLICAS = Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", 3),))
TOGETHER = "room for each request of the pod alone, but not for all of them together"

# Keyed by a sentence: GPUs of the one node, the need, what the node has instead of a device for it.
OFFERS: dict[str, tuple[tuple[Gpu, ...], Need, str]] = {
    "other devices": ((gpu(0, T4, REPLICAS),), slices("1g.5gb"), "1 x T4 offering nvidia.com/gpu"),
    "profiles of other models": (
        (gpu(0, A30), gpu(1, T4)),
        slices("1g.5gb"),
        "1 x A30-24GB with profiles 1g.6gb, 1g.6gb+me, 2g.12gb, 2g.12gb+me, 4g.24gb, 1 x T4 without MIG",
    ),
    "a GPU that is not repartitioned": (
        (gpu(0, A30, Sharing(modes=(Mode.MPS,))),),
        slices("1g.6gb"),
        "1 x A30-24GB with MIG ruled out by its sharing",
    ),
    "smaller GPUs": (
        (gpu(0, T4, SHARED), gpu(1, T4, SHARED)),
        amount(20_000),
        "2 x T4 of 15360 MiB shared as memory-share",
    ),
    "shares where whole GPUs are requested": ((gpu(0, T4, SHARED),), WHOLE, "1 x T4 shared as memory-share"),
}


@pytest.mark.parametrize("sentence", OFFERS)
def test_where_no_gpu_can_provide_it_the_sentence_says_what_there_is(sentence: str) -> None:
    gpus, need, want = OFFERS[sentence]
    _, got = Reasons(Snapshot(nodes=(node("n", *gpus),))).why(need)
    assert got.endswith(f"(n: {want})")
    assert "; no GPU of the node can provide" in got


def test_an_unhealthy_gpu_that_a_pod_uses_is_what_it_is_when_healthy() -> None:
    """A pod may use it in another mode than it has by now."""
    closed = msgspec.structs.replace(gpu(0, T4), sharing=Sharing(modes=(Mode.WHOLE,)), healthy=gpu(0, T4, SHARED))
    using = pod_of(WHOLE, "ns/using")
    running = Running(pod=using, assignment=Assignment(pod=using.key, node=NodeName("n"), shares=(whole(0),)))
    _, got = Reasons(Snapshot(nodes=(node("n", closed),), running=(running,))).why(WHOLE)
    want = "no GPU of the node can provide nvidia.com/gpu (n: 1 x T4 shared as memory-share)"
    assert got == f"needs nvidia.com/gpu; {want}"


def test_devices_of_one_name_that_are_of_several_models_are_the_obstacle() -> None:
    of_t4 = Need(models=("T4",), requests=WHOLE.requests)
    _, got = Reasons(Snapshot(nodes=(node("n", gpu(0, A30), gpu(1, T4)),))).why(of_t4)
    assert "; not every nvidia.com/gpu of the node is one of model T4" in got


# Keyed by a sentence: the snapshot, and the reasons of the pods that stay pending when it is planned.
SENTENCES: dict[str, tuple[Snapshot, str]] = {
    "CPU": (
        Snapshot(nodes=(node("n", gpu(0), cpu_milli=3000),), pending=pods(slices("1g.5gb", cpu_milli=2500), 2)),
        "needs nvidia.com/mig-1g.5gb; too little CPU: 2.5 requested, 0.5 free (n)",
    ),
    "memory": (
        Snapshot(nodes=(node("n"),), pending=pods(Need(memory_mib=1 << 21), 1)),
        "needs 0 CPU and 2097152 MiB memory; too little memory: 2097152 MiB requested, 1048576 MiB free (n)",
    ),
    "no nodes": (Snapshot(nodes=(), pending=pods(WHOLE, 1)), "needs nvidia.com/gpu; there are no nodes"),
    "a model that is nowhere": (
        Snapshot(nodes=(node("n", gpu(0)),), pending=pods(Need(models=("T4",), requests=WHOLE.requests), 1)),
        "needs nvidia.com/gpu; the node has no GPU of model T4 (n)",
    ),
    "devices taken in either order leave a third ask nothing": (
        Snapshot(
            nodes=(node("n", gpu(0, T4), gpu(1, T4)),),
            pending=pods(
                Need(requests=(DeviceRequest(resource="nvidia.com/gpu", count=2), *plain_share(9000).requests)), 1
            ),
        ),
        f"needs 2 x nvidia.com/gpu, 8.8 GiB; {TOGETHER} (n)",
    ),
    "two requests that fit alone but not together": (
        Snapshot(
            nodes=(node("n", gpu(0, T4)),),
            pending=pods(Need(requests=(*plain_share(9000).requests, *plain_share(9100).requests)), 1),
        ),
        f"needs 8.8 GiB, 8.9 GiB; {TOGETHER} (n)",
    ),
    "nodes with the same obstacle are counted, the nearest misses first": (
        Snapshot(
            nodes=(
                Node(name=NodeName("a"), cpu_milli=1000, memory_mib=1000, unschedulable=True),
                Node(
                    name=NodeName("b"),
                    cpu_milli=1000,
                    memory_mib=1000,
                    taints=(Taint(key="k", value="v", effect="NoExecute"),),
                ),
                *(Node(name=NodeName(name), cpu_milli=1000, memory_mib=1000, max_pods=0) for name in "cde"),
            ),
            pending=pods(Need(cpu_milli=1), 1),
        ),
        (
            "needs 0.001 CPU and 0 MiB memory; the node has its maximum number of pods (c, d and 1 more node); the "
            "node is cordoned (a); the pod does not tolerate the taint k=v:NoExecute (b)"
        ),
    ),
    "of two nodes with the same cause the other is counted": (
        Snapshot(
            nodes=tuple(node(name, gpu(0, T4), cpu_milli=cpu) for name, cpu in (("a", 100), ("b", 300))),
            pending=pods(Need(cpu_milli=400), 1),
        ),
        (
            "needs 0.4 CPU and 0 MiB memory; too little CPU: 0.4 requested, 0.3 free (b; 1 more node has "
            "the same problem)"
        ),
    ),
    "of nodes whose GPUs are unknown one is named": (
        Snapshot(
            nodes=tuple(msgspec.structs.replace(node(name), problem=f"{name}: no model") for name in "abc"),
            pending=pods(WHOLE, 1),
        ),
        "needs nvidia.com/gpu; the node's GPUs are unknown: a: no model (a; 2 more nodes have the same problem)",
    ),
    "of nodes with the same cause the nearest miss is named": (
        Snapshot(
            nodes=tuple(node(name, gpu(0, T4), cpu_milli=cpu) for name, cpu in (("a", 100), ("b", 300), ("c", 200))),
            pending=pods(Need(cpu_milli=400), 1),
        ),
        (
            "needs 0.4 CPU and 0 MiB memory; too little CPU: 0.4 requested, 0.3 free (b; 2 more nodes have "
            "the same problem)"
        ),
    ),
}


@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_pending_pod_has_its_reason_in_the_plan(sentence: str) -> None:
    snapshot, want = SENTENCES[sentence]
    assert {each.reason for each in plan(snapshot, policy="first-fit").pending} == {want}


def test_a_node_with_room_is_not_named() -> None:
    cause, got = Reasons(Snapshot(nodes=(node("full"), node("free", gpu(0))))).why(slices("1g.5gb"))
    assert (cause, got) == (Cause.NO_GPU, "needs nvidia.com/mig-1g.5gb; the node has no GPU (full)")
