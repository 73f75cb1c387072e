"""GPU usage as JSON."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.usagereports import REPORT
from builders.wirefields import fields_of
from tessera.api.tessera.usage import usagejson
from tessera.api.tessera.usage.usagejson import read_usage, recommendation_fields, write_usage
from tessera.core.usage import usagereport
from tessera.core.usage.contention import Contention
from tessera.core.usage.rightsizing import Recommendation, Sizing
from tessera.core.usage.usagereport import UsageReport
from tessera.errors import InvalidInput

RECORDS = {
    usagejson.ContainerUsageFields: usagereport.ContainerReport,
    usagejson.DeviceUsageFields: usagereport.DeviceReport,
    usagejson.ContentionFields: Contention,
    usagejson.PodContentionFields: usagereport.PodContention,
    usagejson.GpuUsageFields: usagereport.GpuReport,
    usagejson.UsageFields: UsageReport,
    usagejson.RecommendationFields: Recommendation,
}


@pytest.mark.parametrize(("written", "known"), RECORDS.items(), ids=lambda each: each.__name__)
def test_no_field_is_lost(written: type[msgspec.Struct], known: type[msgspec.Struct]) -> None:
    assert fields_of(written) == fields_of(known)


def test_a_report_is_read_as_it_was_written() -> None:
    assert read_usage(write_usage(REPORT), "agent") == REPORT


def test_names_are_camel_case_and_what_is_empty_is_left_out() -> None:
    first, *_ = msgspec.json.decode(write_usage(REPORT))["gpus"]
    (device,) = first.pop("devices")
    idle, busy = device.pop("containers")
    assert first == {
        "index": 0, "uuid": "GPU-0", "model": "T4", "temperatureC": 91.0, "powerWatts": 69.6, "throttled": ["thermal"],
        "contention": [{"cause": "thermal", "causedBy": ["team/train/main"], "affected": ["team/notebook/main"]}],
    }  # fmt: skip
    assert device == {"memoryMib": 15000, "usedMib": 8100, "gpuPercent": 97.0}
    assert idle == {
        "namespace": "team", "pod": "notebook", "container": "main", "allocatedMib": 8192, "usedMib": 0, "peakMib": 0,
        "observedS": 1800.0,
    }  # fmt: skip
    assert busy == {
        "namespace": "team", "pod": "train", "container": "main", "allocatedMib": 8192, "usedMib": 8100,
        "gpuPercent": 90.0, "peakMib": 8150, "meanPercent": 70.0, "observedS": 7500.0,
    }  # fmt: skip


def test_what_slows_a_gpu_is_read_of_earlier_agents_too() -> None:
    """Nodes are upgraded one after the other; `noise` and `drivers` were the names."""
    slow = (
        Contention(cause="thermal", caused_by=("team/train/main",), affected=("team/notebook/main",)),
        Contention(cause="saturated", evenly=("a/b/c", "a/d/c"), ended=True),
        Contention(cause="power-brake", scope="node"),
    )
    earlier = (
        b'{"node":"n1","ageS":3.0,"gpus":[{"index":2,"noise":['
        b'{"cause":"thermal","drivers":["team/train/main"],"affected":["team/notebook/main"]},'
        b'{"cause":"saturated","evenly":["a/b/c","a/d/c"],"ended":true},{"cause":"power-brake","scope":"node"}]},'
        b'{"index":3,"devices":[{"containers":['
        b'{"namespace":"team","pod":"train","container":"main"},{"namespace":"team","pod":"notebook","container":"main"},'
        b'{"namespace":"a","pod":"b","container":"c"},{"namespace":"a","pod":"d","container":"c"}]}]}]}'
    )
    found = read_usage(earlier, "agent")
    names = (("team", "train", "main"), ("team", "notebook", "main"), ("a", "b", "c"), ("a", "d", "c"))
    containers = tuple(usagereport.ContainerReport(namespace=n, pod=p, container=c) for n, p, c in names)
    other = usagereport.GpuReport(index=3, devices=(usagereport.DeviceReport(containers=containers),))
    gpus = (usagereport.GpuReport(index=2, contention=slow), other)
    assert found == UsageReport(node="n1", age_s=3.0, gpus=gpus)


def test_memory_that_a_container_is_allocated_is_read_of_earlier_agents_too() -> None:
    """`grantedMib` was the name."""
    containers = (
        b'[{"namespace":"a","pod":"b","container":"c","grantedMib":7},'
        b'{"namespace":"a","pod":"d","container":"c","grantedMib":7,"allocatedMib":8}]'
    )
    found = read_usage(b'{"node":"n1","gpus":[{"index":2,"devices":[{"containers":' + containers + b"}]}]}", "agent")
    assert [each.allocated_mib for each in found.gpus[0].devices[0].containers] == [7, 8]


def test_what_slows_a_pod_has_its_gpu() -> None:
    given = usagereport.PodContention(gpu=0, cause="saturated", evenly=("a/b/c", "a/d/c"))
    want = {"gpu": 0, "cause": "saturated", "evenly": ("a/b/c", "a/d/c")}
    assert msgspec.to_builtins(usagejson.contention_fields(given)) == want


def test_a_recommendation_has_every_field() -> None:
    facts = {"node": "n1", "gpu": 2, "device": "whole", "namespace": "team", "pod": "train", "container": "main"}
    given = Recommendation(**facts, verdict=Sizing.UNKNOWN)  # type: ignore[arg-type]  # names are str, gpu is int
    assert msgspec.to_builtins(recommendation_fields(given)) == {
        **facts, "allocatedMib": None, "peakMib": None, "meanPercent": None, "observedS": 0.0, "verdict": "unknown",
        "fits": "", "savedMib": 0, "loadUnknown": False,
    }  # fmt: skip


@pytest.mark.parametrize("text", [b"", b"no", b"[]", b'{"node":1}', b"\xff", b"[" * 100_000])
def test_what_is_no_report_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"^agent n1: it is not a report \(.+\): query the agent's port 9400$"):
        read_usage(text, "agent n1")


@given(st.binary())
def test_any_bytes_are_a_report_or_refused(text: bytes) -> None:
    try:
        assert isinstance(read_usage(text, "agent"), UsageReport)
    except InvalidInput as error:
        assert error.subject == "agent"  # noqa: PT017 - either is right


@pytest.mark.parametrize("part", [b'{"devices":[%b]}', b'{"contention":[%b]}', b"%b"])
def test_a_report_of_millions_of_objects_is_refused_before_it_is_decoded(part: bytes) -> None:
    """Decoded it would take seconds, and a gigabyte."""
    text = b'{"node":"n","gpus":[%b]}' % (part % b",".join([b"{}"] * 600_000))
    with pytest.raises(InvalidInput, match=r"^agent a: its report has 60\d+ objects, more than 20000"):
        read_usage(text, "agent a")
