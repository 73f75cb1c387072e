"""When a request is tried again, given up, or slowed down."""

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
