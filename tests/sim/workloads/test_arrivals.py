"""The arrivals of a seed, against the protocol written out a second time in plain Python."""

import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.fleets import node
from tessera.core.cluster.snapshot import Gpu
from tessera.core.gpu.gpumodels import GpuModel
from tessera.core.workload.need import DeviceRequest, Form, Need
from tessera.errors import InvalidInput
from tessera.sim.workloads import Trace, departing, filling

MODEL = GpuModel(name="T4", arch="Turing", memory_mib=0)


def need(milli: int) -> Need:
    """Return a need of so many thousandths of a GPU; above 1000, of whole GPUs."""
    if milli == 0:
        return Need(cpu_milli=1)
    if milli >= 1000:
        return Need(cpu_milli=1, requests=(DeviceRequest(resource="nvidia.com/gpu", count=milli // 1000),))
    return Need(cpu_milli=1, requests=(DeviceRequest(resource="milli", form=Form.SHARE, compute_percent=milli // 10),))


def trace_of(millis: Iterable[int], gpus: int = 8) -> Trace:
    pods = [(f"pod-{index:03}", need(milli)) for index, milli in enumerate(millis)]
    return Trace.of(
        "tiny",
        [node("n", *(Gpu(index=index, model=MODEL, memory_mib=0) for index in range(gpus))), node("m")],
        reversed(pods),
    )


def protocol(millis: list[int], capacity: int, seed: int, ratio: float) -> list[int]:
    """Return the pods that arrive, as their number in name order: facts of the artifact, said in plain Python."""
    rng = random.Random(seed)
    pods = list(range(len(millis)))
    rng.shuffle(pods)
    total = sum(millis)
    if total < ratio * capacity:
        while True:
            pod = rng.choice(range(len(millis)))
            if total + min(1000, millis[pod]) > ratio * capacity:
                break
            pods.append(pod)
            total += millis[pod]
    else:
        while total > ratio * capacity:
            total -= millis[pods.pop(rng.randrange(len(pods)))]
    return pods


SIZES = st.lists(st.sampled_from([0, 50, 460, 810, 1000, 2000, 4000]), min_size=1, max_size=30).filter(any)


@given(SIZES, st.integers(0, 9), st.sampled_from([0.3, 1.0, 1.3]))
def test_filling_is_the_protocol_in_the_order_of_its_stream(millis: list[int], seed: int, ratio: float) -> None:
    trace = trace_of(millis)
    got = filling(trace, seed, ratio)
    want = [f"pod-{pod:03}" for pod in protocol(millis, 8000, seed, ratio)]
    assert [arrival.pod for arrival in got.arrivals] == want
    assert [arrival.at_s for arrival in got.arrivals] == list(range(len(want)))
    assert all(trace.kinds[arrival.kind] == need(millis[int(arrival.pod[-3:])]) for arrival in got.arrivals)


def test_the_order_of_ties_follows_the_draws_in_the_stream() -> None:
    millis = [460, 810, 1000]
    rng = random.Random(7)
    rng.shuffle([0, 1, 2])
    total, draws = 2270, 0
    while True:
        drawn = rng.randrange(3)
        if total + millis[drawn] > 1.3 * 8000:
            break
        total, draws = total + millis[drawn], draws + 1
    want = [0, 1]
    rng.shuffle(want)
    got = filling(trace_of(millis), 7)
    assert (len(got.arrivals), got.rank) == (3 + draws, tuple(want))


def test_demand_above_the_target_deletes_and_keeps_the_order() -> None:
    got = filling(trace_of([1000] * 20), 1, ratio=1.3)
    assert len(got.arrivals) == 10
    order = list(range(20))
    random.Random(1).shuffle(order)
    kept = [int(arrival.pod[-3:]) for arrival in got.arrivals]
    assert kept == [pod for pod in order if pod in kept]


def test_a_multi_gpu_draw_may_pass_the_target_by_its_other_gpus() -> None:
    """The artifact compares with the demand on one GPU, so the last draw may overshoot; nothing is deleted for it."""
    got = filling(trace_of([4000], gpus=6), 0, ratio=1.0)
    assert len(got.arrivals) == 2


def test_departing_offers_its_load() -> None:
    trace = trace_of([500, 1000, 0, 2000], gpus=1000)
    got = departing(trace, 3, load=1.0, lifetimes=2.0, lifetime_s=100.0)
    first, later = got.arrivals[: got.warm], got.arrivals[got.warm :]
    milli = got.demands
    assert {arrival.at_s for arrival in first} == {0.0}
    assert 990_000 < sum(milli[arrival.kind].milli for arrival in first) <= 1_001_000
    assert sum(milli[arrival.kind].milli for arrival in later) == pytest.approx(2_000_000, rel=0.1)
    assert sum(arrival.stay_s for arrival in got.arrivals) / len(got.arrivals) == pytest.approx(100.0, rel=0.1)
    times = [arrival.at_s for arrival in later]
    assert times == sorted(times)
    assert times[-1] < got.end_s == 200.0


def test_the_same_seed_gives_the_same_workload_and_another_seed_another() -> None:
    trace = trace_of([460, 810, 1000, 0, 2000])
    for make in (filling, departing):
        assert make(trace, 5) == make(trace, 5)
        assert make(trace, 5) != make(trace, 6)


REFUSED = {
    "a ratio of nothing": (lambda: filling(trace_of([1000]), 0, 0.0), "ratio of arrivals to capacity: 0"),
    "a ratio that is not a number": (lambda: filling(trace_of([1000]), 0, float("nan")), "nan"),
    "a load beyond reason": (lambda: departing(trace_of([1000]), 0, 1000.0), "offered load: 1000"),
    "no lifetime": (lambda: departing(trace_of([1000]), 0, lifetimes=0), "lifetimes measured: 0"),
    "a trace without GPU pods": (lambda: filling(trace_of([0]), 0), "trace tiny: it has no pod that requests GPUs"),
}


@pytest.mark.parametrize(("make", "want"), REFUSED.values(), ids=REFUSED.keys())
def test_settings_that_make_no_sense_are_refused(make: object, want: str) -> None:
    assert callable(make)
    with pytest.raises(InvalidInput, match=want):
        make()
