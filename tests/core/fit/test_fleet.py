"""What a fleet refuses to start from, and the corners of a demand."""

import numpy as np
import pytest

from fleets import A100, T4, amount, gpu, node, pods
from tessera.core.fit import Demand, Fleet
from tessera.core.need import Isolation
from tessera.core.sharing import Mode
from tessera.core.snapshot import Assignment, Node, NodeName, Running, Share, Snapshot
from tessera.errors import InvalidInput


def running(where: str, *shares: Share) -> Running:
    (pod,) = pods(amount(1024), 1)
    return Running(pod=pod, assignment=Assignment(pod=pod.key, node=NodeName(where), shares=shares))


def share(
    memory_mib: int, mode: Mode = Mode.MEMORY_SHARE, profile: str | None = None, start: int | None = None
) -> Share:
    return Share(
        gpu=0,
        mode=mode,
        profile=profile,
        start=start,
        memory_mib=memory_mib,
        compute_percent=0,
        isolation=Isolation.NONE,
        resource="tessera.dev/gpu-memory",
    )


ONE = node("a", gpu(0))
REFUSED: dict[str, tuple[tuple[Node, ...], tuple[Running, ...], str]] = {
    "two nodes of a name": ((ONE, node("b"), ONE), (), "node a: found two nodes of this name"),
    "a pod on a node that is not there": ((ONE,), (running("b"),), "pod default/p-0: found node b, wanted a node of"),
    "more memory than the GPU has": (
        (ONE,),
        (running("a", share(1 << 20)),),
        r"pod default/p-0 on node a: found a share of GPU 0: 1048576 MiB, 0 % compute \(memory-share\)",
    ),
    "an instance where none can be": (
        (ONE,),
        (running("a", share(1, Mode.MIG, "1g.5gb", 7)),),
        r"pod default/p-0 on node a: found a share of GPU 0: 1g.5gb at 7 \(mig\)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_snapshot_that_cannot_be_is_refused(case: str) -> None:
    nodes, held, want = REFUSED[case]
    with pytest.raises(InvalidInput, match=want):
        Fleet.of(Snapshot(nodes=nodes, running=held))


def test_a_need_for_more_gpus_than_any_node_has_ranks_no_node_above_another() -> None:
    fleet = Fleet.of(Snapshot(nodes=(node("a", gpu(0), gpu(1, T4)), node("b", gpu(0, A100)))))
    nodes = np.arange(2)
    demand = Demand(amount(1024, count=3), fleet)
    assert demand.fits(fleet, nodes).tolist() == [False, False]
    tiers = demand.tiers(fleet, nodes)
    assert tiers is not None
    assert tiers.tolist() == [0, 0]
