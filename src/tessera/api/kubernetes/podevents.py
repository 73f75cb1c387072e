"""Events about one object: reports of schedulers, kubelets and Tessera."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

__all__ = ["ObservedEvent", "read_events"]


class ObservedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of an object, reported once or several times."""

    last: str = ""
    """When it was last reported, in the API's format."""
    type: str = "Normal"
    """`Normal` or `Warning`."""
    reason: str = ""
    message: str = ""
    count: int = 1


def read_events(
    objects: Iterable[Mapping[str, Any]], *, kind: str, namespace: str, name: str
) -> tuple[ObservedEvent, ...]:
    """Return the events about an object, the latest last; other objects are ignored."""
    desired = {"kind": kind, "namespace": namespace, "name": name}
    found = (
        _event(each)
        for each in objects
        if each.get("kind") == "Event"
        and all(_of(each.get("involvedObject"), key) == value for key, value in desired.items())
    )
    return tuple(sorted(found, key=lambda each: each.last))


def _event(event: Mapping[str, Any]) -> ObservedEvent:
    series = event.get("series")
    moments = (
        event.get("lastTimestamp"),
        _of(series, "lastObservedTime"),
        event.get("eventTime"),
        _of(event.get("metadata"), "creationTimestamp"),
    )
    last = next((moment for moment in moments if isinstance(moment, str)), "")
    counts = (count for count in (event.get("count"), _of(series, "count")) if isinstance(count, int))
    return ObservedEvent(
        last=last,
        type=str(event.get("type") or "Normal"),
        reason=str(event.get("reason") or ""),
        message=str(event.get("message") or ""),
        count=next(counts, 1),
    )


def _of(part: Any, name: str) -> Any:
    return part.get(name) if isinstance(part, dict) else None
