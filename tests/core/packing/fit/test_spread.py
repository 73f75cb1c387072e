"""Values by GPU type over a fleet: those of a fresh fleet, however its nodes change meanwhile."""

import numpy as np
import pytest

from builders.fleets import A100, T4, gpu, node
from tessera.core.cluster.snapshot import Snapshot
from tessera.core.packing.fit import Fleet
from tessera.core.packing.fit.spread import Spread


@pytest.mark.parametrize("first", [False, True])
def test_each_gpu_has_the_value_of_its_type_also_after_its_node_changes(*, first: bool) -> None:
    nodes = (node("a", gpu(0, A100), gpu(1, T4)), node("b", gpu(0, T4), gpu(1, T4)))
    fleet = Fleet.of(Snapshot(nodes=nodes))
    table = 10 * np.arange(len(fleet.types))
    spread = Spread(fleet, table, first=first)
    want = table[fleet.kind[0] if first else fleet.kind]
    assert spread.values.tolist() == want.tolist()
    # Another node's GPUs change places.
    fleet.kind[:, 1] = fleet.kind[::-1, 0]
    fleet.rewired.append(1)
    want = table[fleet.kind[0] if first else fleet.kind]
    assert spread.values.tolist() == want.tolist()
    assert spread.values.tolist() == want.tolist(), "once more without a change"


def test_without_gpus_the_first_one_is_of_the_absent_type() -> None:
    fleet = Fleet.of(Snapshot(nodes=(node("a"), node("b"))))
    assert Spread(fleet, np.array([7]), first=True).values.tolist() == [7, 7]
    assert Spread(fleet, np.array([7])).values.size == 0
