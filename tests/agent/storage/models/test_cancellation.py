"""A transfer is canceled from another thread, at any time."""

import threading
import time

import pytest

from tessera.agent.storage.models.cancellation import Canceled, Cancellation


def test_what_waits_ends_at_once_and_nothing_waits_afterwards() -> None:
    cancellation = Cancellation()
    cancellation.wait(0)
    canceling = threading.Timer(0.01, cancellation.cancel)
    canceling.start()
    begun = time.monotonic()
    for _ in range(2):
        with pytest.raises(Canceled):
            cancellation.wait(60)
    assert time.monotonic() - begun < 50
    canceling.join()


def test_a_part_that_runs_is_ended_and_one_that_begins_later_too_but_none_that_is_over() -> None:
    cancellation, ended = Cancellation(), list[str]()
    with cancellation.ending(lambda: ended.append("over")):
        pass
    with cancellation.ending(lambda: ended.append("runs")):
        assert ended == []
        cancellation.cancel()
        assert (ended, cancellation.is_canceled) == (["runs"], True)
    with cancellation.ending(lambda: ended.append("later")):
        assert ended == ["runs", "later"]
