"""Times as Kubernetes writes them."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api.kubernetes.times import read_time, time_text


@pytest.mark.parametrize("text", ["2026-01-31T12:00:00Z", "2026-01-31T13:00:00+01:00", "2026-01-31T12:00:00"])
def test_a_time_without_a_zone_is_in_utc(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        assert read_time(text) == 1769860800
    finally:
        monkeypatch.undo()
        time.tzset()


@given(st.integers(0, 1 << 33), st.floats(0, 0.99))
def test_a_time_is_read_as_written_in_whole_seconds(seconds: int, part: float) -> None:
    assert read_time(time_text(seconds + part)) == seconds
