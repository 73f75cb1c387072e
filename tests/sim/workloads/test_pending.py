"""Pending pods as a workload, on a fleet where others run already."""

import pytest

from builders.fleets import pod_of
from builders.shares import whole
from tessera.core.cluster.snapshot import Assignment, NodeName, Running, Snapshot
from tessera.core.workload.need import DeviceRequest, Need
from tessera.errors import InvalidInput
from tessera.sim.compare import simulate
from tessera.sim.engine import RunRules
from tessera.sim.metrics import measure
from tessera.sim.workloads.pending import in_order
from tessera.sim.workloads.synthetic import plain_nodes

WHOLE = Need(requests=(DeviceRequest(resource="nvidia.com/gpu"),))
SHARE = whole(0, 0)


def test_pods_arrive_in_their_order_beside_what_runs() -> None:
    (node,) = plain_nodes(1)
    running = pod_of(WHOLE, "default/old")
    assignment = Assignment(pod=running.key, node=NodeName(node.name), shares=(SHARE,))
    pending = tuple(pod_of(WHOLE, f"default/{name}") for name in "zyxwvuts")
    there = (Running(pod=running, assignment=assignment),)
    workload = in_order(Snapshot(nodes=(node,), running=there, pending=pending))
    assert [arrival.pod for arrival in workload.arrivals] == [pod.key for pod in pending]
    assert (workload.mix, workload.running_milli) == (((WHOLE, 8),), 1000)
    log = simulate(workload, "first-fit", RunRules())
    assert [spot.shares[0].gpu for spot in log.spots if spot] == [1, 2, 3, 4, 5, 6, 7]
    assert measure(log).curve.allocated_percent[-1] == 100.0


def test_nothing_to_simulate_is_refused() -> None:
    with pytest.raises(InvalidInput, match="workload: it has no pods"):
        in_order(Snapshot(nodes=plain_nodes(1)))
