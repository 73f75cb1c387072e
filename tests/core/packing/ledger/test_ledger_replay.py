"""A workload through filter, the best score, choose and put_pod goes where the simulator's packer puts it."""

import heapq
import math

import msgspec
import pytest

from tessera.core.cluster.snapshot import Node, NodeName, Share
from tessera.core.packing.ledger import Ledger, LedgerEntry
from tessera.core.workload.need import Need, PodKey
from tessera.sim.compare import simulate
from tessera.sim.engine import RunRules
from tessera.sim.workloads import Workload, departing, filling
from tessera.sim.workloads.synthetic import make, plain_nodes

Spot = tuple[NodeName, tuple[Share, ...]] | None


class Scheduler:
    """kube-scheduler with the ledger as its extender: nodes with cpu, memory and pods left, filter, the best score."""

    def __init__(self, workload: Workload) -> None:
        nodes = workload.snapshot.nodes
        in_order = sorted(range(len(nodes)), key=workload.rank.__getitem__)
        self.nodes = [nodes[at] for at in in_order]
        self.ledger = Ledger()
        for node in self.nodes:
            self.ledger.put_node(node)
        for need in workload.kinds:
            self.ledger.filter(need, ())

    def roomy(self, node: Node, need: Need) -> bool:
        requested = need.cpu_milli, need.memory_mib, 1
        return all(map(int.__ge__, self.ledger.free_resources(node.name), requested))

    def schedule(self, uid: str, need: Need) -> Spot:
        """Place a pod, or return None."""
        self.ledger.arrive(uid, need)
        fitting = self.ledger.filter(need, [node.name for node in self.nodes if self.roomy(node, need)]).fitting
        if not fitting:
            return None
        scores = self.ledger.scores(need, fitting)
        node = NodeName(fitting[scores.index(max(scores))])
        shares = self.ledger.choose(need, node)
        assert not isinstance(shares, str)
        self.ledger.put_pod(LedgerEntry(uid, PodKey(f"default/{uid}"), node, need, shares))
        return node, shares


def replayed(workload: Workload) -> list[Spot]:
    """Return where each arrival goes, pods leaving when their time has come; who does not fit is dropped."""
    scheduler = Scheduler(workload)
    leaving: list[tuple[float, int]] = []
    spots: list[Spot] = []
    for index, arrival in enumerate(workload.arrivals):
        while leaving and leaving[0][0] <= arrival.at_s:
            scheduler.ledger.drop_pod(str(heapq.heappop(leaving)[1]))
        spots.append(scheduler.schedule(str(index), workload.kinds[arrival.kind]))
        if spots[-1] and arrival.stay_s < math.inf:
            heapq.heappush(leaving, (arrival.at_s + arrival.stay_s, index))
    return spots


TRACE = make(plain_nodes(6), 3)
WORKLOADS = {
    "pods that stay, up to 130 % of the capacity": filling(TRACE, 7),
    "pods that come and go": departing(TRACE, 8, lifetimes=1.0),
}


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_the_replay_of_a_workload_is_the_simulation(workload: Workload) -> None:
    log = simulate(workload, "tessera", RunRules())
    nodes = workload.snapshot.nodes
    want = [spot and (nodes[spot.node].name, spot.shares) for spot in log.spots]
    assert replayed(workload) == want
    assert any(want)


def test_a_node_that_leaves_and_comes_back_while_pods_come_changes_nothing_of_the_replay() -> None:
    workload = WORKLOADS["pods that come and go"]
    scheduler, twin = Scheduler(workload), Scheduler(workload)
    other = msgspec.structs.replace(workload.snapshot.nodes[0], name=NodeName("passing"))
    for index, arrival in enumerate(workload.arrivals[:60]):
        scheduler.ledger.put_node(other)
        scheduler.ledger.drop_node("passing")
        need = workload.kinds[arrival.kind]
        assert scheduler.schedule(str(index), need) == twin.schedule(str(index), need)
