"""When a request is tried again, and when given up."""

from hypothesis import example, given
from hypothesis import strategies as st

from tessera.core.storage.retries import Attempts, Patience, fetch_backoff_s


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


def test_a_pause_after_failures_doubles_up_to_ten_minutes() -> None:
    assert [fetch_backoff_s(each) for each in (1, 2, 3, 7, 8, 10**9)] == [10.0, 20.0, 40.0, 600.0, 600.0, 600.0]
