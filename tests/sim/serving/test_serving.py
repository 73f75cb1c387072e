"""Policies under a small trace: the published rule swings, Tessera's holds, the plan is below all of them."""

import json

import numpy as np
import pytest

from tessera.core.serving.autoscaler import ReplicaProposal
from tessera.core.serving.load import Load
from tessera.sim.serving.clairvoyant import clairvoyant
from tessera.sim.serving.compare import Comparison, compare, log_lines, rows
from tessera.sim.serving.policies import POLICIES
from tessera.sim.serving.replicas import Model, Replicas
from tessera.sim.serving.run import run
from tessera.sim.serving.traces import Requests

MODEL = Model()


@pytest.fixture(scope="module")
def found() -> Comparison:
    """Return three hours of 3 to 6 requests a second."""
    rng = np.random.default_rng(3)
    gaps = rng.gamma(0.25, 4.0, 48_000) / (4.5 + 1.5 * np.sin(np.arange(48_000) / 8000))
    times = np.cumsum(gaps) - gaps[0]
    kept = times < 3 * 3600
    count = int(kept.sum())
    requests = Requests(times[kept], rng.uniform(100, 2000, count), rng.uniform(20, 400, count))
    return compare(requests, MODEL, tuple(POLICIES), 16)


def test_each_policy_has_a_row_and_costs_more_than_the_plan(found: Comparison) -> None:
    table = {each.policy: each for each in rows(found)}
    assert list(table) == ["published", "waiting", "in-flight", "tessera"]
    assert found.plan.within_slo >= 0.99
    assert all(each.replica_hours > each.clairvoyant_replica_hours for each in table.values())
    assert table["tessera"].within_slo >= 0.99 > table["published"].within_slo
    assert table["tessera"].replica_hours < table["published"].replica_hours
    assert [each.lost for each in table.values()] == [0, 0, 0, 0]


def test_replica_hours_follow_from_the_log_but_for_what_drains(found: Comparison) -> None:
    lines = [json.loads(line) for line in log_lines(found)]
    for each in rows(found):
        own = [line for line in lines if line["policy"] == each.policy]
        assert own[0]["time_s"] == 0.0
        assert own[0]["desired"] == own[0]["ready"] == found.plan.warm
        assert len(own) == each.changes + 1
        ends = [*(line["time_s"] for line in own[1:]), found.requests.span_s]
        hours = sum(line["desired"] * (end - line["time_s"]) for line, end in zip(own, ends, strict=True)) / 3600
        assert hours - 0.001 <= each.replica_hours <= hours * 1.1


class Fixed:
    """So many replicas from a moment on."""

    def __init__(self, count: int) -> None:
        self.count = count

    def propose(self, _load: Load, _replicas: Replicas) -> ReplicaProposal:
        return ReplicaProposal(self.count, "")


def test_requests_that_wait_too_long_are_counted() -> None:
    """Eight slots, nine requests at once of ten seconds each, then one a minute later."""
    times = np.array([0.0] * 9 + [60.0])
    found = run(times, np.full(10, 10.0), MODEL, Fixed(1), 1)
    assert (found.within_slo, found.changes) == (0.9, 0)
    assert found.replica_hours == pytest.approx(60 / 3600)


def test_requests_without_a_replica_are_late_until_one_starts() -> None:
    times = np.arange(0.0, 300.0, 10.0)
    found = run(times, np.full(30, 1.0), MODEL, Fixed(1), 0)
    late = (15 + MODEL.cold_start_s) // 10 + 1
    assert found.within_slo == pytest.approx(1 - late / 30, abs=0.07)
    assert run(times, np.full(30, 1.0), MODEL, Fixed(0), 0).within_slo == 0


def test_requests_that_are_cut_off_are_lost_and_late() -> None:
    times = np.array([0.0, 40.0])
    found = run(times, np.array([100.0, 1.0]), Model(grace_s=10.0), Fixed(0), 1)
    assert (found.lost, found.within_slo) == (1, 0.0)


def test_a_plan_has_the_fewest_replicas_of_each_step() -> None:
    """Ten minutes of nothing but one request a minute, ten of 40 in flight."""
    times = np.concatenate([np.arange(0, 600, 60.0), np.arange(600, 1200, 0.1)])
    plan = clairvoyant(times, np.full(len(times), 4.0), MODEL, 16)
    assert (plan.step_s, set(plan.replicas[:9]), set(plan.replicas[12:20])) == (60.0, {1}, {5})
    assert clairvoyant(times, np.full(len(times), 4.0), MODEL, 3).within_slo < 0.99


def test_a_trace_of_one_request_has_a_plan_and_rows() -> None:
    one = np.zeros(1)
    found = rows(compare(Requests(one, one, one), MODEL, tuple(POLICIES), 16))
    assert {(each.within_slo, each.changes, each.replica_hours) for each in found} == {(1.0, 0, 0.0)}


def test_a_plan_has_no_more_replicas_than_there_may_be_however_long_requests_take() -> None:
    plan = clairvoyant(np.array([0.0, 1.0]), np.array([1e300, 1.0]), MODEL, 16)
    assert max(plan.replicas) <= 16


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
