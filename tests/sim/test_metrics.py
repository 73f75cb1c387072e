"""Measures of runs whose numbers can be worked out by hand."""

import math

import msgspec
import pytest

from builders.shares import share
from tessera.core.cluster.snapshot import Gpu, Node, NodeName
from tessera.core.gpu.gpumodels import GpuModel
from tessera.core.gpu.sharing import Mode
from tessera.core.packing.pack import Choice
from tessera.core.workload.need import DeviceRequest, Form, Need
from tessera.sim.engine import Log, RunRules
from tessera.sim.metrics import MOMENTS, RunMetrics, measure
from tessera.sim.workloads import Arrival, Trace, Workload

T4 = GpuModel(name="T4", arch="Turing", memory_mib=0)
NEEDS = {
    "none": Need(cpu_milli=1),
    "half": Need(requests=(DeviceRequest(resource="milli", form=Form.SHARE, compute_percent=50),)),
    "one": Need(requests=(DeviceRequest(resource="nvidia.com/gpu"),)),
    "two": Need(requests=(DeviceRequest(resource="nvidia.com/gpu", count=2),)),
}
MODES: dict[str, tuple[Mode, ...]] = {
    "none": (),
    "half": (Mode.MEMORY_SHARE,),
    "one": (Mode.WHOLE,),
    "two": (Mode.WHOLE, Mode.WHOLE),
}


def there(name: str) -> Choice:
    """Return a place for a pod; on which GPU does not matter here."""
    shares = (
        share(number, 0, mode, percent=50 if mode is Mode.MEMORY_SHARE else 100)
        for number, mode in enumerate(MODES[name])
    )
    return Choice(0, tuple(shares))


def measured(pods: list[str], placed: list[bool]) -> RunMetrics:
    return measure(log_of(pods, placed, [math.inf] * len(pods), gpus=4))


def log_of(pods: list[str], placed: list[bool], stays_s: list[float], gpus: int) -> Log:
    """Return the log of pods that come a second apart and take their place at once or never."""
    devices = tuple(Gpu(index=index, model=T4, memory_mib=0) for index in range(gpus))
    node = Node(name=NodeName("n"), cpu_milli=1, memory_mib=1, gpus=devices)
    trace = Trace.of("hand", [node], [(f"p{at}", NEEDS[name]) for at, name in enumerate(pods)])
    arrivals = [Arrival(f"p{at}", trace.kind_of[at], float(at), stay_s) for at, stay_s in enumerate(stays_s)]
    return Log(
        workload=Workload.of(trace, 0, arrivals),
        policy="hand",
        rules=RunRules(),
        spots=tuple(there(name) if got else None for name, got in zip(pods, placed, strict=True)),
        placed_s=tuple(float(at) if got else math.inf for at, got in enumerate(placed)),
        left_s=tuple(at + stays_s[at] if got else math.inf for at, got in enumerate(placed)),
    )


def test_the_curve_is_the_mean_over_the_arrivals_of_a_bin() -> None:
    got = measured(["half", "none", "two", "one", "half", "two"], [True, True, True, False, True, False])
    assert got.curve.axis == "arrived_percent"
    assert got.curve.x == (12.0, 62.0, 88.0, 100.0, 150.0), "12.5 and 62.5 round to even"
    assert got.curve.allocated_percent == (12.5, 62.5, 62.5, 75.0, 75.0)
    assert got.unallocated_percent == {100: 25.0}


def test_the_guards_tell_who_was_dropped() -> None:
    got = measured(["half", "none", "two", "one", "half", "two"], [True, False, True, False, True, False])
    assert [(group.arrived, group.dropped, group.percent) for group in got.groups] == [
        (1, 1, 100.0),
        (2, 0, 0.0),
        (1, 1, 100.0),
        (2, 1, 50.0),
    ]
    assert (got.arrived, got.dropped, got.dropped_without_gpu) == (6, 3, 1)
    assert got.dropped_multi_gpu_percent == 50.0
    assert got.dropped_demand_percent == 50.0
    assert got.first_drop_percent == 12.5


def test_nothing_dropped_is_reported_as_such() -> None:
    got = measured(["none", "one"], [True, True])
    assert (got.first_drop_percent, got.dropped_demand_percent, got.dropped) == (None, 0.0, 0)
    assert [group.percent for group in got.groups] == [0.0] * 4


def test_pods_without_gpu_alone_have_no_demand_to_drop() -> None:
    got = measured(["none"], [False])
    assert (got.dropped_demand_percent, got.groups[0].percent) == (0.0, 100.0)


def test_over_time_a_share_counts_as_long_as_it_is_held() -> None:
    """One GPU of two is held from 0 to 3 and from 1 to 2: 4 of the 2 x 4 GPU seconds up to the last departure at 4."""
    log = log_of(["one", "one", "two", "half"], [True, True, False, True], [3.0, 1.0, 5.0, 1.0], gpus=2)
    got = measure(log)
    assert got.mean_unallocated_percent == pytest.approx(100 - 100 * 4.5 / 8)
    assert got.curve.axis == "time_s"
    at_s = dict(zip(got.curve.x, got.curve.allocated_percent, strict=True))
    assert len(at_s) == MOMENTS
    assert [at_s[moment] for moment in (0.0, 1.0, 2.0, 3.0, 4.0)] == [50.0, 100.0, 50.0, 25.0, 0.0]
    assert (got.unallocated_percent, got.first_drop_percent) == ({}, None)


def test_what_only_fills_the_cluster_is_not_measured() -> None:
    log = log_of(["one", "one", "one"], [False, True, False], [9.0, 9.0, 9.0], gpus=1)
    workload = msgspec.structs.replace(log.workload, warm=1, end_s=2.0)
    got = measure(msgspec.structs.replace(log, workload=workload))
    assert (got.arrived, got.dropped, got.dropped_demand_percent) == (2, 1, 50.0)
    assert got.mean_unallocated_percent == 50.0


def test_waits_are_reported() -> None:
    log = log_of(["one", "one"], [True, True], [1.0, 1.0], gpus=1)
    got = measure(msgspec.structs.replace(log, placed_s=(0.0, 4.0), left_s=(1.0, 5.0)))
    assert (got.mean_wait_s, got.longest_wait_s) == (1.5, 3.0)
