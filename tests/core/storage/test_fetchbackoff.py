"""The back-off of what nodes fetch."""

from tessera.core.storage.fetchbackoff import fetch_backoff_s


def test_a_pause_after_failures_doubles_up_to_ten_minutes() -> None:
    assert [fetch_backoff_s(each) for each in (1, 2, 3, 7, 8, 10**9)] == [10.0, 20.0, 40.0, 600.0, 600.0, 600.0]
