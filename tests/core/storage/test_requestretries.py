"""When a request is tried again, given up, or slowed down."""

from hypothesis import example, given
from hypothesis import strategies as st

from tessera.core.storage.requestretries import Attempts, BandwidthLimit, Patience


def test_retries_wait_longer_each_time_and_end() -> None:
    attempts = Attempts(Patience(), 0.0)
    now, waits = 0.0, []
    while (wait := attempts.wait_after_failure(now, 1.0)) is not None:
        waits.append(wait)
        now += wait
    assert waits[:4] == [0.1, 0.2, 0.4, 0.8]
    assert max(waits) == 5.0
    assert 30 < now < 36


def test_a_trickle_is_a_stall_and_a_pause_of_ours_is_none() -> None:
    attempts = Attempts(Patience(), 0.0)
    attempts.progress(9.0, 100)
    assert not attempts.has_stalled(9.9)
    assert attempts.has_stalled(10.0)
    attempts.pause(5.0)
    assert not attempts.has_stalled(14.9)
    attempts.start(15.0)
    assert not attempts.has_stalled(24.9)
    attempts.progress(30.0, 65536)
    assert attempts.wait_after_failure(65.0, 0.0) == 0.05
    assert attempts.wait_after_failure(65.0, 0.0, asked_s=2.0) is None


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


@given(st.integers(0, 40), st.floats(0, 1), st.floats(0, 1e6))
@example(0, 0.0, 1e6)
def test_a_store_that_asks_for_patience_gets_no_more_than_the_longest_wait(
    failures: int, jitter: float, asked_s: float
) -> None:
    patience = Patience(give_up_s=1e9)
    attempts = Attempts(patience, 0.0)
    for _ in range(failures):
        attempts.wait_after_failure(0.0, jitter)
    wait = attempts.wait_after_failure(0.0, jitter, asked_s)
    assert wait is not None
    assert min(asked_s, patience.longest_wait_s) <= wait <= patience.longest_wait_s
