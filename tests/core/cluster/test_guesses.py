"""What is a guess on a node: who uses which GPU, which GPU is which, which GPU is lost."""

from typing import Any

import msgspec
import pytest

from builders.fleets import A30, gpu, node
from tessera.core.cluster.guesses import Guess, GuessCause, guesses
from tessera.core.cluster.snapshot import Assignment, NodeName, Running, Snapshot
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import Sharing
from tessera.core.workload.need import Need, Pod, PodKey

CUT = Sharing(layout=(Placement(0, 2, "2g.12gb"), Placement(2, 2, "2g.12gb")), allow_repartition=False)


def running(name: str, *, guessed: bool) -> Running:
    key = PodKey(f"ns/{name}")
    return Running(pod=Pod(key=key, need=Need()), assignment=Assignment(pod=key, node=NodeName("n")), guessed=guessed)


def changed(*, lone: bool = False, sharing: Sharing | None = None, **more: Any) -> Snapshot:
    own = gpu(0, A30, sharing) if sharing else gpu(0, A30)
    found = node("n", own) if lone else node("n", own, gpu(1, A30))
    return Snapshot(nodes=(msgspec.structs.replace(found, **more),))


PODS, ORDER, LOST = GuessCause.PODS, GuessCause.ORDER, GuessCause.LOST
CASES = {
    "a pod with recorded devices": (changed(), [running("a", guessed=False)], None),
    "a pod whose devices nobody recorded": (
        changed(),
        [running("a", guessed=True), running("b", guessed=False)],
        Guess(cause=PODS, pods=(PodKey("ns/a"),)),
    ),
    "one GPU leaves nothing to guess": (changed(lone=True), [running("a", guessed=True)], None),
    "but its instances do": (
        changed(lone=True, sharing=CUT),
        [running("a", guessed=True)],
        Guess(cause=PODS, pods=(PodKey("ns/a"),)),
    ),
    "GPUs whose order no label tells": (changed(ordered=False), [], Guess(cause=ORDER)),
    "some GPUs are lost": (changed(lost=1), [], Guess(cause=LOST)),
    "all GPUs are lost": (changed(lost=2), [], None),
    "no GPU": (Snapshot(nodes=(node("n"),)), [running("a", guessed=True)], None),
}


@pytest.mark.parametrize(("snapshot", "pods", "want"), CASES.values(), ids=CASES)
def test_guesses(snapshot: Snapshot, pods: list[Running], want: Guess | None) -> None:
    assert guesses(msgspec.structs.replace(snapshot, running=tuple(pods))) == ({"n": want} if want else {})
