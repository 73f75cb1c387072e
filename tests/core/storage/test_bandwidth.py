"""How fast something is read."""

from hypothesis import example, given
from hypothesis import strategies as st

from tessera.core.storage.bandwidth import BandwidthLimit


def test_the_bandwidth_is_limited() -> None:
    limit = BandwidthLimit(100.0, 0.0)
    assert limit.delay(0.25, 25) == 0.0
    assert limit.delay(0.25, 100) == 1.0
    assert limit.delay(9.0, 25) == 0.0


READS = st.lists(st.tuples(st.floats(0, 2), st.integers(1, 200)), min_size=1, max_size=30)
"""Seconds before each read, beside the wait that the limit asks for, and its bytes."""


@given(READS)
@example([(0.0, 200), (0.0, 200)])
@example([(2.0, 1), (2.0, 200), (0.0, 200)])
def test_in_no_time_more_comes_than_the_limit_lets_through_and_a_quarter_of_a_second_ahead(
    reads: list[tuple[float, int]],
) -> None:
    rate, limit, now = 100.0, BandwidthLimit(100.0, 0.0), 0.0
    ends: list[float] = []
    for pause, size in reads:
        now += pause
        now += limit.delay(now, size)
        ends.append(now)
    for first in range(len(reads)):
        for last in range(first, len(reads)):
            # Those behind the first came after its wait had ended, but for what may come ahead.
            size = sum(size for _, size in reads[first + 1 : last + 1])
            assert size <= rate * (ends[last] - ends[first] + 0.25) + 1e-6
