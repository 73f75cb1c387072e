"""Reports of agents that are wrong, or lie."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.usage import GPU, LARGE, PARTITIONED, SMALL, allocation
from builders.usagereports import REPORT
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.readings import EngineActivity, GpuReading, InstanceReading, ProcessReading
from tessera.core.usage.attribution import Owner, attribute_usage
from tessera.core.usage.contention import SATURATED, Contention
from tessera.core.usage.observation import NodeUsage
from tessera.core.usage.reportbounds import discard_impossible
from tessera.core.usage.throttling import ThrottleCause
from tessera.core.usage.usagereport import ContainerReport, DeviceReport, GpuReport, UsageReport, usage_report

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
    found = discard_impossible(UsageReport(node="n1", age_s=since, answered_s=since or 0.0, gpus=(gpu, near)))
    assert found.answered_s == 0.0, "an agent has no say in when it answered"
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


ONE, OTHER = "a/b/c", "d/e/f"
NAMES = st.sampled_from([ONE, OTHER, "gone/g/h"])
CONTENTION = st.builds(
    Contention,
    cause=st.sampled_from([SATURATED, *(each.value for each in ThrottleCause), "rain"]),
    **dict.fromkeys(("caused_by", "affected", "evenly"), st.lists(NAMES, max_size=3).map(tuple)),
    nobody=st.booleans(),
)


def kept(contention: Iterable[Contention], *devices: DeviceReport) -> tuple[Contention, ...]:
    """Return what is believed of the contention of a GPU with these devices."""
    gpu = GpuReport(index=0, devices=devices, contention=tuple(contention))
    return discard_impossible(UsageReport(node="n1", gpus=(gpu,))).gpus[0].contention


@given(st.lists(CONTENTION, max_size=30), st.sets(NAMES, min_size=1), st.integers(0, 3))
def test_contention_is_of_the_report_s_containers_and_no_more_than_a_gpu_can_have(
    contention: list[Contention], names: set[str], free: int
) -> None:
    found = kept(contention, device(*sorted(names)), *[DeviceReport()] * free)
    believed = {*ThrottleCause, SATURATED}
    of_containers = [
        each.cause
        for each in contention
        if each.cause in believed and {*each.caused_by, *each.affected, *each.evenly} <= names
    ]
    most = {SATURATED: 1 + free}
    want = {cause: min(number, most.get(cause, 1)) for cause, number in Counter(of_containers).items()}
    assert Counter(each.cause for each in found) == want
    for each in found:
        for shown in (each.caused_by, each.affected, each.evenly):
            assert {*shown} <= names
            assert len({*shown}) == len(shown)
        assert not (each.nobody and each.caused_by)
        assert not (each.evenly and each.caused_by)


@pytest.mark.parametrize(
    "name",
    ["kube-system/Visit evil.example to sign in/c", "Visit/b/c", "a/b/" + "c" * 64, "a/<b>/c", "a/b/", "a//c", "/b/c"],
)
def test_no_container_has_a_name_that_kubernetes_refuses(name: str) -> None:
    """A lying agent says nothing in its own words, though it reports a container of that name."""
    for field in ("caused_by", "affected", "evenly"):
        for good in ((ONE, OTHER), (ONE, OTHER, name)):
            contention = msgspec.convert({"cause": SATURATED, field: good}, Contention)
            assert kept([contention], device(ONE, OTHER, name)) == ((contention,) if name not in good else ())


def test_nobody_and_who_shares_it_are_not_said_beside_who_causes_it() -> None:
    caused = Contention(cause=SATURATED, caused_by=(ONE,), affected=(OTHER,))
    lie = msgspec.structs.replace(caused, nobody=True, evenly=(ONE, OTHER))
    assert kept([lie], device(ONE, OTHER)) == (caused,)
    for alone in (Contention(cause="thermal", nobody=True), Contention(cause=SATURATED, evenly=(ONE, OTHER))):
        assert kept([alone], device(ONE, OTHER)) == (alone,)


def test_what_throttles_a_gpu_is_said_once() -> None:
    gpu = GpuReport(index=0, throttled=("thermal", "power-cap", "thermal", "rain"))
    (found,) = discard_impossible(UsageReport(node="n1", gpus=(gpu,))).gpus
    assert found.throttled == ("thermal", "power-cap")


LOADS = st.lists(st.none() | st.integers(0, 100), min_size=1, max_size=3)
ACTIVITY = st.none() | st.integers(0, 100) | st.just(100)


@given(LOADS, st.lists(st.tuples(ACTIVITY, st.integers(0, 3)), min_size=2, max_size=2), st.sampled_from([0, 0x4, 0x24]))
def test_what_an_agent_reports_of_its_gpus_is_unchanged(
    loads: list[int | None], instances: list[tuple[int | None, int]], reasons: int
) -> None:
    """Of a GPU that containers share, and of one with two MIG instances that containers share."""
    whole = [allocation(f"w{number}") for number in range(len(loads))]
    processes = tuple(ProcessReading(pid=pid, memory_mib=1, sm_percent=load) for pid, load in enumerate(loads, 1))
    owners = {pid: Owner(uid=f"uid-w{pid - 1}", container="main") for pid in range(1, len(loads) + 1)}
    reading = GpuReading(gpu_percent=99, clocks_event_reasons=reasons, processes=processes)
    shared = attribute_usage(GPU, reading, whole, owners)
    placements = (SMALL, LARGE)
    partitions = [
        allocation(f"{placement.profile[0]}{number}", DeviceId("GPU-1", placement))
        for placement, (_, containers) in zip(placements, instances, strict=True)
        for number in range(containers)
    ]
    read = tuple(
        InstanceReading(placement=placement, activity=EngineActivity(sm_percent=percent))
        for placement, (percent, _) in zip(placements, instances, strict=True)
    )
    partitioned = attribute_usage(PARTITIONED, GpuReading(clocks_event_reasons=reasons, instances=read), partitions, {})
    report = usage_report(NodeUsage(node="n1", gpus=(shared, partitioned)), {})
    assert discard_impossible(report) == report


def test_each_saturated_mig_instance_is_believed() -> None:
    partitions = [
        allocation(f"{at.profile[0]}{number}", DeviceId("GPU-1", at)) for at in (SMALL, LARGE) for number in "ab"
    ]
    read = tuple(InstanceReading(placement=at, activity=EngineActivity(sm_percent=99)) for at in (SMALL, LARGE))
    gpu = attribute_usage(PARTITIONED, GpuReading(instances=read), partitions, {})
    report = usage_report(NodeUsage(node="n1", gpus=(gpu,)), {})
    assert len(report.gpus[0].contention) == 2
    assert discard_impossible(report) == report


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
