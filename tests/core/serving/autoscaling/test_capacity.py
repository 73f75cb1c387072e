"""The capacity of a replica: measured while requests wait, remembered, given up slowly."""

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.serving.autoscaling.capacity import Capacity, measure, usable_slots
from tessera.core.serving.metrics.load import Load


def load(at_s: float, *, running: float = 20, waiting: int = 130, ready: int = 1, **more: Any) -> Load:
    """Return a load of equal replicas; requests wait in all or in none."""
    given: dict[str, Any] = {
        "arrived": 0,
        "completed": 0,
        "served_s": 0.0,
        "in_flight": math.ceil(running * ready) + waiting,
        "waiting": waiting,
        "saturated": float(running) if waiting else None,
        "queued": waiting > 0,
        "replicas": ready,
        "revision": "1",
    }
    return Load(at_s=at_s, ready=ready, **(given | more))


def measured(loads: Sequence[Load], former: Capacity | None = None, *, slots: int = 256) -> Capacity | None:
    """Return the capacity after passes."""
    for number in range(len(loads)):
        former = measure(former, loads[: number + 1], revision="1", slots=slots)
    return former


def known(requests: float, at_s: float = 0.0) -> Capacity:
    return Capacity(at_s=at_s, requests=requests, revision="1", slots=256)


MINUTE = [15.0 * number for number in range(4)]


def test_what_replicas_serve_while_requests_wait_for_a_minute_is_what_they_can() -> None:
    found = measured([load(at_s, ready=2) for at_s in MINUTE])
    assert found == known(20, 45.0)
    assert usable_slots(found, 256, 45.0) == 20
    assert usable_slots(found, 8, 45.0) == 8, "the spec's limit holds as well"


NOTHING: dict[str, list[Load]] = {
    "a burst": [load(at_s, waiting=0 if at_s == 15 else 9) for at_s in MINUTE],
    "less than a minute": [load(at_s) for at_s in MINUTE[:3]],
    "a single load": [load(0.0)],
    "a gap before the last load": [load(0.0), load(15.0), load(100.0)],
    "replicas that serve nothing are broken": [load(at_s, running=0) for at_s in MINUTE],
    "pods of another template, a moment ago": [
        load(at_s, revision="1" if at_s else "0") for at_s in (15.0 * number for number in range(4))
    ],
    "pods of several templates": [load(at_s, revision=None) for at_s in MINUTE],
    "requests that wait by an estimate": [load(at_s, saturated=None) for at_s in MINUTE],
}


@pytest.mark.parametrize("case", NOTHING)
def test_nothing_is_measured_of(case: str) -> None:
    assert measured(NOTHING[case]) is None
    assert usable_slots(None, 256, 0.0) == 256


def test_one_absurd_gauge_does_not_count() -> None:
    found = measured([load(at_s, running=99_999 if at_s == 15 else 20) for at_s in MINUTE])
    assert found == known(20, 45.0)


def test_it_is_remembered_and_grows_slowly_while_no_requests_wait() -> None:
    quiet = [load(3600 + at_s, running=5, waiting=0) for at_s in MINUTE]
    assert measured(quiet, known(20)) == known(20)
    assert [usable_slots(known(20), 256, 3600.0 * hours) for hours in (0, 1, 3, 24, 480)] == [20, 20, 21, 32, 256]


def test_replicas_that_serve_more_have_a_larger_capacity_at_once() -> None:
    found = measured([load(at_s, running=50, waiting=0) for at_s in MINUTE], known(20))
    assert found == known(50, 45.0)
    assert measured([load(at_s, running=21, waiting=0, ready=3) for at_s in MINUTE], known(30)) == known(30)


def test_what_was_measured_with_other_slots_is_forgotten() -> None:
    now = [load(at_s, running=5, waiting=0) for at_s in MINUTE]
    assert measure(known(20), now, revision="1", slots=512) is None
    assert measure(known(20), now, revision="2", slots=512) is None
    assert measure(known(20), now, revision="1", slots=256) == known(20)


def carried(requests: float, at_s: float = 0.0) -> Capacity:
    return msgspec.structs.replace(known(requests, at_s), carried=True)


def test_what_was_measured_of_another_template_is_carried_over_and_grows_once_the_rollout_has_ended() -> None:
    earlier = msgspec.structs.replace(known(20), revision="0")
    rolling = [load(3600 + at_s, running=99, waiting=0, revision=None) for at_s in MINUTE]
    found = measured(rolling, earlier)
    assert found == carried(20.4, 3645.0), "with the growth of the hour before, and none since"
    quiet = [load(3660 + at_s, running=5, waiting=0) for at_s in MINUTE]
    assert measured(quiet, found) == found
    assert [usable_slots(carried(20), 256, 600.0 * number) for number in (0, 1, 2, 6, 20)] == [20, 24, 28, 59, 256]


def test_the_growth_begins_again_where_requests_wait_and_ends_where_they_wait_for_a_minute() -> None:
    found = measured([load(3600.0, running=23)], carried(20))
    assert found == carried(20, 3600.0)
    assert measured([load(3600 + at_s, running=23) for at_s in MINUTE], carried(20)) == known(23, 3645.0)


def test_pods_of_a_new_template_that_serve_more_raise_what_was_carried_over_and_it_grows_on() -> None:
    assert measured([load(at_s, running=50, waiting=0) for at_s in MINUTE], carried(20)) == carried(50, 45.0)


@given(
    st.lists(
        st.tuples(st.floats(0, 300), st.integers(0, 50), st.integers(0, 400), st.integers(1, 6), st.floats(1, 200)),
        min_size=1,
        max_size=40,
    )
)
def test_more_waiting_never_gives_a_larger_capacity(
    steps: list[tuple[float, int, int, int, float]],
) -> None:
    """The same requests in service in equal replicas, in one history with more that wait."""
    few, many, at_s = list[Load](), list[Load](), 0.0
    less = more = None
    for running, waiting, added, ready, pause_s in steps:
        at_s += pause_s
        few.append(load(at_s, running=math.floor(running), waiting=waiting, ready=ready))
        many.append(load(at_s, running=math.floor(running), waiting=waiting + added, ready=ready))
        less = measure(less, few, revision="", slots=256)
        more = measure(more, many, revision="", slots=256)
        assert 1 <= usable_slots(more, 256, at_s) <= usable_slots(less, 256, at_s) <= 256
