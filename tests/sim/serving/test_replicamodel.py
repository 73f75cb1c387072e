"""Replicas under requests: who serves what when, against a plain queue worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.sim.serving.replicamodel import ReplicaModel, Replicas

ONE = ReplicaModel(slots=1)


def test_one_replica_serves_in_order() -> None:
    replicas = Replicas(ONE, 1)
    assert [replicas.put(at_s, 4.0) for at_s in (0.0, 1.0, 10.0, 10.0)] == [0.0, 3.0, 0.0, 4.0]
    replicas.advance_to(9.0)
    assert (replicas.completed, replicas.served_s) == (2, 8.0)
    assert [(each.completed, each.queued_s) for each in replicas.live] == [(2, 3.0)]


def test_the_replica_that_serves_first_gets_it() -> None:
    replicas = Replicas(ONE, 2)
    assert [replicas.put(0.0, length) for length in (9.0, 3.0, 1.0)] == [0.0, 0.0, 3.0]
    assert replicas.waiting(1.0) == 1
    assert replicas.waiting(3.0) == 0


def test_requests_wait_for_the_first_replica_to_start() -> None:
    replicas = Replicas(ONE, 0)
    assert replicas.put(0.0, 2.0) is None
    replicas.scale(0.0, 1, start_s=10.0)
    assert (replicas.in_flight(), replicas.waiting(5.0), replicas.release(5.0)) == (1, 1, [])
    assert replicas.release(15.0) == [15.0]
    assert replicas.ready(15.0) == 1


def test_those_that_have_not_started_go_first_then_the_least_busy() -> None:
    replicas = Replicas(ReplicaModel(slots=2), 2)
    replicas.put(0.0, 5.0)
    busy = replicas.live[0]
    replicas.scale(0.0, 3, start_s=60.0)
    replicas.scale(1.0, 2, start_s=60.0)
    assert all(each.ready_s == 0.0 for each in replicas.live)
    replicas.scale(2.0, 1, start_s=60.0)
    assert replicas.live == [busy]
    assert replicas.draining == []


def test_a_replica_that_goes_serves_what_it_has_within_its_grace_period() -> None:
    replicas = Replicas(ReplicaModel(slots=1, grace_s=6.0), 1)
    for length in (4.0, 4.0):
        replicas.put(0.0, length)
    replicas.scale(1.0, 0, start_s=0.0)
    replicas.advance_to(5.0)
    assert (replicas.completed, len(replicas.draining), replicas.lost) == (1, 1, 0)
    replicas.advance_to(7.0)
    assert (replicas.completed, len(replicas.draining), replicas.lost) == (1, 0, 1)


@given(
    requests=st.lists(st.tuples(st.floats(0, 5), st.floats(0.01, 9)), min_size=1, max_size=60),
    count=st.integers(1, 4),
    slots=st.integers(1, 3),
)
def test_every_request_is_served_once_and_no_slot_twice(
    requests: list[tuple[float, float]], count: int, slots: int
) -> None:
    """A request waits exactly as in one queue before all slots, for each replica's queue is in order of arrival."""
    replicas, free, now_s = Replicas(ReplicaModel(slots=slots), count), [0.0] * (count * slots), 0.0
    for pause_s, length in requests:
        now_s += pause_s
        first = free.index(min(free))
        start_s = max(now_s, free[first])
        free[first] = start_s + length
        assert replicas.put(now_s, length) == pytest.approx(start_s - now_s)
    replicas.advance_to(1e9)
    assert (replicas.completed, replicas.in_flight(), replicas.lost) == (len(requests), 0, 0)


def test_what_ends_after_the_grace_period_is_lost_however_late_that_is_looked_at() -> None:
    replicas = Replicas(ReplicaModel(slots=1, grace_s=6.0), 1)
    for length in (4.0, 4.0):
        replicas.put(0.0, length)
    replicas.scale(1.0, 0, start_s=0.0)
    replicas.advance_to(15.0)
    assert (replicas.completed, len(replicas.draining), replicas.lost) == (1, 0, 1)
