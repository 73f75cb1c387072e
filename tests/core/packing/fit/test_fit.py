"""What a fleet refuses to start from, and the corners of a demand."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.fleets import A100, T4, amount, gpu, node, pods
from builders.mixedclusters import nodes_of
from builders.shares import share
from tessera.core.cluster.snapshot import Assignment, Node, NodeName, Running, Share, Snapshot
from tessera.core.gpu.sharing import Mode
from tessera.core.packing.fit import Demand, Fleet
from tessera.errors import InvalidInput


def running(where: str, *shares: Share) -> Running:
    (pod,) = pods(amount(1024), 1)
    return Running(pod=pod, assignment=Assignment(pod=pod.key, node=NodeName(where), shares=shares))


ONE = node("a", gpu(0))
REFUSED: dict[str, tuple[tuple[Node, ...], tuple[Running, ...], str]] = {
    "two nodes of a name": ((ONE, node("b"), ONE), (), "node a: two nodes have this name"),
    "a pod on a node that is not there": (
        (ONE,),
        (running("b"),),
        "pod default/p-0: it runs on node b, which the fleet does not have",
    ),
    "more memory than the GPU has": (
        (ONE,),
        (running("a", share(memory_mib=1 << 20)),),
        "pod default/p-0 on node a: GPU 0: 1048576 MiB is more than the GPU's 40960 MiB",
    ),
    "a GPU that is not there": (
        (ONE,),
        (running("a", share(5)),),
        "pod default/p-0 on node a: GPU 5: the node does not have it",
    ),
    "a mode that the GPU does not serve": (
        (ONE,),
        (running("a", share(0, 1_000, Mode.TIME_SLICING)),),
        r"GPU 0: the GPU has no such device: 1000 MiB, 0 % compute \(time-slicing\)",
    ),
    "an instance where none can be": (
        (ONE,),
        (running("a", share(at="1g.5gb@7")),),
        "pod default/p-0 on node a: GPU 0: 1g.5gb does not start at 7",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_snapshot_that_cannot_be_is_refused(case: str) -> None:
    nodes, held, want = REFUSED[case]
    with pytest.raises(InvalidInput, match=want):
        Fleet.of(Snapshot(nodes=nodes, running=held))


def test_a_need_for_more_gpus_than_any_node_has_ranks_no_node_above_another() -> None:
    fleet = Fleet.of(Snapshot(nodes=(node("a", gpu(0), gpu(1, T4)), node("b", gpu(0, A100)))))
    nodes = np.arange(2)
    demand = Demand(amount(1024, count=3), fleet)
    assert demand.fits(fleet, nodes).tolist() == [False, False]
    tiers = demand.tiers(fleet, nodes)
    assert tiers is not None
    assert tiers.tolist() == [0, 0]


def column(fleet: Fleet, name: str) -> list[object]:
    """All that a fleet says of one node, whatever numbers its types and classes have."""
    at = fleet.index[name]
    rows = len(fleet.gpu_index[at])
    offers = [(key, fleet.offers[i, :rows, at].tolist()) for key, i in fleet.classes.items()]
    arrays = (fleet.serves, fleet.compute_left, fleet.memory_left, fleet.remaining, fleet.used, fleet.clients)
    return [
        fleet.nodes[at],
        fleet.gpu_index[at],
        fleet.room[:, at].tolist(),
        [fleet.types[kind] for kind in fleet.kind[:rows, at]],
        [array[:rows, at].tolist() for array in arrays],
        fleet.amounts[:, :rows, at].tolist(),
        [(key, free) for key, free in sorted(offers, key=str) if any(free)],
    ]


@settings(max_examples=60, deadline=None)
@given(
    nodes=st.lists(st.tuples(st.sampled_from("abcd"), nodes_of().map(lambda nodes: nodes[0])), max_size=8),
    gone=st.lists(st.sampled_from("abcd"), max_size=3),
)
def test_a_fleet_whose_nodes_come_and_go_is_as_one_made_at_once(nodes: list[tuple[str, Node]], gone: list[str]) -> None:
    fleet, want = Fleet(()), dict[str, Node]()
    for number, (name, spec) in enumerate(nodes):
        want[name] = msgspec.structs.replace(spec, name=NodeName(name))
        fleet.put(want[name])
        if number < len(gone) and gone[number] in want:
            assert fleet.nodes[fleet.remove(gone[number])].name == ""
            del want[gone[number]]
    made = Fleet(list(want.values()))
    assert set(fleet.index) == set(made.index)
    assert [column(fleet, name) for name in want] == [column(made, name) for name in want]
    assert fleet.widest == made.widest
    assert sum(fleet.census.tolist()) == sum(made.census.tolist())


def test_many_changes_of_gpus_make_the_fleet_take_a_new_shape_and_nothing_else() -> None:
    fleet = Fleet([node("a", gpu(0), gpu(1, T4))])
    fleet.put(node("b", gpu(0, T4)))
    shape = fleet.shape
    for _ in range(5_000):
        fleet.put(node("b", gpu(0)))
        fleet.put(node("b", gpu(0, T4)))
    assert fleet.shape == shape + 1
    assert fleet.remaining[:, fleet.index["b"]].tolist() == [100, 0]
