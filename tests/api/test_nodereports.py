"""Events and conditions of nodes, as the Kubernetes API takes them."""

import datetime as dt

from tessera.api.nodereports import Report, condition, event, event_name

NOON = dt.datetime(2026, 11, 21, 13, tzinfo=dt.timezone(dt.timedelta(hours=1)))
APPLIED = Report(reason="LayoutApplied", message="GPU 0: 7 x 1g.5gb")
FAILED = Report(reason="LayoutFailed", message="x" * 2000, warning=True)


def test_an_event_names_the_node_and_the_reason() -> None:
    got = event("n1", APPLIED, NOON, count=2)
    assert got["involvedObject"] == {"kind": "Node", "name": "n1", "uid": "n1"}
    assert (got["type"], got["reason"], got["count"]) == ("Normal", "LayoutApplied", 2)
    assert got["lastTimestamp"] == got["firstTimestamp"] == "2026-11-21T12:00:00Z"


def test_a_warning_is_one_and_its_message_is_no_longer_than_the_api_takes() -> None:
    got = event("n1", FAILED, NOON)
    assert got["type"] == "Warning"
    assert len(got["message"]) == 1024


def test_the_same_report_has_the_same_name() -> None:
    assert event_name("n1", APPLIED) == event_name("n1", APPLIED) == event("n1", APPLIED, NOON)["metadata"]["name"]
    assert len({event_name("n1", APPLIED), event_name("n1", FAILED), event_name("n2", APPLIED)}) == 3


def test_a_condition_remembers_when_its_status_changed() -> None:
    first = condition("True", APPLIED, NOON, None)
    later = NOON + dt.timedelta(minutes=1)
    assert first["lastTransitionTime"] == "2026-11-21T12:00:00Z"
    assert condition("True", APPLIED, later, first)["lastTransitionTime"] == "2026-11-21T12:00:00Z"
    assert condition("False", FAILED, later, first)["lastTransitionTime"] == "2026-11-21T12:01:00Z"
