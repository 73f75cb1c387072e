"""The potentials against plain sums over pods and GPUs, and the changes of value against differences."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.fleets import A100, T4, amount, gpu, node
from tessera.core.cluster.snapshot import Snapshot
from tessera.core.packing.fit import Fleet
from tessera.core.packing.fit.fragmentation import Typical, percent_of, typical
from tessera.core.packing.pack.cuttingstock import CuttingStock
from tessera.core.packing.pack.potentials import UNIT, NodeValue, Usable
from tessera.core.workload.need import DeviceRequest, Need

FLEET = Fleet.of(Snapshot(nodes=(node("a", gpu(0), gpu(1)), node("b", gpu(0, T4), gpu(1, T4)), node("c"))))
NODES = np.arange(3)
NEEDS = st.builds(
    lambda mib, cpu, models, whole: Need(
        cpu_milli=cpu,
        models=models,
        requests=(DeviceRequest(resource="nvidia.com/gpu", count=whole),) if whole else amount(mib).requests,
    ),
    st.integers(1000, 20_000),
    st.integers(0, 9000),
    st.sampled_from(((), (T4.name,))),
    st.integers(0, 2),
)
MIXES = st.lists(st.tuples(NEEDS, st.integers(1, 9)), max_size=5)
LEFT = st.lists(st.lists(st.integers(0, 100), min_size=3, max_size=3), min_size=2, max_size=2)


def usable(pods: tuple[Typical, ...], left: list[int], kind: int, cpu: int) -> int:
    """Return what the pods can use of one node, pod by pod."""
    total = 0
    gpu_type = FLEET.types[kind]
    for pod in pods:
        size = percent_of(pod.requests, gpu_type) if not pod.models or gpu_type.model.name in pod.models else None
        if not size:
            continue
        if pod.gpus == 1:
            fills = -(-100 * pod.cpu_milli // size)
            fed = [own for n, own in enumerate(sorted(left, reverse=True), 1) if n * fills <= cpu]
            total += pod.weight * sum(own for own in fed if own >= size)
        elif left.count(100) >= pod.gpus:
            groups = range(0, left.count(100), pod.gpus)
            fed = [min(pod.gpus, left.count(100) - at) for n, at in enumerate(groups, 1) if n * pod.cpu_milli <= cpu]
            total += pod.weight * 100 * sum(fed)
    return total


@settings(max_examples=60, deadline=None)
@given(MIXES, LEFT, st.integers(-1000, 30_000))
def test_usable_equals_the_sum_over_pods(mix: list[tuple[Need, int]], left: list[list[int]], cpu: int) -> None:
    pods = typical(mix)
    got = Usable(FLEET, pods).of(NODES, np.array(left), np.full(3, cpu))
    kinds = FLEET.kind[0].tolist()
    want = [usable(pods, [left[0][n], left[1][n]], kinds[n], cpu) if kinds[n] else 0 for n in range(3)]
    assert got.tolist() == want


@settings(max_examples=60, deadline=None)
@given(MIXES, LEFT, st.integers(0, 30_000), st.integers(0, 100))
def test_changes_of_value_are_differences(
    mix: list[tuple[Need, int]], left: list[list[int]], cpu: int, size: int
) -> None:
    value = NodeValue(FLEET, typical(mix), CuttingStock())
    now, cpus = np.array(left), np.full(3, cpu)
    sizes = np.full((2, 3), size)
    changes = value.lost_by_each(NODES, now, sizes, (cpus, cpus - 500))
    for row in range(2):
        after = now.copy()
        after[row] -= np.minimum(size, after[row])
        want = value.of(NODES, after, cpus - 500) - value.of(NODES, now, cpus)
        assert changes[row].tolist() == want.tolist()


def test_an_optimal_cutting_is_worth_its_gpus_and_named_models_more() -> None:
    halves = Need(cpu_milli=0, requests=amount(T4.memory_mib // 2).requests)
    free = np.full((2, 3), 100)
    plain = NodeValue(FLEET, typical([(halves, 5)]), CuttingStock()).of(NODES, free, np.zeros(3, dtype=np.int64))
    worth = 2 * UNIT * 21 // 20  # free GPUs are worth a twentieth more
    assert plain[:2].tolist() == [worth, worth * 38 // 100], "a T4 has 38 percent of the A100's memory"
    named = Need(models=(A100.name,), requests=(DeviceRequest(resource="nvidia.com/gpu"),))
    both = NodeValue(FLEET, typical([(halves, 5), (named, 5)]), CuttingStock())
    assert both.of(NODES, free, np.full(3, 10**6))[0] > 2 * UNIT
