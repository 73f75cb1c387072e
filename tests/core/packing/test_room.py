"""How many pods of a kind find a place: on what exists, on what can be created, beside who waits; or nobody knows."""

import msgspec
import pytest

from builders import fleets
from builders.kubeobjects import place
from builders.requests import exact
from builders.shares import mig_share
from tessera.core.cluster.snapshot import Assignment, Node, NodeName, Running, Snapshot
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.packing.room import room
from tessera.core.workload.need import Need, Pod

ONE_SLICE = fleets.slices("1g.5gb")
FIXED = Sharing(
    modes=(Mode.MIG,), layout=tuple(place("A100-40GB", "1g.5gb", start) for start in (0, 1, 2)), allow_repartition=False
)


def found(need: Need, *nodes: Node, others: tuple[Pod, ...] = (), running: tuple[Running, ...] = ()) -> int | None:
    """Return for how many of twenty pods there is room."""
    more = fleets.pods(need, 20, "more")
    snapshot = Snapshot(nodes=nodes, running=running, pending=(*others, *more))
    return room(snapshot, [each.key for each in more])


def test_instances_that_exist_and_can_be_created_are_places() -> None:
    assert found(ONE_SLICE, fleets.node("a", fleets.gpu(0), fleets.gpu(1))) == 14
    assert found(ONE_SLICE, fleets.node("a", fleets.gpu(0, sharing=FIXED))) == 3
    assert found(fleets.amount(10_000), fleets.node("a", fleets.gpu(0))) == 4
    assert found(fleets.amount(1_000), fleets.node("a", fleets.gpu(0))) == 20


def test_what_others_use_or_wait_for_is_no_place() -> None:
    node = fleets.node("a", fleets.gpu(0, sharing=FIXED))
    (pod,) = fleets.pods(ONE_SLICE, 1, "other")
    share = mig_share(0, "1g.5gb", 1)
    running = Running(pod=pod, assignment=Assignment(pod=pod.key, node=NodeName("a"), shares=(share,)))
    assert found(ONE_SLICE, node, running=(running,)) == 2
    first = msgspec.structs.replace(pod, priority=1)
    assert found(ONE_SLICE, node, others=(first,)) == 2


UNKNOWN = {
    "no GPU": Need(cpu_milli=100),
    "another system's": Need(requests=(exact(1, "volcano.sh/vgpu-number"),)),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_nobody_knows_a_place_for_what_is_not_tesseras(case: str) -> None:
    assert found(UNKNOWN[case], fleets.node("a", fleets.gpu(0))) is None


def test_nobody_knows_where_a_nodes_gpus_are_not_known_or_a_pod_was_not_read() -> None:
    known = fleets.node("a", fleets.gpu(0))
    assert found(ONE_SLICE, known, msgspec.structs.replace(fleets.node("b"), problem="no GPU model")) is None
    pods = fleets.pods(ONE_SLICE, 2)
    assert room(Snapshot(nodes=(known,), pending=pods[:1]), [each.key for each in pods]) is None
