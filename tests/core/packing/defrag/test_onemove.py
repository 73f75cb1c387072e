"""One move on a packer's fleet, against all moves tried one by one."""

import random

import numpy as np
import pytest

from builders.fleets import A30, T4, amount, gpu, node, slices
from tessera.core.packing.defrag.onemove import Mover
from tessera.core.packing.fit import Demand, Fleet, Tightest
from tessera.core.packing.fit.onenode import serve
from tessera.core.packing.pack import Choice, Packer
from tessera.core.workload.need import DeviceRequest, Need

NEEDS = (
    amount(3_000),
    amount(10_000, compute_percent=70),
    amount(4_000, count=2),
    slices("1g.6gb"),
    slices("2g.12gb"),
    Need(cpu_milli=3_000),
    Need(cpu_milli=5_000, requests=(DeviceRequest(resource="nvidia.com/gpu"),)),
    Need(cpu_milli=1_000, requests=(*slices("1g.6gb").requests, *slices("2g.12gb").requests)),
)


def fits(fleet: Fleet, need: Need, nodes: list[int]) -> bool:
    """Return whether a pod fits on any of these nodes, with its devices."""
    demand = Demand(need, fleet)
    able = [each for each in nodes if demand.fits(fleet, np.array([each]))[0]]
    return any(serve(fleet, demand, each, Tightest()) is not None for each in able)


def could_move(fleet: Fleet, desired: Need, need: Need, spot: Choice) -> bool:
    """Return whether a pod fits on another node, and the one that is desired where it was."""
    without = fleet.copy()
    without.give(spot.node, need, spot.shares)
    others = [each for each in range(len(fleet.nodes)) if each != spot.node]
    return fits(fleet, need, others) and fits(without, desired, [spot.node])


@pytest.mark.parametrize("desired", NEEDS)
def test_pods_move_one_by_one_where_that_helps_and_only_there(desired: Need) -> None:
    rng = random.Random(1)
    for _ in range(25):
        specs = [
            node(f"n{n}", gpu(0, A30 if n else T4), gpu(1, rng.choice((A30, T4))), cpu_milli=8_000) for n in (0, 1, 2)
        ]
        packer, running = Packer(Fleet(specs), "first-fit"), dict[int, tuple[int, Choice]]()
        mover, needs = Mover(packer), rng.choices(NEEDS, k=30)
        for number, kind in enumerate(map(packer.intern, needs)):
            spot = packer.place(kind)
            if spot is not None:
                running[number] = kind, spot
        for gone in rng.sample(sorted(running), len(running) // 5):
            packer.release(*running.pop(gone))
        while packer.place(packer.intern(desired), again=True) is not None:
            pass
        before = packer.fleet.copy()
        could = {number for number, (_, spot) in running.items() if could_move(before, desired, needs[number], spot)}
        made = mover.make_room(packer.intern(desired), ((number, *each) for number, each in running.items()))
        if made is None:  # of instances on one GPU only one is looked at
            assert all(share.profile for number in could for share in running[number][1].shares)
            continue
        assert made.moved in could
        before.give(running[made.moved][1].node, needs[made.moved], running[made.moved][1].shares)
        before.take(made.spot.node, desired, made.spot.shares)
        before.take(made.elsewhere.node, needs[made.moved], made.elsewhere.shares)
        assert [packer.fleet.state(n) for n in range(3)] == [before.state(n) for n in range(3)]
        again = {**running, made.moved: (running[made.moved][0], made.elsewhere)}
        mover.make_room(packer.intern(desired), ((number, *each) for number, each in again.items()))
