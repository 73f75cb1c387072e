"""A run of replicas under arrivals: what waits, what is late, and what is cut off."""

import numpy as np
import pytest

from tessera.core.serving.autoscaling.autoscaler import ReplicaProposal
from tessera.core.serving.metrics.load import Load
from tessera.sim.serving.replicamodel import ReplicaModel, Replicas
from tessera.sim.serving.run import run

MODEL = ReplicaModel()


class Fixed:
    """So many replicas from a moment on."""

    def __init__(self, count: int) -> None:
        self.count = count

    def propose(self, _load: Load, _replicas: Replicas) -> ReplicaProposal:
        return ReplicaProposal(self.count, "")


class Turns:
    """These replicas, one number after the other; then the last."""

    def __init__(self, counts: list[int]) -> None:
        self.counts = counts

    def propose(self, _load: Load, _replicas: Replicas) -> ReplicaProposal:
        return ReplicaProposal(self.counts.pop(0) if len(self.counts) > 1 else self.counts[0], "")


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
    found = run(times, np.array([100.0, 1.0]), ReplicaModel(grace_s=10.0), Fixed(0), 1)
    assert (found.lost, found.within_slo) == (1, 0.0)


def test_a_grace_period_of_nothing_loses_what_is_served() -> None:
    found = run(np.array([0.0, 40.0]), np.array([20.0, 1.0]), ReplicaModel(grace_s=0.0), Fixed(0), 1)
    assert found.lost == 1


def test_requests_that_drain_when_the_last_one_comes_are_lost_too() -> None:
    found = run(np.array([0.0, 16.0]), np.array([100.0, 1.0]), ReplicaModel(grace_s=60.0), Fixed(0), 1)
    assert found.lost == 1


@pytest.mark.parametrize(("start", "counts", "lost", "within"), [(1, [0], 1, 1 / 3), (0, [1, 0], 2, 0.0)])
def test_a_request_that_waited_too_long_and_is_cut_off_is_late_once(
    start: int, counts: list[int], lost: int, within: float
) -> None:
    """It waits in a replica, or before there is one: then it comes to the first replica, which goes again."""
    model = ReplicaModel(slots=1, grace_s=10.0, cold_start_s=0.0)
    found = run(np.array([0.0, 0.0, 60.0]), np.array([20.0, 20.0, 1.0]), model, Turns(counts), start)
    assert found.lost == lost
    assert found.within_slo == pytest.approx(within)
