"""What came of a model's fetches: laws over all sequences of up to five events."""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import msgspec
import pytest

from tessera.core.storage.models.fetchhistory import FetchHistory, fetch_history, resumed_history
from tessera.core.storage.models.nodemodels import ObservedModel

EVENTS: dict[str, Callable[[FetchHistory, float], FetchHistory]] = {
    "begun": lambda history, _now_s: history.begun(),
    "did not fit": lambda history, now_s: history.lacked_room(9, int(now_s)),
    "room made": lambda history, _now_s: history.room_made(),
    "refused": lambda history, now_s: history.refused("no room", now_s, 4),
    "failed at 0": lambda history, now_s: history.failed("403", now_s, 0),
    "failed at 1": lambda history, now_s: history.failed("403", now_s, 1),
    "failed at 2": lambda history, now_s: history.failed("403", now_s, 2),
    "fetched": lambda history, now_s: history.fetched(now_s),
    "another source": lambda history, now_s: history.of(f"{now_s}"),
    "another Secret": lambda history, now_s: history.opened(f"{now_s}"),
}
"""What happens to a model, at a time that no other event has."""
ROOM = {"did not fit", "room made", "refused", "fetched", "another source"}


def histories() -> Iterator[tuple[tuple[str, ...], FetchHistory]]:
    """Yield all sequences of up to five events, with what is known after them."""
    known: dict[tuple[str, ...], FetchHistory] = {(): fetch_history("a").of("first")}
    for number in range(5):
        known = {
            (*events, event): happen(history, number + 1.0)
            for (events, history), (event, happen) in product(known.items(), EVENTS.items())
        }
        yield from known.items()


def ended_since(events: Sequence[str], *ends: str) -> Sequence[str]:
    """Return the events after the last one of these."""
    last = max((place for place, each in enumerate(events) if each in ends), default=-1)
    return events[last + 1 :]


def vain_failures(events: Sequence[str]) -> int:
    """Return how many fetches have failed in room made for them without further bytes since the last further ones."""
    count, most = 0, 0
    for place, event in enumerate(events):
        if event in {"another source", "fetched"}:
            count, most = 0, 0
        elif event == "another Secret":
            count = 0
        elif event.startswith("failed"):
            done = int(event[-1])
            before = [each for each in events[:place] if each in ROOM or each.startswith("failed")]
            count = 0 if done > most else count + (before[-1:] == ["room made"])
            most = max(most, done)
    return count


def test_laws_of_all_sequences_of_up_to_five_events() -> None:
    for events, history in histories():
        since = ended_since(events, "another source")
        # 1. What is staged of a model without room is free until its fetch begins again, and no longer.
        last = next((each for each in reversed(since) if each != "another Secret"), "")
        assert (history.room == "Refused") is (last == "refused"), events
        # It fits once the disk has what was free then, and what the plan lacked beside what others would free.
        refused = max((place for place, each in enumerate(events) if each == "refused"), default=0)
        if last == "refused" and since[refused - len(events) - 1 :][:1] == ("did not fit",):
            assert [history.has_room(refused + each) for each in (-9, 0, 3, 4, 99)] == [False] * 3 + [True] * 2, events
        elif last != "refused":
            assert history.has_room(10**9) is (history.room == "Made"), events
        # 2. Room is needed from a fetch that did not fit to the decision on it.
        assert history.missing_bytes == (9 if history.room == "Needed" else 0), events
        # 3. Nothing pauses making room but failures in room that was made, in a row and without further bytes.
        count = vain_failures(events)
        assert (0 if history.backoff is None else history.backoff.count) == count, events
        assert not count or "room made" in since, events
        # 4. Failures count in a row, those of the same source.
        ends = [each for each in events if each.startswith(("failed", "refused")) or each == "fetched"]
        assert bool(history.report.failures) is (ends[-1:] != ["fetched"] and bool(ends)), events
        assert history.report.state == ("Missing" if not ends else "Ready" if ends[-1] == "fetched" else "Failed")
        # 5. Of a former source nothing is known but the report; the same Secret changes nothing.
        assert history.of("new") == FetchHistory(history.report, "new"), events
        assert history.of(history.identity) is history, events
        assert history.opened(history.credentials) == history, events


def test_failures_are_counted_anew_for_another_source() -> None:
    failed = fetch_history("a").of("1").failed("403", 1.0, 0).refused("no room", 2.0, 9).put_off("in use", 3.0)
    assert (failed.report.failures, failed.report.failed_s, failed.report.reason) == (3, 3.0, "in use")
    other = failed.of("2")
    assert (other.report.failures, other.report.identity) == (3, "1")
    again = other.failed("404", 4.0, 0)
    assert (again.report.failures, again.report.identity, again.report.reason) == (1, "2", "404")
    fetched = again.fetched(5.0).report
    assert (fetched.state, fetched.failures, fetched.failed_s, fetched.checked_s) == ("Ready", 0, 0.0, 5.0)


def test_a_model_that_waits_until_others_have_made_room_says_so() -> None:
    needed = fetch_history("a").of("1").failed("403", 1.0, 0).lacked_room(9, 0)
    assert needed.room_made().report == needed.report
    made = needed.room_made("evicting b")
    want = msgspec.structs.replace(needed.report, state="Missing", reason="evicting b")
    assert (made.report, made.room) == (want, "Made")


def test_room_that_could_not_be_made_is_none() -> None:
    made = fetch_history("a").of("1").lacked_room(9, 0).room_made()
    assert made.put_off("in use", 1.0).failed("403", 2.0, 0).backoff is None
    assert made.failed("403", 2.0, 0).backoff is not None


@pytest.mark.parametrize(("count", "pause_s"), [(1, 3600), (2, 7200), (3, 14400), (6, 86400), (60, 86400)])
def test_the_pause_doubles_up_to_a_day(count: int, pause_s: float) -> None:
    history = fetch_history("a").of("1")
    for number in range(count):
        history = history.lacked_room(9, 0).room_made().begun().failed(f"403 {number}", 1000.0, 0)
    backoff = history.room_backoff(999.0 + pause_s)
    assert backoff is not None
    assert (backoff.until_s, backoff.reason) == (1000.0 + pause_s, f"403 {count - 1}")
    assert history.room_backoff(1000.0 + pause_s) is None


@pytest.mark.parametrize(
    ("reported", "resumed"),
    [
        ({"state": "Ready", "checked_s": 1.0, "reason": "EIO at a former one"}, ("Ready", "")),
        ({"state": "Failed", "checked_s": 1.0, "reason": "EIO"}, ("Ready", "")),
        ({"state": "Failed", "reason": "EIO"}, ("Missing", "")),
        ({"state": "Failed", "checked_s": 1.0, "failures": 2, "reason": "403"}, ("Failed", "403")),
        ({"state": "Fetching", "checked_s": 1.0}, ("Missing", "")),
        ({"state": "Missing", "reason": "not enough space"}, ("Missing", "")),
    ],
)
def test_an_agent_that_starts_takes_over_how_the_last_fetch_ended_and_no_error_of_the_disk(
    reported: dict[str, Any], resumed: tuple[str, str]
) -> None:
    former = ObservedModel(name="a", identity="1", **reported)
    found = resumed_history(former)
    assert (found.report.state, found.report.reason) == resumed
    assert found.of("1").report.failures == former.failures
