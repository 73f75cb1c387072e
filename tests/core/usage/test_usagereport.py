"""What a report says of each device and pod."""

from typing import Any

import pytest

from builders.usage import GPU, LARGE, PARTITIONED, allocation
from builders.usagereports import REPORT
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.readings import EngineActivity, GpuReading, InstanceReading
from tessera.core.usage.attribution import attribute_usage
from tessera.core.usage.containerhistory import update_histories
from tessera.core.usage.contention import Contention
from tessera.core.usage.observation import NodeUsage
from tessera.core.usage.usagereport import (
    DeviceReport,
    GpuReport,
    PodContention,
    UsageReport,
    contention_around,
    gpus_by_urgency,
    usage_report,
)


def test_a_report_says_of_each_device_who_uses_it_and_for_how_long() -> None:
    own, other = allocation("a", exclusive=True), allocation("b", DeviceId("GPU-1", LARGE), exclusive=True)
    uses = (
        attribute_usage(GPU, GpuReading(memory_used_mib=70, gpu_percent=5, clocks_event_reasons=0x4), [own], {}),
        attribute_usage(
            PARTITIONED,
            GpuReading(
                instances=(InstanceReading(placement=LARGE, memory_used_mib=9, activity=EngineActivity(sm_percent=40)),)
            ),
            [other],
            {},
        ),
    )
    histories = update_histories(update_histories({}, uses[:1], 10.0), uses[:1], 25.0)
    first, second = usage_report(NodeUsage(node="n1", gpus=uses), histories).gpus
    (device,) = first.devices
    assert (first.throttled, device.profile, device.used_mib, device.gpu_percent) == (("power-cap",), "", 70, 5)
    (container,) = device.containers
    assert (container.name, container.peak_mib, container.observed_s) == ("team/a/main", 70, 15.0)
    assert container.load_observed_s == 15.0
    assert first.contention == (), "at its power limit, and nobody else is on it"
    small, large = second.devices
    assert (small.containers, large.profile, large.start, large.gpu_percent) == ((), "3g.20gb", 4, 40)
    assert (large.containers[0].peak_mib, large.containers[0].observed_s) == (None, 0.0)


def test_an_exclusive_instance_s_container_is_as_busy_as_its_instance() -> None:
    own = allocation("b", DeviceId("GPU-1", LARGE), exclusive=True)
    instance = InstanceReading(placement=LARGE, activity=EngineActivity(sm_percent=77))
    gpu = attribute_usage(PARTITIONED, GpuReading(instances=(instance,)), [own], {})
    histories = update_histories({}, [gpu], 10.0)
    (report,) = usage_report(NodeUsage(node="n1", gpus=(gpu,)), histories).gpus
    device = report.devices[1]
    (container,) = device.containers
    assert (device.gpu_percent, container.gpu_percent, container.mean_percent) == (77, 77, 77)


@pytest.mark.parametrize(
    ("pod", "gpus"), [("team/train", [0]), ("team/notebook", [0]), ("team/trai", []), ("train", [])]
)
def test_contention_is_said_of_pods_that_drive_it_and_of_those_that_it_slows_down(pod: str, gpus: list[int]) -> None:
    busy, other = ("team/train/main",), ("team/notebook/main",)
    want = [PodContention(gpu=each, cause="thermal", caused_by=busy, affected=other) for each in gpus]
    assert list(contention_around(REPORT, pod)) == want


def test_slow_and_lost_gpus_come_first_then_the_busiest() -> None:
    def gpu(index: int, percent: float | None, **facts: Any) -> GpuReport:
        return GpuReport(index=index, devices=(DeviceReport(gpu_percent=percent),), **facts)

    slow = (Contention(cause="thermal"),)
    reports = (
        UsageReport(node="a", gpus=(gpu(0, 10), gpu(1, None), gpu(2, 99), GpuReport(index=3, lost=True))),
        UsageReport(node="b", gpus=(gpu(0, 1, contention=slow), gpu(1, 99), gpu(2, 0))),
    )
    found = [f"{node}{each.index}" for node, each in gpus_by_urgency(reports)]
    assert found == ["b0", "a3", "a2", "b1", "a0", "b2", "a1"], "of equal ones in the order of the reports"
