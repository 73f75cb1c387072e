"""Reports of GPU usage as JSON."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.usage import GPU, LARGE, PARTITIONED, holder
from builders.usagereports import BUSY, FINE, REPORT, SMALL
from tessera.api.tessera.usage.usagereports import (
    DeviceReport,
    GpuReport,
    PodContention,
    UsageReport,
    advice_of,
    contention_around,
    read_usage,
    recommendations,
    usage_report,
    write_usage,
)
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.readings import EngineActivity, GpuReading, InstanceReading
from tessera.core.usage.attribution import attributed
from tessera.core.usage.history import remembered
from tessera.core.usage.nodemetrics import NodeUsage
from tessera.core.usage.rightsizing import Sizing
from tessera.errors import InvalidInput


def test_a_report_is_read_as_it_was_written() -> None:
    assert read_usage(write_usage(REPORT), "agent") == REPORT
    (found,) = msgspec.json.decode(write_usage(REPORT))["gpus"][0]["noise"]
    assert found == {"cause": "thermal", "drivers": ["team/train/main"], "affected": ["team/notebook/main"]}


def test_a_report_says_of_each_device_who_uses_it_and_for_how_long() -> None:
    own, other = holder("a", exclusive=True), holder("b", DeviceId("GPU-1", LARGE), exclusive=True)
    uses = (
        attributed(GPU, GpuReading(memory_used_mib=70, gpu_percent=5, clocks_event_reasons=0x4), [own], {}),
        attributed(
            PARTITIONED,
            GpuReading(
                instances=(InstanceReading(placement=LARGE, memory_used_mib=9, activity=EngineActivity(sm_percent=40)),)
            ),
            [other],
            {},
        ),
    )
    histories = remembered({}, uses[:1], 10.0)
    first, second = usage_report(NodeUsage(node="n1", gpus=uses), histories, 25.0).gpus
    (device,) = first.devices
    assert (first.throttled, device.profile, device.used_mib, device.gpu_percent) == (("power-cap",), "", 70, 5)
    (container,) = device.containers
    assert (container.name, container.peak_mib, container.observed_s) == ("team/a/main", 70, 15.0)
    assert [(each.cause, each.drivers) for each in first.contention] == [("power-cap", ("team/a/main",))]
    small, large = second.devices
    assert (small.containers, large.profile, large.start, large.gpu_percent) == ((), "3g.20gb", 4, 40)
    assert (large.containers[0].peak_mib, large.containers[0].observed_s) == (None, 0.0)


def test_an_exclusive_instance_s_container_is_as_busy_as_its_instance() -> None:
    own = holder("b", DeviceId("GPU-1", LARGE), exclusive=True)
    instance = InstanceReading(placement=LARGE, activity=EngineActivity(sm_percent=77))
    gpu = attributed(PARTITIONED, GpuReading(instances=(instance,)), [own], {})
    histories = remembered({}, [gpu], 10.0)
    (report,) = usage_report(NodeUsage(node="n1", gpus=(gpu,)), histories, 10.0).gpus
    device = report.devices[1]
    (container,) = device.containers
    assert (device.gpu_percent, container.gpu_percent, container.mean_percent) == (77, 77, 77)


def test_recommendations_are_those_of_all_containers_the_most_urgent_first() -> None:
    found = [
        (each.gpu, each.device, each.pod, each.verdict.value, each.saved_mib) for each in recommendations([REPORT])
    ]
    assert found == [
        (0, "whole", "train", "too-little", 0),
        (0, "whole", "notebook", "unused", 8192),
        (1, "whole", "serve", "too-much", 36096),
        (2, "1g.5gb", "fine", "fits", 0),
    ]


def test_advice_is_by_the_gpu_s_model_where_it_is_known() -> None:
    assert advice_of(SMALL, DeviceReport(), GpuReport(index=1, model="A100-40GB")).fits == "1g.5gb"
    assert advice_of(SMALL, DeviceReport(), GpuReport(index=1, model="something")).verdict is Sizing.UNKNOWN
    assert advice_of(BUSY, DeviceReport(), GpuReport(index=0, model="T4")).fits == "10 GiB"
    assert advice_of(FINE, DeviceReport(profile="1g.5gb"), GpuReport(index=0, model="A100-40GB")).verdict is Sizing.FITS


@pytest.mark.parametrize("text", [b"", b"no", b"[]", b'{"node":1}', b"\xff", b"[" * 100_000])
def test_what_is_no_report_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"^agent n1: it is not a report: .+: ask the agent's port 9400$"):
        read_usage(text, "agent n1")


@given(st.binary())
def test_any_bytes_are_a_report_or_refused(text: bytes) -> None:
    try:
        assert isinstance(read_usage(text, "agent"), UsageReport)
    except InvalidInput as error:
        assert error.subject == "agent"  # noqa: PT017 - either is right


@pytest.mark.parametrize(
    ("pod", "gpus"), [("team/train", [0]), ("team/notebook", [0]), ("team/trai", []), ("train", [])]
)
def test_contention_is_said_of_pods_that_drive_it_and_of_those_that_it_slows_down(pod: str, gpus: list[int]) -> None:
    driver, other = ("team/train/main",), ("team/notebook/main",)
    want = [PodContention(gpu=each, cause="thermal", drivers=driver, affected=other) for each in gpus]
    assert list(contention_around(REPORT, pod)) == want
