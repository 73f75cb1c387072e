"""What is not recorded of a node: who uses which GPU, which GPU is which, which GPU is lost."""

from typing import Any

import msgspec
import pytest

from builders.fleets import A30, gpu, node
from tessera.core.cluster.snapshot import Assignment, NodeName, Running, Snapshot
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import Sharing
from tessera.core.packing.unrecorded import Unrecorded, UnrecordedCause, unrecorded_nodes
from tessera.core.workload.need import Need, Pod, PodKey

CUT = Sharing(layout=(Placement(0, 2, "2g.12gb"), Placement(2, 2, "2g.12gb")), allow_repartition=False)


def running(name: str, *, unrecorded: bool) -> Running:
    key = PodKey(f"ns/{name}")
    return Running(
        pod=Pod(key=key, need=Need()), assignment=Assignment(pod=key, node=NodeName("n")), unrecorded=unrecorded
    )


def changed(*, lone: bool = False, sharing: Sharing | None = None, **more: Any) -> Snapshot:
    own = gpu(0, A30, sharing) if sharing else gpu(0, A30)
    found = node("n", own) if lone else node("n", own, gpu(1, A30))
    return Snapshot(nodes=(msgspec.structs.replace(found, **more),))


PODS, ORDER, LOST = UnrecordedCause.PODS, UnrecordedCause.ORDER, UnrecordedCause.LOST
CASES = {
    "a pod with recorded devices": (changed(), [running("a", unrecorded=False)], None),
    "a pod whose devices nobody recorded": (
        changed(),
        [running("a", unrecorded=True), running("b", unrecorded=False)],
        Unrecorded(cause=PODS, pods=(PodKey("ns/a"),)),
    ),
    "one GPU leaves nothing to guess": (changed(lone=True), [running("a", unrecorded=True)], None),
    "but its instances do": (
        changed(lone=True, sharing=CUT),
        [running("a", unrecorded=True)],
        Unrecorded(cause=PODS, pods=(PodKey("ns/a"),)),
    ),
    "GPUs whose order no label tells": (changed(ordered=False), [], Unrecorded(cause=ORDER)),
    "some GPUs are lost": (changed(lost=1), [], Unrecorded(cause=LOST)),
    "all GPUs are lost": (changed(lost=2), [], None),
    "no GPU": (Snapshot(nodes=(node("n"),)), [running("a", unrecorded=True)], None),
}


@pytest.mark.parametrize(("snapshot", "pods", "want"), CASES.values(), ids=CASES)
def test_what_is_not_recorded_of_a_node(snapshot: Snapshot, pods: list[Running], want: Unrecorded | None) -> None:
    assert unrecorded_nodes(msgspec.structs.replace(snapshot, running=tuple(pods))) == ({"n": want} if want else {})
