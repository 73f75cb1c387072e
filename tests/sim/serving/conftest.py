"""A comparison of all policies, made once."""

import numpy as np
import pytest

from tessera.sim.serving.compare import Comparison, compare
from tessera.sim.serving.policies import POLICIES
from tessera.sim.serving.replicamodel import ReplicaModel
from tessera.sim.serving.traces import Requests


@pytest.fixture(scope="session")
def found() -> Comparison:
    """Return three hours of 3 to 6 requests a second."""
    rng = np.random.default_rng(3)
    gaps = rng.gamma(0.25, 4.0, 48_000) / (4.5 + 1.5 * np.sin(np.arange(48_000) / 8000))
    times = np.cumsum(gaps) - gaps[0]
    kept = times < 3 * 3600
    count = int(kept.sum())
    requests = Requests(times[kept], rng.uniform(100, 2000, count), rng.uniform(20, 400, count))
    return compare(requests, ReplicaModel(), tuple(POLICIES), 16)
