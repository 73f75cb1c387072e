"""Policies under traces: what sleeps, and what a wrong spec costs."""

import numpy as np

from tessera.sim.serving.compare import Comparison, compare, rows
from tessera.sim.serving.replicas import Model
from tessera.sim.serving.traces import Requests

MODEL = Model()


def test_with_an_idle_time_there_is_no_replica_between_bursts_and_no_request_is_lost() -> None:
    """Two bursts of ten minutes, four hours apart: the second waits for a cold start."""
    burst = np.arange(0.0, 600.0, 2.0)
    times = np.concatenate([burst, burst + 4 * 3600])
    requests = Requests(times, np.full(600, 500.0), np.full(600, 100.0))
    idle = Model(idle_s=900.0)
    stays, sleeps = (compare(requests, each, ["tessera"], 4).runs[0][1] for each in (MODEL, idle))
    assert [each.lost for each in (stays, sleeps)] == [0, 0]
    assert stays.within_slo == 1.0
    assert stays.replica_hours > 4
    assert sleeps.replica_hours < 1
    assert 0.85 < sleeps.within_slo < 0.95, "who comes during the cold start waits for it"
    changes = [(each.desired, each.reason) for each in sleeps.log[1:]]
    assert changes[0] == (0, "no request for 900 s, so no replica")
    assert changes[1][0] == 1
    assert changes[1][1].endswith("waiting, and there is no replica")
    gone, back = sleeps.log[1].time_s, sleeps.log[2].time_s
    assert 598 + 900 <= gone <= 598 + 900 + 60
    assert 4 * 3600 <= back <= 4 * 3600 + 15


def test_an_idle_time_changes_nothing_while_requests_come(found: Comparison) -> None:
    again = compare(found.requests, Model(idle_s=600.0), ["tessera"], 16).runs[0][1]
    assert dict(found.runs)["tessera"] == again


def test_a_spec_that_promises_more_slots_than_a_replica_has_costs_one_overload(found: Comparison) -> None:
    """What the policy is told counts until requests have waited for a minute; then come the replicas, for a while more
    than enough."""
    told = compare(found.requests, Model(spec_slots=256), ["in-flight", "tessera"], 16)
    plain, ours = rows(told)
    assert plain.within_slo < 0.5
    assert ours.within_slo > 0.95
    assert ours.replica_hours < 2 * ours.clairvoyant_replica_hours
