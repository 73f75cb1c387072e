"""How long requests wait, from two samples: restarts, idle pods, first samples, gaps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.serving.metrics.counters import Counters, Unmeasured
from tessera.core.serving.metrics.queuetime import LONGEST_S, Window, between

OLD = -10_000.0


def counters(at_s: float = 100.0, **given: float | None) -> Counters:
    usual = {
        "started_s": OLD,
        "queued_s": 0.0,
        "dequeued": 0.0,
        "served_s": 0.0,
        "completed": 0.0,
        "waiting": 0.0,
        "running": 0.0,
    }
    return Counters(at_s=at_s, **{**usual, **given})  # type: ignore[arg-type]  # a table of numbers


FORMER = counters(85.0, queued_s=10.0, dequeued=100.0, served_s=50.0, completed=100.0)
CASES: dict[str, tuple[Counters | None, Counters, float]] = {
    "requests that waited": (FORMER, counters(queued_s=12.0, dequeued=104.0, served_s=51.0, completed=104.0), 0.5),
    "one request counts as one": (
        FORMER,
        counters(queued_s=10.04, dequeued=101.0, served_s=51.0, completed=101.0),
        0.04,
    ),
    "an idle pod": (FORMER, counters(queued_s=10.0, dequeued=100.0, served_s=50.0, completed=100.0), 0.0),
    "requests that came just now": (
        FORMER,
        counters(queued_s=10.0, dequeued=100.0, served_s=50.0, completed=100.0, waiting=3.0),
        0.0,
    ),
    "requests that nobody serves wait for the window at least": (
        counters(85.0, queued_s=10.0, dequeued=100.0, served_s=50.0, completed=100.0, waiting=2.0),
        counters(queued_s=10.0, dequeued=100.0, served_s=50.0, completed=100.0, waiting=3.0),
        15.0,
    ),
    "a restart, which the kubelet reported": (
        FORMER,
        counters(started_s=90.0, queued_s=20.0, dequeued=200.0, served_s=60.0, completed=200.0),
        0.1,
    ),
    "a restart, which a counter says too": (
        FORMER,
        counters(started_s=90.0, queued_s=1.0, dequeued=4.0, served_s=60.0, completed=110.0),
        0.25,
    ),
    "a restart with nothing since": (FORMER, counters(started_s=90.0), 0.0),
    "a new pod": (None, counters(started_s=60.0, queued_s=3.0, dequeued=2.0, served_s=1.0, completed=2.0), 1.5),
}


@pytest.mark.parametrize("case", CASES)
def test_queue_time(case: str) -> None:
    former, now, want = CASES[case]
    found = between(former, now)
    assert isinstance(found, Window)
    assert found.queue_time_s == pytest.approx(want)


MISSING: dict[str, tuple[Counters | None, Counters, str]] = {
    "the first sample of a pod that ran before": (None, counters(), "scraped once so far"),
    "a gap": (FORMER, counters(85.1 + LONGEST_S), "no sample for 120 s"),
    "the same moment": (FORMER, counters(85.0), "a clock went back"),
    "a clock that went back": (FORMER, counters(80.0), "a clock went back"),
    "a counter that went back while the container ran on": (
        FORMER,
        counters(queued_s=12.0, dequeued=99.0, served_s=51.0, completed=101.0),
        "a counter went back, as after a restart or where a model was unloaded",
    ),
    "waits of more requests than a pod has": (
        FORMER,
        counters(queued_s=9e8, dequeued=104.0, served_s=51.0, completed=104.0),
        "59999999 requests in flight on average",
    ),
    "service times of more requests than a pod has": (
        FORMER,
        counters(queued_s=12.0, dequeued=104.0, served_s=3e6 + 100, completed=104.0),
        "not fewer than 200000",
    ),
    "more requests than end in a pod": (
        FORMER,
        counters(queued_s=12.0, dequeued=1e12, served_s=51.0, completed=1e12),
        "66666666660 requests a second, not fewer than 10000",
    ),
    "a pod that starts in the future": (None, counters(started_s=101.0), "a clock went back"),
}


@pytest.mark.parametrize("case", MISSING)
def test_what_says_nothing(case: str) -> None:
    former, now, want = MISSING[case]
    found = between(former, now)
    assert isinstance(found, Unmeasured)
    assert want in found.reason


def test_what_an_engine_does_not_say_follows_from_littles_law() -> None:
    now = counters(queued_s=40.0, dequeued=110.0, served_s=95.0, completed=110.0, waiting=None, running=None)
    found = between(FORMER, now)
    assert isinstance(found, Window)
    assert (found.waiting, found.running, found.in_flight) == (2.0, 3.0, 5.0)


def test_the_window_has_what_happened() -> None:
    found = between(
        FORMER, counters(queued_s=12.0, dequeued=104.0, served_s=53.0, completed=105.0, waiting=1.0, running=4.0)
    )
    assert found == Window(
        seconds=15.0,
        queued_s=2.0,
        dequeued=4.0,
        served_s=3.0,
        completed=5.0,
        waiting=1.0,
        running=4.0,
        stuck=False,
        saturated=True,
    )


SATURATED: dict[str, tuple[float | None, float | None, bool]] = {
    "no request waits": (0.0, 4.0, False),
    "one waits where the engine says what it serves": (1.0, 4.0, True),
    "the next batch is collected while two are served on average": (4.0, None, False),
    "more than a batch waits": (5.0, None, True),
    "the wait is an estimate": (None, 4.0, False),
}


@pytest.mark.parametrize("case", SATURATED)
def test_requests_wait_because_no_more_can_be_served(case: str) -> None:
    waiting, running, want = SATURATED[case]
    now = counters(queued_s=40.0, dequeued=110.0, served_s=80.0, completed=110.0, waiting=waiting, running=running)
    found = between(FORMER, now)
    assert isinstance(found, Window)
    assert found.saturated is want


@given(
    waits=st.lists(st.floats(0, 100), max_size=30),
    restarts=st.sets(st.integers(0, 30)),
    scrapes=st.sets(st.integers(1, 30), min_size=2),
)
def test_windows_add_up_to_what_happened_whatever_restarts(
    waits: list[float], restarts: set[int], scrapes: set[int]
) -> None:
    """A request ends each second; a restart loses what was counted since the last look, and nothing else."""
    started, queued, number = 0.0, 0.0, 0
    former: Counters | None = None
    lost, got_queued, got_number, since = 0, 0.0, 0.0, 0
    for second in range(1, 31):
        if second in restarts:
            lost, since = lost + since, 0
            started, queued, number = second - 0.5, 0.0, 0
        if second <= len(waits):
            queued, number, since = queued + waits[second - 1], number + 1, since + 1
        if second in scrapes:
            now = counters(float(second), started_s=started, queued_s=queued, dequeued=number, completed=number)
            found = between(former, now)
            assert isinstance(found, Window)
            got_queued, got_number, since, former = got_queued + found.queued_s, got_number + found.dequeued, 0, now
            assert found.queue_time_s >= 0
    assert got_number + lost + since == len(waits)
    assert got_queued <= sum(waits) + 1e-6


@given(st.floats(-600, 600), st.integers(2, 30))
def test_a_node_s_clock_that_is_wrong_counts_nothing_twice(skew_s: float, samples: int) -> None:
    """The start is by the node's clock: whatever it says, requests between samples are counted once."""
    started_s, counted, former = 1000.0 + skew_s, 0.0, None
    for number in range(samples):
        now = counters(1200.0 + 15 * number, started_s=started_s, dequeued=50.0 + number, completed=50.0 + number)
        found = between(former, now)
        counted += found.completed if isinstance(found, Window) and former is not None else 0
        former = now
    assert counted == samples - 1
