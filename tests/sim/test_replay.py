"""What a run's log shows when it is followed step by step."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.runs import GPUS, PAIR, PODS, WANTS, WHOLE, Want, in_time, workload_of
from tessera.core.packing.fit import Fleet
from tessera.core.packing.fit.fragmentation import Fragmentation, typical
from tessera.core.packing.pack import Packer
from tessera.sim.compare import simulate
from tessera.sim.engine import RunRules, run
from tessera.sim.replay import replay


@given(GPUS, PODS, st.integers(0, 3))
def test_a_replay_ends_where_the_run_ended(gpus: list[int], gaps: list[tuple[Want, int, float]], moves: int) -> None:
    """Fragmentation kept up step by step equals that of the packer's fleet; none departs after the last arrival."""
    pods = [(want, at_s, stay_s if stay_s == 1.0 else math.inf) for want, at_s, stay_s in in_time(gaps)]
    workload = workload_of(gpus, [*pods, (WANTS[0], pods[-1][1] + 2.0, math.inf)])
    packer = Packer(Fleet.of(workload.snapshot), "first-fit")
    log = run(workload, packer, RunRules(moves=moves))
    got = replay(log)
    fragmentation = Fragmentation(packer.fleet, typical(workload.mix, cover_percent=95))
    amount = fragmentation.amount(packer.fleet, np.arange(len(gpus))).sum() / fragmentation.weight
    assert got.fragmented_percent[-1] == pytest.approx(amount / sum(gpus))
    assert got.idle_percent[-1] == pytest.approx(packer.fleet.remaining.sum() / sum(gpus))
    assert got.refused_though_fitting == 0
    assert len(got.at_s) == len(log.spots) + sum(left_s < math.inf for left_s in log.left_s)


def test_a_pod_dropped_though_a_node_fits_is_found_out() -> None:
    pods = [(PAIR, 0.0, math.inf), (WHOLE, 1.0, math.inf), (PAIR, 2.0, math.inf), (PAIR, 3.0, math.inf)]
    log = simulate(workload_of([3], pods), "first-fit", RunRules())
    assert [spot is None for spot in log.spots] == [False, False, True, True]
    lazy = msgspec.structs.replace(log, spots=(log.spots[0], None, None, None), placed_s=(0.0, *[math.inf] * 3))
    assert replay(log).refused_though_fitting == 0
    assert replay(lazy).refused_though_fitting == 1
