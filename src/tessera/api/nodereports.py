"""What Tessera reports on a Node object: events, a condition, labels; as JSON for the Kubernetes API."""

import datetime as dt
import hashlib
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from tessera.core.mps import Enforcement

__all__ = ["CONDITION", "DEVICE_LIST", "ENFORCEMENT", "Report", "condition", "enforcement_text", "event", "event_name"]

CONDITION = "TesseraLayoutApplied"
"""Type of the node condition that says whether the layout asked for is in force."""

ENFORCEMENT = "tessera.dev/enforcement"
"""Annotation of a node: what keeps pods within their shares on each device, as JSON."""

DEVICE_LIST = "tessera.dev/device-list-strategy"
"""Annotation of a node: how its devices are handed to containers, `cdi-cri`; several are separated by commas."""

_COMPONENT = "tessera-agent"
_MESSAGE_CHARACTERS = 1024
"""Source: kubernetes/kubernetes `pkg/apis/core/validation/events.go` (`NoteLengthLimit`)."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened on a node and is worth a line in `kubectl describe node`."""

    reason: str
    """One word in CamelCase: `LayoutApplied`, `LayoutFailed`, `LayoutBlocked`."""
    message: str
    warning: bool = False


def event_name(node: str, report: Report) -> str:
    """Return the event's name: the same report of the same node has the same name, so it is counted, not repeated."""
    digest = hashlib.sha256(f"{report.reason}\n{report.message}".encode()).hexdigest()[:16]
    return f"{node}.{digest}"


def event(
    node: str, report: Report, now: dt.datetime, *, count: int = 1, component: str = _COMPONENT
) -> dict[str, Any]:
    """Return a core/v1 Event about a node, in namespace `default`, where kubectl looks for those of nodes.

    Source: kubernetes/client-go `tools/record/event.go` (`makeEvent`): a node's UID is given as its name.
    """
    moment = _text(now)
    return {
        "metadata": {"name": event_name(node, report), "namespace": "default"},
        "involvedObject": {"kind": "Node", "name": node, "uid": node},
        "reason": report.reason,
        "message": report.message[:_MESSAGE_CHARACTERS],
        "type": "Warning" if report.warning else "Normal",
        "source": {"component": component, "host": node},
        "reportingComponent": component,
        "reportingInstance": node,
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": count,
    }


def condition(
    status: Literal["True", "False", "Unknown"], report: Report, now: dt.datetime, former: dict[str, Any] | None
) -> dict[str, Any]:
    """Return the node condition; the time of its transition is the former one's where the status is the same."""
    moment = _text(now)
    same = former is not None and former.get("status") == status
    return {
        "type": CONDITION,
        "status": status,
        "reason": report.reason,
        "message": report.message[:_MESSAGE_CHARACTERS],
        "lastHeartbeatTime": moment,
        "lastTransitionTime": former.get("lastTransitionTime", moment) if former and same else moment,
    }


def enforcement_text(levels: Iterable[Enforcement]) -> str:
    """Return the annotation's text: a list with GPU, MIG instance where there is one, mode and level in force."""
    return msgspec.json.encode(tuple(levels)).decode()


def _text(moment: dt.datetime) -> str:
    return moment.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
