"""Conditions in the status of Tessera's objects (metav1.Condition)."""

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec

from tessera.api.kubernetes.times import time_text

__all__ = ["Condition", "Conditions", "Finding", "is_true", "updated_conditions"]

_REASON_CHARACTERS = 1024
_MESSAGE_CHARACTERS = 32768
"""Source: kubernetes/apimachinery `pkg/apis/meta/v1/types.go` (`Condition`)."""

Status = Literal["True", "False", "Unknown"]


class Condition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One aspect of an object's state."""

    type: Annotated[str, msgspec.Meta(max_length=316)]
    """Its type, in CamelCase."""
    status: Status
    observed_generation: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Generation of the object that was observed; an older one than the object's own is outdated."""
    last_transition_time: Annotated[str, msgspec.Meta(max_length=32)]
    """When the status last changed, RFC 3339 in UTC."""
    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=_REASON_CHARACTERS)]
    """One word in CamelCase."""
    message: Annotated[str, msgspec.Meta(max_length=_MESSAGE_CHARACTERS)]
    """The cause and the fix, in a sentence."""


Conditions = Annotated[
    tuple[Condition, ...],
    msgspec.Meta(
        max_length=16, extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    ),
]
"""The conditions of a status, one of each type."""


class Finding(msgspec.Struct, frozen=True):
    """A new finding for a condition."""

    type: str
    status: Status
    reason: str
    message: str = ""


def updated_conditions(
    former: Iterable[Condition], findings: Iterable[Finding], now: dt.datetime, *, generation: int
) -> tuple[Condition, ...]:
    """Return the conditions after findings, in the order of the findings; conditions without one are kept.

    The time of a transition stays if the status is the same, so that repeating a finding changes nothing.
    """
    before = {each.type: each for each in former}
    moment = time_text(now.timestamp())
    after = {
        each.type: Condition(
            type=each.type,
            status=each.status,
            observed_generation=generation,
            last_transition_time=before[each.type].last_transition_time
            if each.type in before and before[each.type].status == each.status
            else moment,
            reason=each.reason[:_REASON_CHARACTERS],
            message=each.message[:_MESSAGE_CHARACTERS],
        )
        for each in findings
    }
    return (*after.values(), *(each for kind, each in before.items() if kind not in after))


def is_true(obj: Mapping[str, Any], kind: str) -> bool:
    """Return whether an object's status has a true condition of a type, such as `Ready` of a Node."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == kind and one.get("status") == "True" for one in conditions)
