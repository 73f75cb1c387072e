"""Lifecycle of a pod: when it was created, whether it has ended, whether it is terminating."""

from collections.abc import Mapping
from typing import Any

from tessera.api.fields import Field
from tessera.api.kubernetes.times import read_time

__all__ = ["created_ns", "is_finished", "is_terminating", "waiting_messages"]

_NS = 10**9
_LATEST_NS = 2**63 - 1
"""In the year 2262. Records on disk hold no later time."""


def is_finished(pod: Field | Mapping[str, Any]) -> bool:
    """Return whether a pod has run to its end and uses nothing."""
    return _value(pod, "status", "phase") in ("Succeeded", "Failed")


def is_terminating(obj: Field | Mapping[str, Any]) -> bool:
    """Return whether an object is being deleted: a pod's containers run until they end or their grace period does."""
    return bool(_value(obj, "metadata", "deletionTimestamp"))


def created_ns(pod: Field | Mapping[str, Any]) -> int:
    """Return when a pod was created, in nanoseconds since 1970; 0 if unknown, or a live object has an invalid time.

    Raises:
        InvalidInput: the time in a document is invalid.

    """
    if isinstance(pod, Field):
        field = pod.get("metadata", "creationTimestamp")
        try:
            return _read_ns(field.text()) if field.present else 0
        except ValueError as error:
            raise field.refuse("a time, as 2026-01-31T12:00:00Z") from error
    try:
        return _read_ns(str(_value(pod, "metadata", "creationTimestamp")))
    except ValueError:
        return 0


def waiting_messages(pod: Mapping[str, Any]) -> dict[str, str]:
    """Return why containers of a pod do not run yet, or not again, in the kubelet's words; by container."""
    status = pod.get("status") or {}
    states = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    waiting = ((each.get("name"), (each.get("state") or {}).get("waiting")) for each in states)
    return {str(name): str(why.get("message") or "") for name, why in waiting if why is not None}


def _read_ns(text: str) -> int:
    return min(max(0, int(read_time(text))) * _NS, _LATEST_NS)


def _value(obj: Field | Mapping[str, Any], part: str, key: str) -> Any:
    if isinstance(obj, Field):
        return obj.get(part, key).value
    inside = obj.get(part)
    return inside.get(key) if isinstance(inside, Mapping) else None
