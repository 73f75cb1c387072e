"""The plan of who knows all arrivals."""

import numpy as np

from tessera.sim.serving.clairvoyant import clairvoyant
from tessera.sim.serving.replicamodel import ReplicaModel

MODEL = ReplicaModel()


def test_a_plan_has_the_fewest_replicas_of_each_step() -> None:
    """Ten minutes of nothing but one request a minute, ten of 40 in flight."""
    times = np.concatenate([np.arange(0, 600, 60.0), np.arange(600, 1200, 0.1)])
    plan = clairvoyant(times, np.full(len(times), 4.0), MODEL, 16)
    assert (plan.step_s, set(plan.replicas[:9]), set(plan.replicas[12:20])) == (60.0, {1}, {5})
    assert clairvoyant(times, np.full(len(times), 4.0), MODEL, 3).within_slo < 0.99


def test_a_plan_has_no_more_replicas_than_there_may_be_however_long_requests_take() -> None:
    plan = clairvoyant(np.array([0.0, 1.0]), np.array([1e300, 1.0]), MODEL, 16)
    assert max(plan.replicas) <= 16


def test_a_plan_leaves_to_later_steps_what_may_wait_for_them() -> None:
    """320 requests of 10 s in the first minute, none for ten minutes: a replica of 8 slots has served them in seven."""
    times = np.array([0.0] * 320 + [660.0])
    plan = clairvoyant(times, np.full(len(times), 10.0), ReplicaModel(slo_s=3600.0), 16)
    assert set(plan.replicas) == {1}
