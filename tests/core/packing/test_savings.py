"""What sharing saves: GPUs in use beside what the same containers would take alone, and money."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.fleets import A100, T4, amount, gpu, node, plain_share, pod_of, pods, slices
from builders.shares import share
from tessera.core.cluster.snapshot import Assignment, Running, Snapshot
from tessera.core.packing.plan import plan
from tessera.core.packing.savings import Cost, ModelGpus, cost, gpu_use
from tessera.core.workload.need import DeviceRequest, Need, Pod

WHOLE = Need(requests=(DeviceRequest(resource="nvidia.com/gpu"),))
TWO = Need(requests=tuple(DeviceRequest(resource="nvidia.com/mig-1g.5gb", container=name) for name in "ab"))

# Keyed by a sentence: the pods on two A100 and a T4; GPUs in use, and without sharing.
CASES: dict[str, tuple[tuple[Pod, ...], int, int]] = {
    "nobody": ((), 0, 0),
    "whole GPUs save nothing": (pods(WHOLE, 3), 3, 3),
    "seven instances of one GPU": (pods(slices("1g.5gb"), 7), 1, 7),
    "several instances of one container on one GPU are one": (pods(slices("1g.5gb", 3), 2), 1, 2),
    "containers of one pod count each": (pods(TWO, 1), 1, 2),
    "a share on each of two GPUs is two": (pods(amount(20_000, count=2), 1), 2, 2),
    "pending pods count nowhere": (pods(WHOLE, 9), 3, 3),
}


@pytest.mark.parametrize("case", CASES)
def test_gpus_in_use_and_without_sharing(case: str) -> None:
    pending, want_used, want_unshared = CASES[case]
    snapshot = Snapshot(nodes=(node("n", gpu(0), gpu(1), gpu(2, T4)),), pending=pending)
    got = gpu_use(plan(snapshot).layouts)
    assert [(each.model, each.gpus) for each in got] == [("A100-40GB", 2), ("T4", 1)]
    assert (sum(each.used for each in got), sum(each.unshared for each in got)) == (want_used, want_unshared)


def test_running_pods_count_and_those_without_a_known_gpu_do_not() -> None:
    known, unknown = pods(plain_share(1000), 2)
    running = (
        Running(pod=known, assignment=Assignment(pod=known.key, node=node("n").name, shares=(share(0),))),
        Running(pod=unknown, assignment=Assignment(pod=unknown.key, node=node("n").name)),
    )
    snapshot = Snapshot(nodes=(node("n", gpu(0)),), running=running, pending=pods(plain_share(1000), 1, "q"))
    assert gpu_use(plan(snapshot).layouts) == (ModelGpus(model=A100.name, gpus=1, used=1, unshared=2),)


USE = (ModelGpus(model="A", gpus=8, used=2, unshared=9), ModelGpus(model="B", gpus=4, used=4, unshared=5))


def test_money_is_summed_over_the_models_with_a_price() -> None:
    assert cost(USE, {"A": 2.5, "B": 0.1}) == Cost(fleet=20.4, used=5.4, unshared=23.0)
    assert cost(USE, {"A": 2.5, "C": 1}) == Cost(fleet=20.0, used=5.0, unshared=22.5, unpriced=("B",))


@given(st.lists(st.sampled_from([WHOLE, TWO, slices("2g.10gb"), amount(9000), plain_share(3000)]), max_size=12))
def test_sharing_never_takes_more(needs: list[Need]) -> None:
    pending = tuple(pod_of(need, f"ns/{n}") for n, need in enumerate(needs))
    made = plan(Snapshot(nodes=(node("n", gpu(0), gpu(1, T4)), node("m", gpu(0))), pending=pending))
    for each in gpu_use(made.layouts):
        assert each.used <= min(each.gpus, each.unshared)
    alone = msgspec.structs.replace(made, layouts=made.layouts[:0])
    assert gpu_use(alone.layouts) == ()
