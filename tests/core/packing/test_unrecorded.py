"""The devices of running pods where none is recorded, and what counts of contradicting records."""

import msgspec
import pytest

from builders.fleets import A100, gpu, node, plain_share, pod_of, slices
from builders.requests import exact
from builders.shares import mig_share, share, whole
from tessera.core.cluster.snapshot import Node, Share, Taint
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.packing.unrecorded import PodOnNode, with_unrecorded_shares
from tessera.core.workload.need import Need

WHOLE = Need(requests=(exact(),))
TWO = node("n", gpu(0, sharing=Sharing(modes=(Mode.WHOLE,))), gpu(1, sharing=Sharing(modes=(Mode.WHOLE,))))
CUT = node("n", gpu(0), gpu(1))
CLOSED = msgspec.structs.replace(TWO, unschedulable=True, taints=(Taint(key="x", effect="NoSchedule"),), max_pods=1)
UNKNOWN = node("n")
FULL = whole(0, A100.memory_mib)
HALF = slices("3g.20gb")
REPLICAS = node("n", gpu(0, sharing=Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", 4),))))
CONFLICT = "GPU 0 of n takes no new pods, as its allocations conflict"


def on_node(key: str, need: Need = WHOLE, *shares: Share, recorded: bool = False) -> PodOnNode:
    return PodOnNode(pod_of(need, key), shares if shares or recorded else None)


# Keyed by a sentence: the node, its pods; by pod the GPU and start of each device, whether they are assumed; the notes.
CASES: dict[str, tuple[Node, tuple[PodOnNode, ...], dict[str, tuple[list[tuple[int, int | None]], bool]], str]] = {
    "no pod": (TWO, (), {}, ""),
    "a pod without requests assumes nothing": (TWO, (on_node("a", Need()),), {"a": ([], False)}, ""),
    "unrecorded pods in order of name": (
        TWO,
        (on_node("b"), on_node("a"), on_node("c", Need())),
        {"a": ([(0, None)], True), "b": ([(1, None)], True), "c": ([], False)},
        "",
    ),
    "recorded devices first": (
        TWO,
        (on_node("a"), on_node("b", WHOLE, FULL)),
        {"b": ([(0, None)], False), "a": ([(1, None)], True)},
        "",
    ),
    "a record of nothing is a record": (TWO, (on_node("a", WHOLE, recorded=True),), {"a": ([], False)}, ""),
    "instances fill a GPU before the next": (
        CUT,
        tuple(on_node(name, slices("3g.20gb")) for name in "abc"),
        {"a": ([(0, 0)], True), "b": ([(0, 4)], True), "c": ([(1, 0)], True)},
        "",
    ),
    "an amount beside a record of one": (
        CUT,
        (on_node("a", plain_share(1024)), on_node("b", plain_share(1024), share(1, 1024))),
        {"b": ([(1, None)], False), "a": ([(1, None)], True)},
        "",
    ),
    "of two records of one GPU the first by name counts, and it takes no pod more": (
        CUT,
        (on_node("b", WHOLE, FULL), on_node("a", slices("1g.5gb"), mig_share(0, "1g.5gb", 0)), on_node("c", HALF)),
        {"a": ([(0, 0)], False), "b": ([], False), "c": ([(1, 0)], True)},
        f"{CONFLICT}: the whole GPU is allocated, and 1 more of its devices; pods: a, b",
    ),
    "a record of a GPU that is not there": (
        TWO,
        (on_node("a", WHOLE, whole(7, 1)), on_node("b")),
        {"a": ([], False), "b": ([(0, None)], True)},
        "the devices recorded on pod a are not used: pod a on node n: GPU 7: the node does not have it",
    ),
    "a record across another": (
        CUT,
        (on_node("a", HALF, mig_share(0, "3g.20gb", 0)), on_node("b", HALF, mig_share(0, "3g.20gb", 0), share(1))),
        {"a": ([(0, 0)], False), "b": ([(1, None)], False)},
        f"{CONFLICT}: 2 pods use 3g.20gb (mig), which allows 1; pods: a, b",
    ),
    "a whole GPU that is to be shared by replicas now": (
        REPLICAS,
        (on_node("a", WHOLE, FULL), on_node("b")),
        {"a": ([(0, None)], False), "b": ([], True)},
        f"{CONFLICT}: 40960 MiB, 100 % compute (whole) is not one of the devices that the GPU is shared as; pods: a",
    ),
    "an amount in a mode that is not allowed any more": (
        TWO,
        (on_node("a", plain_share(1024), share(0, 1024)), on_node("b"), on_node("c")),
        {"a": ([(0, None)], False), "b": ([(1, None)], True), "c": ([], True)},
        "pod c has devices that node n does not report; they are not counted",
    ),
    "records that no GPU can have": (
        CUT,
        (
            on_node("a", HALF, share(at="9g.9gb@0"), share(1, at="3g.20gb@-1")),
            on_node("b", WHOLE, share(0, 1 << 20)),
            on_node("c", HALF),
        ),
        {"a": ([], False), "b": ([], False), "c": ([], True)},
        f"{CONFLICT}: A100-40GB has no profile 9g.9gb; pods: a",
    ),
    "more pods than devices": (
        TWO,
        (on_node("a"), on_node("b"), on_node("c")),
        {"a": ([(0, None)], True), "b": ([(1, None)], True), "c": ([], True)},
        "pod c has devices that node n does not report; they are not counted",
    ),
    "a node whose GPUs are unknown says so itself": (
        msgspec.structs.replace(UNKNOWN, problem="unknown GPU"),
        (on_node("a"),),
        {"a": ([], True)},
        "",
    ),
    "a pod stays where no new one may go": (CLOSED, (on_node("a"),), {"a": ([(0, None)], True)}, ""),
    "devices of other plugins": (
        TWO,
        (
            on_node("a", Need(requests=(exact(1, "rdma/hca"),))),
            on_node("b", Need(requests=(exact(), exact(1, "rdma/hca")))),
        ),
        {"a": ([], False), "b": ([(0, None)], True)},
        "",
    ),
}


@pytest.mark.parametrize("sentence", CASES)
def test_each_pod_has_possible_devices(sentence: str) -> None:
    where, pods, want, note = CASES[sentence]
    found = with_unrecorded_shares(where, pods)
    assert {
        each.pod.key: ([(one.gpu, one.start) for one in each.assignment.shares], each.unrecorded)
        for each in found.running
    } == want
    assert [each.assignment.node for each in found.running] == ["n"] * len(pods)
    assert bool(found.notes) == bool(note)
    assert not note or found.notes[0].startswith(note)
    assert bool(found.conflicts) == note.startswith(CONFLICT)
