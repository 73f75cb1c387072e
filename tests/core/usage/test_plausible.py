"""What is plausible of a driver's measurements."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.usage import A100, GPU, INSTANCES, PARTITIONED
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.readings import EngineActivity, GpuReading, InstanceReading, ProcessReading, RemappedRows
from tessera.core.usage.plausible import discard_implausible, percentage, possible

ABSURD = [-1, 2**64 - 1, 2**63, math.nan, math.inf, -math.inf, 10**400, "7", None, True]


@pytest.mark.parametrize("value", ABSURD)
def test_what_cannot_be_is_not_possible(value: object) -> None:
    assert not possible(value, 100)


def test_what_can_be_is_possible_up_to_the_most() -> None:
    assert [possible(each, 100) for each in (0, 0.5, 100, 100.1)] == [True, True, True, False]


@pytest.mark.parametrize("value", ABSURD)
@pytest.mark.parametrize(
    "field",
    [
        each
        for each in GpuReading.__struct_fields__
        if each not in {"activity", "remapped_rows", "instances", "processes"}
    ],
)
def test_an_absurd_field_is_absent_and_the_others_stay(field: str, value: object) -> None:
    fine = GpuReading(temperature_c=60, sm_clock_mhz=1400, memory_used_mib=10)
    found = discard_implausible(msgspec.structs.replace(fine, **{field: value}), GPU)
    assert getattr(found, field) is None
    kept = [each for each in ("temperature_c", "sm_clock_mhz", "memory_used_mib") if each != field]
    assert [getattr(found, each) for each in kept] == [getattr(fine, each) for each in kept]


def test_more_memory_than_there_is_is_not_plausible() -> None:
    assert discard_implausible(GpuReading(memory_used_mib=A100.memory_mib), GPU).memory_used_mib == A100.memory_mib
    assert discard_implausible(GpuReading(memory_used_mib=A100.memory_mib + 1), GPU).memory_used_mib is None
    unknown = msgspec.structs.replace(GPU, memory_total_mib=0)
    assert (
        discard_implausible(GpuReading(memory_used_mib=A100.memory_mib + 1), unknown).memory_used_mib
        == A100.memory_mib + 1
    )


def test_a_percentage_slightly_above_100_is_100() -> None:
    values = (99.9, 100, 100.0001, 101, 101.1, -0.1, math.nan, None)
    assert [percentage(each) for each in values] == [99.9, 100, 100, 100, None, None, None, None]
    near = GpuReading(gpu_percent=101, activity=EngineActivity(sm_percent=100.0001, tensor_percent=102))
    found = discard_implausible(near, GPU)
    assert (found.gpu_percent, found.activity) == (100, EngineActivity(sm_percent=100))


def test_reasons_with_unknown_bits_are_not_plausible() -> None:
    for bits, want in ((2**32 - 1, None), (2**64 - 1, None), (2**32 - 2, None), (0x800, None), (0x7FF, 0x7FF)):
        assert discard_implausible(GpuReading(clocks_event_reasons=bits), GPU).clocks_event_reasons == want


def test_instances_and_processes_that_cannot_be_are_left_out() -> None:
    one = INSTANCES[0]
    reading = GpuReading(
        instances=(
            InstanceReading(
                placement=one.placement, memory_used_mib=2**64 - 1, activity=EngineActivity(sm_percent=102)
            ),
            InstanceReading(placement=Placement(3, 1, "1g.5gb"), memory_used_mib=5),
        ),
        processes=(
            ProcessReading(pid=7, memory_mib=2**44 - 1, sm_percent=2**32 - 1),
            ProcessReading(pid=7, memory_mib=4),
            ProcessReading(pid=0, memory_mib=1),
            ProcessReading(pid=-3, memory_mib=1),
        ),
        remapped_rows=RemappedRows(corrected=1, uncorrected=2**32 - 1, failed=False),
    )
    found = discard_implausible(reading, PARTITIONED)
    assert found.instances == (InstanceReading(placement=one.placement, activity=EngineActivity()),)
    assert found.processes == (ProcessReading(pid=7),)
    assert found.remapped_rows is None
    rows = RemappedRows(corrected=1, uncorrected=2, failed=True)
    assert discard_implausible(GpuReading(remapped_rows=rows), GPU).remapped_rows == rows


@given(st.builds(GpuReading, gpu_percent=st.one_of(st.integers(), st.floats(), st.none())))
def test_what_is_plausible_stays_so(reading: GpuReading) -> None:
    once = discard_implausible(reading, GPU)
    assert discard_implausible(once, GPU) == once
