"""Label selectors as text, the parameter `labelSelector`: `app=a,tier in (x,y),!old`.

Source: k8s.io/apimachinery `pkg/labels/selector.go`.
"""

import re
from collections.abc import Mapping
from typing import Final, Literal

from tessera.core.packing.fit.admission import matches
from tessera.core.workload.need import Requirement, SelectorTerm
from tessera.errors import InvalidInput, shown

__all__ = ["Selector", "read_selector", "selects"]

Selector = tuple[Requirement, ...]
"""All must match; an empty one selects everything."""
_LONGEST: Final = 4096
_KEY = r"[A-Za-z0-9](?:[-A-Za-z0-9_./]*[A-Za-z0-9])?"
_VALUE = r"[-A-Za-z0-9_.]*"
_ONE = re.compile(
    rf"\s*(?:!\s*(?P<absent>{_KEY})"
    rf"|(?P<key>{_KEY})(?:\s+(?P<word>in|notin)\s*\((?P<values>[^()]*)\)|\s*(?P<mark>==|=|!=|>|<)\s*(?P<value>{_VALUE}))?)"
    r"\s*(?P<next>,|$)"
)
_MARKS: Final[Mapping[str, Literal["In", "NotIn", "Gt", "Lt"]]] = {
    "=": "In",
    "==": "In",
    "!=": "NotIn",
    ">": "Gt",
    "<": "Lt",
    "in": "In",
    "notin": "NotIn",
}


def read_selector(text: str, subject: str) -> Selector:
    """Return a selector.

    Raises:
        InvalidInput: it is not a selector.

    """
    found, at = [], 0
    if len(text) > _LONGEST:
        raise InvalidInput(subject, found=f"{len(text)} characters are more than {_LONGEST}")
    while text.strip() and at <= len(text):
        match = _ONE.match(text, at)
        values = [each.strip() for each in ((match and match["values"]) or "").split(",")]
        if match is None or not all(re.fullmatch(_VALUE, each) for each in values):
            raise InvalidInput(subject, found=shown(text), expected="a label selector, as app=a,tier in (x,y),!old")
        found.append(_requirement(match, values))
        at = match.end() if match["next"] else len(text) + 1
    return tuple(found)


def _requirement(match: re.Match[str], values: list[str]) -> Requirement:
    if match["absent"]:
        return Requirement(key=match["absent"], operator="DoesNotExist", values=())
    if match["word"]:
        return Requirement(key=match["key"], operator=_MARKS[match["word"]], values=tuple(values))
    if match["mark"]:
        return Requirement(key=match["key"], operator=_MARKS[match["mark"]], values=(match["value"],))
    return Requirement(key=match["key"], operator="Exists", values=())


def selects(selector: Selector, labels: Mapping[str, str]) -> bool:
    """Return whether an object with these labels is selected."""
    return not selector or matches(SelectorTerm(expressions=selector), labels, "")
