"""Reports of GPU usage as JSON."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.usagereports import REPORT
from tessera.api.tessera.usage.usagereports import read_usage, write_usage
from tessera.core.usage.usagereport import UsageReport
from tessera.errors import InvalidInput


def test_a_report_is_read_as_it_was_written() -> None:
    assert read_usage(write_usage(REPORT), "agent") == REPORT
    (found,) = msgspec.json.decode(write_usage(REPORT))["gpus"][0]["noise"]
    assert found == {"cause": "thermal", "drivers": ["team/train/main"], "affected": ["team/notebook/main"]}


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


@pytest.mark.parametrize("part", [b'{"devices":[%b]}', b'{"noise":[%b]}', b"%b"])
def test_a_report_of_millions_of_objects_is_refused_before_it_is_decoded(part: bytes) -> None:
    """Decoded it would take seconds, and a gigabyte."""
    text = b'{"node":"n","gpus":[%b]}' % (part % b",".join([b"{}"] * 600_000))
    with pytest.raises(InvalidInput, match=r"^agent a: its report has 60\d+ objects, more than 20000"):
        read_usage(text, "agent a")
