"""Counters of two samples."""

import msgspec
import pytest

from tessera.core.serving.metrics.counters import Counters, went_back

FORMER = Counters(
    at_s=100.0, started_s=0.0, queued_s=4.0, dequeued=8.0, served_s=16.0, completed=8.0, waiting=3.0, running=2.0
)


@pytest.mark.parametrize("name", ["queued_s", "dequeued", "served_s", "completed"])
def test_a_single_smaller_counter_is_one_that_went_back(name: str) -> None:
    less = msgspec.structs.replace(FORMER, **{name: getattr(FORMER, name) - 0.5})
    assert (went_back(FORMER, less), went_back(less, FORMER)) == (True, False)


def test_equal_counters_and_smaller_gauges_did_not_go_back() -> None:
    assert not went_back(FORMER, msgspec.structs.replace(FORMER, at_s=115.0, waiting=0.0, running=0.0))
