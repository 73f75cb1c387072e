"""The made-up trace has the mix it was asked for."""

import msgspec
import pytest

from tessera.errors import InvalidInput
from tessera.sim.metrics import group_of
from tessera.sim.workloads import Trace, filling
from tessera.sim.workloads.synthetic import PUBLISHED_MIX, ClassMix, make, plain_nodes


def demand_percent(trace: Trace) -> list[float]:
    """Return each class's share of the GPU demand."""
    sums = [0, 0, 0, 0]
    for kind in trace.kind_of:
        sums[group_of(trace.demands[kind])] += trace.demands[kind].milli
    return [100 * part / sum(sums) for part in sums]


def test_the_published_mix_comes_out() -> None:
    trace = make(plain_nodes(500), 1)
    assert demand_percent(trace) == pytest.approx([0.0, 28.5, 64.3, 7.3], abs=2.5)
    without = sum(trace.demands[kind].gpus == 0 for kind in trace.kind_of)
    assert 100 * without / len(trace.names) == pytest.approx(13.3, abs=1.5)
    demand = sum(trace.demands[kind].milli for kind in trace.kind_of)
    assert demand / trace.capacity_milli == pytest.approx(0.98, abs=0.01)


def test_another_mix_can_be_asked_for() -> None:
    trace = make(plain_nodes(50), 1, ClassMix(part=1, one=0, several=1, without_percent=0))
    assert demand_percent(trace) == pytest.approx([0.0, 50.0, 0.0, 50.0], abs=12)
    assert all(trace.demands[kind].gpus for kind in trace.kind_of)


def test_a_seed_gives_the_same_trace_and_its_draws_are_not_those_of_the_arrivals() -> None:
    nodes = plain_nodes(5)
    assert make(nodes, 3) == make(nodes, 3) != make(nodes, 4)
    names = [arrival.pod for arrival in filling(make(nodes, 3), 3).arrivals]
    assert names != sorted(names)


def test_sizes_larger_than_any_node_are_left_out() -> None:
    nodes = tuple(msgspec.structs.replace(node, gpus=node.gpus[:2]) for node in plain_nodes(20))
    trace = make(nodes, 1)
    assert {demand.gpus for demand in trace.demands} == {0, 1, 2}


WRONG = {
    "a negative weight": (ClassMix(part=-1, one=1, several=1, without_percent=0), "mix of classes: -1 1 1"),
    "no weight at all": (ClassMix(part=0, one=0, several=0, without_percent=0), "not all 0"),
    "pods without GPU alone": (ClassMix(part=1, one=1, several=1, without_percent=100), "below 100 %"),
}


@pytest.mark.parametrize(("mix", "want"), WRONG.values(), ids=WRONG.keys())
def test_a_mix_that_makes_no_sense_is_refused(mix: ClassMix, want: str) -> None:
    with pytest.raises(InvalidInput, match=want):
        make(plain_nodes(1), 0, mix)


def test_a_fleet_that_cannot_hold_the_mix_is_refused() -> None:
    bare = tuple(msgspec.structs.replace(node, gpus=()) for node in plain_nodes(2))
    with pytest.raises(InvalidInput, match="fleet: it has no GPUs"):
        make(bare, 0)
    single = tuple(msgspec.structs.replace(node, gpus=node.gpus[:1]) for node in plain_nodes(2))
    with pytest.raises(InvalidInput, match="all its sizes are larger than any node"):
        make(single, 0, ClassMix(part=0, one=0, several=1, without_percent=0))
    assert make(single, 0, PUBLISHED_MIX).names
