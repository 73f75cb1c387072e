"""Conditions: what changes when the same, and when something else, is found."""

import datetime as dt

from tessera.api.kubernetes.conditions import Condition, Finding, is_true, updated_conditions

THEN = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)
NOW = THEN + dt.timedelta(hours=1)


def test_the_time_of_a_transition_stays_while_the_status_is_the_same() -> None:
    before = updated_conditions((), [Finding("Ready", "False", "Waiting", "two nodes are missing")], THEN, generation=1)
    after = updated_conditions(before, [Finding("Ready", "False", "Waiting", "one node is missing")], NOW, generation=2)
    want = Condition(
        type="Ready",
        status="False",
        observed_generation=2,
        last_transition_time="2026-11-21T12:00:00Z",
        reason="Waiting",
        message="one node is missing",
    )
    assert after == (want,)


def test_another_status_is_a_transition() -> None:
    before = updated_conditions((), [Finding("Ready", "False", "Waiting")], THEN, generation=1)
    after = updated_conditions(before, [Finding("Ready", "True", "Done")], NOW, generation=1)
    assert [(each.status, each.last_transition_time) for each in after] == [("True", "2026-11-21T13:00:00Z")]


def test_what_nothing_was_found_about_is_kept() -> None:
    before = updated_conditions((), [Finding("Accepted", "True", "Valid")], THEN, generation=1)
    after = updated_conditions(before, [Finding("Ready", "True", "Done")], NOW, generation=1)
    assert [each.type for each in after] == ["Ready", "Accepted"]


def test_a_condition_is_true_only_where_it_says_so() -> None:
    node = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}, {"type": "Other", "status": "True"}]}}
    assert (is_true(node, "Other"), is_true(node, "Ready"), is_true({}, "Ready")) == (True, False, False)
