"""Policies under traces: what scales to zero, what a wrong spec costs, and what slow starts do."""

import math
from itertools import pairwise

import numpy as np
import pytest

from tessera.sim.serving.compare import Comparison, compare, rows
from tessera.sim.serving.policies import POLICIES
from tessera.sim.serving.replicamodel import ReplicaModel
from tessera.sim.serving.run import ServingRun, run
from tessera.sim.serving.traces import Requests

MODEL = ReplicaModel()


def test_with_an_idle_time_there_is_no_replica_between_bursts_and_no_request_is_lost() -> None:
    """Two bursts of ten minutes, four hours apart: the second waits for a cold start."""
    burst = np.arange(0.0, 600.0, 2.0)
    times = np.concatenate([burst, burst + 4 * 3600])
    requests = Requests(times, np.full(600, 500.0), np.full(600, 100.0))
    idle = ReplicaModel(idle_s=900.0)
    stays, zero = (compare(requests, each, ["tessera"], 4).runs[0][1] for each in (MODEL, idle))
    assert [each.lost for each in (stays, zero)] == [0, 0]
    assert stays.within_slo == 1.0
    assert stays.replica_hours > 4
    assert zero.replica_hours < 1
    assert 0.85 < zero.within_slo < 0.95, "who comes during the cold start waits for it"
    changes = [(each.desired, each.reason) for each in zero.log[1:]]
    assert changes[0] == (0, "no request for 900 s, so no replica")
    assert changes[1][0] == 1
    assert changes[1][1].endswith(", and there is no replica")
    gone, back = zero.log[1].time_s, zero.log[2].time_s
    assert 598 + 900 <= gone <= 598 + 900 + 60
    assert 4 * 3600 <= back <= 4 * 3600 + 15


def test_an_idle_time_changes_nothing_while_requests_come(found: Comparison) -> None:
    again = compare(found.requests, ReplicaModel(idle_s=600.0), ["tessera"], 16).runs[0][1]
    assert dict(found.runs)["tessera"] == again


def test_a_spec_that_promises_more_slots_than_a_replica_has_costs_one_overload(found: Comparison) -> None:
    """The number in the spec counts until requests have waited for a minute; then come the replicas, for a while more
    than enough."""
    outcomes = compare(found.requests, ReplicaModel(spec_slots=256), ["in-flight", "tessera"], 16)
    plain, ours = rows(outcomes)
    assert plain.within_slo < 0.5
    assert ours.within_slo > 0.95
    assert ours.replica_hours < 2 * ours.clairvoyant_replica_hours


COLD_STARTS_S = (60.0, 120.0, 300.0, 600.0, 900.0)
SERVICE_S, DRAIN_S, MOST = 4.0, 60.0, 100


def evenly(*parts: tuple[float, float], model: ReplicaModel, policy: str = "tessera", start: int = 1) -> ServingRun:
    """Return what becomes of so many requests a second for so many seconds, each of which takes 4 s."""
    begins = np.cumsum([0.0, *(seconds for _, seconds in parts)])
    times = np.concatenate(
        [np.arange(begin, begin + seconds, 1 / rate) for begin, (rate, seconds) in zip(begins, parts, strict=False)]
    )
    return run(times, np.full(len(times), SERVICE_S), model, POLICIES[policy](model, MOST), start)


@pytest.mark.parametrize("cold_start_s", COLD_STARTS_S)
def test_waking_at_a_constant_rate_takes_what_the_rate_and_its_queue_need(cold_start_s: float) -> None:
    """Two requests a second fill a replica; forecast and margin take two to four. A cold start's wait."""
    woken = evenly((2.0, 5400.0), model=ReplicaModel(cold_start_s=cold_start_s, idle_s=1200.0), start=0)
    queue = 2.0 * cold_start_s * SERVICE_S / DRAIN_S / 8
    assert max(each.desired for each in woken.log) <= 4 + math.ceil(queue)
    assert woken.log[-1].desired <= 3


@pytest.mark.parametrize("cold_start_s", COLD_STARTS_S)
def test_a_step_costs_no_more_than_a_plain_autoscaler_by_requests_in_flight(cold_start_s: float) -> None:
    model = ReplicaModel(cold_start_s=cold_start_s)
    parts = (3.0, 3600.0), (9.0, 5400.0)
    ours, plain = (evenly(*parts, model=model, policy=each, start=3) for each in ("tessera", "in-flight"))
    assert ours.replica_hours <= plain.replica_hours
    assert ours.within_slo >= plain.within_slo - 0.005


@pytest.mark.parametrize("cold_start_s", COLD_STARTS_S)
def test_replicas_that_start_one_by_one_are_at_most_one_more_than_are_ready(cold_start_s: float) -> None:
    parts = (3.0, 1800.0), (12.0, 5400.0)
    free, serial = (
        evenly(*parts, model=ReplicaModel(one_by_one=each, cold_start_s=cold_start_s), start=3)
        for each in (False, True)
    )
    assert max(each.desired - each.ready for each in free.log) > 1
    added = [after for before, after in pairwise(serial.log) if after.desired > before.desired]
    assert len(added) >= 5
    assert all(each.desired == each.ready + 1 for each in added)
    starts = [each.time_s for each in added]
    assert all(cold_start_s <= later - earlier for earlier, later in pairwise(starts))
    if cold_start_s < 300:
        assert min(later - earlier for earlier, later in pairwise(starts)) <= cold_start_s + 15, "as soon as it may"
    assert serial.within_slo < free.within_slo
