"""Lifecycle of a pod and its containers: when they were created, whether the pod was admitted, whether it has ended."""

from collections.abc import Iterator, Mapping
from typing import Any

from tessera.api.fields import Field
from tessera.api.kubernetes.times import read_time

__all__ = [
    "container_ids",
    "created_containers",
    "created_ns",
    "is_finished",
    "is_terminating",
    "runtime_of",
    "started_s",
    "waiting_messages",
    "was_admitted",
    "was_created",
]

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


def started_s(pod: Mapping[str, Any]) -> float:
    """Return when the kubelet admitted a pod, in seconds since 1970; 0 if unknown."""
    try:
        return read_time(str((pod.get("status") or {}).get("startTime")))
    except ValueError:
        return 0.0


def was_admitted(pod: Mapping[str, Any]) -> bool:
    """Return whether a kubelet has admitted a pod: only then it reports the pod's containers."""
    status = pod.get("status") or {}
    return bool(status.get("containerStatuses") or status.get("initContainerStatuses"))


def was_created(pod: Mapping[str, Any], container: str) -> bool:
    """Return whether a kubelet has ever created a container of a pod, by the pod's status."""
    return container in created_containers(pod)


def created_containers(pod: Mapping[str, Any]) -> frozenset[str]:
    """Return the containers of a pod that a kubelet has ever created, by the pod's status."""
    status = pod.get("status") or {}
    found = (*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ()))
    return frozenset(str(each.get("name")) for each in found if each.get("containerID"))


def container_ids(pod: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the runtime's id of each created container and its name: of `containerd://ID` the ID."""
    status = pod.get("status") or {}
    for kind in ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"):
        for each in status.get(kind) or ():
            if name := str(each.get("containerID") or "").rpartition("/")[2]:
                yield name, str(each.get("name") or "")


def runtime_of(pod: Mapping[str, Any], node: Mapping[str, Any]) -> str:
    """Return the runtime of a pod's containers: of `containerd://ID` `containerd`; empty if unknown.

    Args:
        pod: its status tells, once a container was created.
        node: its Node object, which tells before that, as while an image is pulled; empty if there is none.

    """
    status = pod.get("status") or {}
    found = (*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ()))
    ids = (str(each.get("containerID") or "").partition("://") for each in found)
    info = (node.get("status") or {}).get("nodeInfo") or {}
    usual = str(info.get("containerRuntimeVersion") or "").partition("://")[0]
    return next((runtime for runtime, _, name in ids if name), usual)


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
