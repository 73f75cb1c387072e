"""Reports of agents that are wrong, or lie."""

import math
from collections.abc import Iterator

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from builders.usagereports import REPORT
from tessera.core.usage.contention import SATURATED, Contention
from tessera.core.usage.reportbounds import discard_impossible
from tessera.core.usage.throttling import ThrottleCause
from tessera.core.usage.usagereport import ContainerReport, DeviceReport, GpuReport, UsageReport

NUMBERS = st.one_of(st.none(), st.integers(-(2**70), 2**70), st.floats())
LARGEST = 4 << 20


def test_a_true_report_is_unchanged() -> None:
    assert discard_impossible(REPORT) == REPORT


def numbers(report: UsageReport) -> Iterator[float]:
    """Yield each number of a report."""
    pending = [msgspec.to_builtins(report)]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            pending += each.values()
        elif isinstance(each, list):
            pending += each
        elif isinstance(each, int | float) and not isinstance(each, bool):
            yield each


@given(*[NUMBERS] * 4, st.integers(-(2**70), 2**70) | st.just(10**400), st.text(max_size=20))
def test_no_impossible_value_is_left(
    memory: int | None, percent: float | None, power: float | None, since: float | None, index: int, cause: str
) -> None:
    container = ContainerReport(
        namespace="a",
        pod="b",
        container="c",
        allocated_mib=memory,
        used_mib=memory,
        peak_mib=memory,
        gpu_percent=percent,
        mean_percent=percent,
        observed_s=since or 0.0,
        load_observed_s=since,
    )
    device = DeviceReport(start=index, memory_mib=index, used_mib=memory, gpu_percent=percent, containers=(container,))
    contention = Contention(cause=cause, caused_by=("a/b/c",))
    gpu = GpuReport(
        index=index,
        temperature_c=percent,
        power_watts=power,
        throttled=(cause,),
        devices=(device,),
        contention=(contention, Contention(cause="thermal", caused_by=("not a pod",))),
    )
    near = msgspec.structs.replace(gpu, index=0)
    found = discard_impossible(UsageReport(node="n1", age_s=since, gpus=(gpu, near)))
    assert all(math.isfinite(each) and 0 <= each <= max(LARGEST, 2**32) for each in numbers(found))
    known = cause in {*ThrottleCause, SATURATED}
    assert found.gpus[-1].contention == ((contention,) if known else ())
    assert found.gpus[-1].throttled == ((cause,) if known else ())


def test_a_percentage_slightly_above_100_is_100() -> None:
    def reported(percent: float | None) -> UsageReport:
        container = ContainerReport(namespace="a", pod="b", container="c", gpu_percent=percent, mean_percent=percent)
        device = DeviceReport(gpu_percent=percent, containers=(container,))
        return UsageReport(node="n1", gpus=(GpuReport(index=0, devices=(device,)),))

    assert discard_impossible(reported(100.0001)) == reported(100)
    assert discard_impossible(reported(102)) == reported(None)


def device(*names: str) -> DeviceReport:
    parts = ((*each.split("/"), "", "")[:3] for each in names)
    return DeviceReport(
        containers=tuple(ContainerReport(namespace=first, pod=pod, container=last) for first, pod, last in parts)
    )


NAMES = st.sampled_from(
    ["a/b/c", "d/e/f", "gone/g/h", "kube-system/Visit evil.example to sign in/c", "a/b/" + "c" * 64, ""]
)
CONTENTION = st.builds(
    Contention,
    cause=st.sampled_from([SATURATED, *(each.value for each in ThrottleCause), "rain"]),
    **dict.fromkeys(("caused_by", "affected", "evenly"), st.lists(NAMES, max_size=50).map(tuple)),
)


@given(st.lists(CONTENTION, max_size=30), st.lists(NAMES, max_size=6))
def test_contention_is_of_the_report_s_containers_and_one_for_each_cause(
    contention: list[Contention], names: list[str]
) -> None:
    """A lying agent says neither its own words nor more than it has GPUs and containers."""
    gpu = GpuReport(
        index=0,
        throttled=tuple(each.cause for each in contention) * 3,
        contention=tuple(contention),
    )
    (found, _) = discard_impossible(
        UsageReport(node="n1", gpus=(gpu, GpuReport(index=1, devices=(device(*names),))))
    ).gpus
    assert len({each.cause for each in found.contention}) == len(found.contention)
    assert len(set(found.throttled)) == len(found.throttled)
    for each in found.contention:
        for shown in (each.caused_by, each.affected, each.evenly):
            assert {*shown} <= {*names} & {"a/b/c", "d/e/f", "gone/g/h"}
            assert len({*shown}) == len(shown)


def test_those_who_use_a_device_equally_are_containers_and_at_least_two() -> None:
    def left(*evenly: str) -> tuple[Contention, ...]:
        contention = (Contention(cause=SATURATED, evenly=evenly, affected=("a/b/c",)),)
        gpu = GpuReport(index=0, devices=(device("a/b/c", "d/e/f", "<b>"),), contention=contention)
        return discard_impossible(UsageReport(node="n1", gpus=(gpu,))).gpus[0].contention

    (found,) = left("a/b/c", "d/e/f")
    assert found.evenly == ("a/b/c", "d/e/f")
    for alone in (("a/b/c",), ("a/b/c", "a/b/c")):
        (found,) = left(*alone)
        assert (found.cause, found.evenly, found.affected) == (SATURATED, (), ("a/b/c",))
    assert left("a/b/c", "<b>") == ()


def test_causes_that_are_known_stay() -> None:
    for cause in ThrottleCause:
        gpu = GpuReport(index=0, throttled=(cause.value,), contention=(Contention(cause=cause.value),))
        assert discard_impossible(UsageReport(node="n1", gpus=(gpu,))).gpus == (gpu,)
