"""The figure of a comparison of autoscaling policies."""

import numpy as np

from tessera.sim.report.replicafigures import replica_figures
from tessera.sim.serving.compare import compare
from tessera.sim.serving.replicamodel import ReplicaModel
from tessera.sim.serving.traces import Requests


def test_each_policy_has_a_panel_with_its_name_in_both_formats() -> None:
    times = np.arange(0.0, 600.0, 2.0)
    requests = Requests(times, np.full(300, 500.0), np.full(300, 100.0))
    drawn = dict(replica_figures(compare(requests, ReplicaModel(), ("published", "tessera"), 4)))
    assert list(drawn) == ["replicas.png", "replicas.svg"]
    assert drawn["replicas.png"].startswith(b"\x89PNG")
    assert all(name in drawn["replicas.svg"] for name in (b"published", b"tessera"))
