"""Fragmentation: the tables against the explained losses, and what counts as typical."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.profiles import profile
from builders.requests import gpushare
from tessera.core.cluster.gputypes import GpuType
from tessera.core.cluster.snapshot import Gpu, Node, NodeName
from tessera.core.gpu.gpumodels import GpuModel
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.packing.fit import Fleet
from tessera.core.packing.fit.fragmentation import Fragmentation, Lost, Typical, percent_of, typical
from tessera.core.packing.pack import Packer
from tessera.core.workload.need import DeviceRequest, Form, Isolation, Need

HALF = profile("1g.8gb", 1, (0, 1), 8_000)
HALVED = GpuModel(name="halved", arch="", memory_mib=16_000, memory_slices=2, compute_slices=2, profiles=(HALF,))
PLAIN = GpuModel(name="plain", arch="", memory_mib=0)
WHOLE = DeviceRequest(resource="nvidia.com/gpu")


def compute(percent: int, memory_mib: int = 0) -> DeviceRequest:
    return gpushare(memory_mib, compute_percent=percent)


def gpus(model: GpuModel, count: int, **sharing: object) -> tuple[Gpu, ...]:
    own = Sharing(**sharing)  # type: ignore[arg-type] # fields by name
    return tuple(Gpu(index=i, model=model, memory_mib=model.memory_mib, sharing=own) for i in range(count))


NODES = (
    Node(name=NodeName("a"), cpu_milli=8_000, memory_mib=100, gpus=gpus(HALVED, 4)),
    Node(
        name=NodeName("b"), cpu_milli=2_000, memory_mib=100, gpus=gpus(PLAIN, 2, modes=(Mode.WHOLE, Mode.MEMORY_SHARE))
    ),
    Node(name=NodeName("c"), cpu_milli=8_000, memory_mib=100),
    Node(
        name=NodeName("d"),
        cpu_milli=8_000,
        memory_mib=100,
        gpus=(*gpus(PLAIN, 1), Gpu(index=1, model=HALVED, memory_mib=16_000)),
    ),
)
PODS = st.sampled_from(
    (
        Need(cpu_milli=1_000),
        Need(cpu_milli=3_000, requests=(WHOLE,)),
        Need(cpu_milli=500, requests=(DeviceRequest(resource="nvidia.com/gpu", count=2),)),
        Need(cpu_milli=500, requests=(DeviceRequest(resource="nvidia.com/gpu", count=2),), models=("halved",)),
        Need(cpu_milli=500, requests=(compute(30),)),
        Need(cpu_milli=1_500, requests=(compute(80),), models=("plain",)),
        Need(requests=(compute(10, 9_000),)),
        Need(requests=(DeviceRequest(resource="nvidia.com/mig-1g.8gb"),)),
        Need(requests=(WHOLE, compute(20))),
    )
)


@settings(max_examples=80, deadline=None)
@given(
    mix=st.lists(st.tuples(PODS, st.integers(1, 5)), min_size=1, max_size=5),
    arrivals=st.lists(PODS, max_size=8),
)
def test_the_explained_losses_add_up_to_the_amount(mix: list[tuple[Need, int]], arrivals: list[Need]) -> None:
    fleet = Fleet(NODES)
    packer = Packer(fleet, "first-fit")
    for need in arrivals:
        packer.place(packer.intern(need))
    measure = Fragmentation(fleet, typical(mix))
    amount = measure.amount(fleet, np.arange(len(NODES)))
    for node in range(len(NODES)):
        losses = measure.explain(fleet, node)
        assert 10 * amount[node] == sum(loss.milli * loss.pod.weight for loss in losses)
        assert all(0 <= loss.milli <= 10 * fleet.remaining[:, node].sum() for loss in losses)


def test_losses_say_why() -> None:
    fleet = Fleet(NODES)
    packer = Packer(fleet, "first-fit")
    for _ in range(3):
        packer.place(packer.intern(Need(node_name="a", requests=(WHOLE,))))
    packer.place(packer.intern(Need(node_name="a", requests=(compute(40),))))
    mix = [
        (Need(), 1),
        (Need(requests=(compute(70),)), 1),
        (Need(requests=(compute(50),)), 1),
        (Need(requests=(DeviceRequest(resource="nvidia.com/gpu", count=2),)), 1),
        (Need(requests=(WHOLE,), models=("other",)), 1),
        (Need(cpu_milli=9_000, requests=(WHOLE,)), 1),
    ]
    losses = Fragmentation(fleet, typical(mix)).explain(fleet, 0)
    want = [(Lost.NO_GPU, 600), (Lost.SIZE, 600), (Lost.SIZE, 0), (Lost.COUNT, 600), (Lost.MODEL, 600), (Lost.CPU, 600)]
    assert [(loss.why, loss.milli) for loss in losses] == want


def test_typical_pods_are_the_most_frequent_until_they_cover_the_part_asked_for() -> None:
    whole, other, rare = Need(requests=(WHOLE,)), Need(cpu_milli=1), Need(cpu_milli=2)
    mix = ((rare, 5), (whole, 50), (other, 45))
    assert [pod.weight for pod in typical(mix)] == [50, 45, 5]
    assert [pod.weight for pod in typical(mix, cover_percent=95)] == [50, 45]
    assert [pod.weight for pod in typical(mix, cover_percent=96)] == [50, 45, 5]
    again = (*mix, (Need(memory_mib=7, requests=(WHOLE,)), 1))
    assert typical(again)[0] == Typical(0, (WHOLE,), (), 51)
    assert typical(()) == ()


# sentence: (asks, want: percent of a GPU of 16,000 MiB in two units)
SIZES = {
    "nothing": ((), 0),
    "a whole GPU": ((WHOLE,), 100),
    "compute": ((compute(30),), 30),
    "memory, rounded up": ((compute(10, 4_001),), 26),
    "an instance": ((DeviceRequest(resource="nvidia.com/mig-1g.8gb"),), 50),
    "the larger of two": ((compute(30), compute(20, 9_000)), 57),
    "not to be had": ((DeviceRequest(resource="nvidia.com/mig-7g.80gb"),), None),
    "one of two not to be had": ((compute(30), DeviceRequest(resource="nvidia.com/gpu.shared")), None),
    "a need with isolation takes an instance": (
        (DeviceRequest(resource="need", form=Form.NEED, memory_mib=100, isolation=Isolation.HARDWARE),),
        50,
    ),
}


@pytest.mark.parametrize("sentence", SIZES)
def test_size(sentence: str) -> None:
    requests, want = SIZES[sentence]
    assert percent_of(requests, GpuType.of(gpus(HALVED, 1)[0])) == want
