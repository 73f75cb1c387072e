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
