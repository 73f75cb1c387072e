"""Events about a pod in order, whatever form they have; everything else is passed over."""

from typing import Any

from tessera.api.kubernetes.podevents import ObservedEvent, read_events

POD = {"kind": "Pod", "namespace": "ns", "name": "p"}


def event(**more: Any) -> dict[str, Any]:
    return {"kind": "Event", "involvedObject": POD} | more


def read(*objects: dict[str, Any]) -> tuple[ObservedEvent, ...]:
    return read_events(objects, kind="Pod", namespace="ns", name="p")


def test_events_about_the_pod_the_last_one_last() -> None:
    old = event(lastTimestamp="2026-01-01T00:00:01Z", type="Warning", reason="FailedScheduling", message="no", count=5)
    new = event(eventTime="2026-01-01T00:00:02Z", reason="Scheduled", series={"count": 3})
    series = event(series={"lastObservedTime": "2026-01-01T00:00:03Z"}, eventTime="2026-01-01T00:00:00Z")
    bare = event(metadata={"creationTimestamp": "2026-01-01T00:00:04Z"})
    assert read(bare, new, old, series) == (
        ObservedEvent(last="2026-01-01T00:00:01Z", type="Warning", reason="FailedScheduling", message="no", count=5),
        ObservedEvent(last="2026-01-01T00:00:02Z", reason="Scheduled", count=3),
        ObservedEvent(last="2026-01-01T00:00:03Z"),
        ObservedEvent(last="2026-01-01T00:00:04Z"),
    )


def test_what_is_no_event_about_it_is_passed_over() -> None:
    others: list[dict[str, Any]] = [
        {"kind": "Pod"},
        event(involvedObject={**POD, "name": "q"}),
        event(involvedObject={**POD, "kind": "Node"}),
        event(involvedObject="p"),
        event(involvedObject=None),
    ]
    assert read(*others) == ()
    assert read(event(metadata=[], series="x", count="many")) == (ObservedEvent(),)
