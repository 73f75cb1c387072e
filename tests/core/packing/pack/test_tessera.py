"""Tessera's policy: what it prefers, on fleets small enough to see why."""

import numpy as np
import pytest

from builders.fleets import A100, T4, amount, gpu, node, pods, slices
from tessera.core.cluster.snapshot import Snapshot
from tessera.core.gpu.sharing import Mode
from tessera.core.packing.fit import Demand, Fleet
from tessera.core.packing.pack import Packer
from tessera.core.packing.pack.tessera import Tessera, _scaled
from tessera.core.packing.plan import plan
from tessera.core.workload.need import DeviceRequest, Isolation, Need

WHOLE = Need(requests=(DeviceRequest(resource="nvidia.com/gpu"),))


def test_unconstrained_pods_leave_models_that_others_name() -> None:
    nodes = (node("a", gpu(0)), node("t", gpu(0, T4)))
    named = Need(models=(A100.name,), requests=WHOLE.requests)
    packer = Packer(Fleet.of(Snapshot(nodes=nodes)), "tessera", mix=((WHOLE, 5), (named, 5)))
    choice = packer.place(packer.intern(WHOLE))
    assert choice is not None
    assert choice.node == 1


@pytest.mark.parametrize(
    "need",
    [pytest.param(amount(6_000, compute_percent=40), id="an amount"), pytest.param(WHOLE, id="a whole GPU")],
)
def test_the_smallest_gpu_that_serves_is_taken(need: Need) -> None:
    mixed = (node("a", gpu(0)), node("t", gpu(0, T4)), node("b", gpu(0)))
    packer = Packer(Fleet.of(Snapshot(nodes=mixed)), "tessera", mix=((need, 1),))
    choice = packer.place(packer.intern(need))
    assert choice is not None
    assert choice.node == 1


def test_shares_fill_the_gpu_they_complete() -> None:
    """Sizes that complete each other meet on one GPU, so that a whole one stays free."""
    large, small = amount(10_000), amount(5_000)
    before = Snapshot(
        nodes=(node("n", *(gpu(i, T4) for i in range(3))),), pending=(*pods(large, 2, "l"), *pods(small, 2, "s"))
    )
    made = plan(before, policy="tessera")
    assert made.pending == ()
    assert sum(bool(layout.devices) for layout in made.layouts) == 2


def test_slices_are_cut_where_they_block_least() -> None:
    before = Snapshot(
        nodes=(node("n", gpu(0), gpu(1)),), pending=(*pods(slices("1g.5gb"), 3, "s"), *pods(slices("3g.20gb"), 3, "l"))
    )
    made = plan(before, policy="tessera")
    assert made.pending == ()
    assert all(share.mode is Mode.MIG for assignment in made.assignments for share in assignment.shares)


def test_hardware_needs_and_whole_gpus_share_a_fleet() -> None:
    nodes = (node("n", *(gpu(i) for i in range(3))),)
    desired = (*pods(amount(19_000, Isolation.HARDWARE), 4, "h"), *pods(WHOLE, 1, "w"))
    made = plan(Snapshot(nodes=nodes, pending=desired), policy="tessera")
    assert made.pending == ()


def test_large_mixes_are_scaled_and_rare_kinds_stay() -> None:
    mix = _scaled(((WHOLE, 1 << 40), (slices("1g.5gb"), 1)))
    assert [count for _, count in mix] == [(1 << 20) - 1, 1]
    assert _scaled(((WHOLE, 5),)) == ((WHOLE, 5),)


def test_where_pods_leave_free_pairs_of_gpus_are_dearer() -> None:
    fleet = Fleet.of(Snapshot(nodes=(node("pair", gpu(0, T4), gpu(1, T4)), node("one", gpu(0, T4)))))
    policy = Tessera(fleet)
    mix = ((WHOLE, 9), (Need(requests=(DeviceRequest(resource="nvidia.com/gpu", count=2),)), 1))
    demand = Demand(WHOLE, fleet)
    dearer = []
    for leaving_permille in (0, 1000):
        policy.learn(mix, leaving_permille)
        nodes = np.arange(2)
        pair, one = policy.scores(demand, nodes, demand.room(fleet, nodes)).tolist()
        dearer.append(one - pair)
    assert 0 < dearer[0] < dearer[1]
