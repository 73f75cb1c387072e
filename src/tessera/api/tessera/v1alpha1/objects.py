"""Common parts of Tessera's objects (tessera.dev/v1alpha1)."""

import contextlib
import datetime as dt
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Protocol, TypeVar

import msgspec

from tessera.api.fields import refused_form
from tessera.api.kubernetes.conditions import Condition, Finding, updated_conditions
from tessera.core.workload.tesseranames import API_VERSION
from tessera.errors import shown

__all__ = [
    "API_VERSION",
    "NAMESPACE",
    "Metadata",
    "Reason",
    "Tally",
    "coverage",
    "invalid",
    "object_of_node",
    "of_this_version",
    "read_object",
    "reason_text",
    "refused_status",
    "subject_of",
]

NAMESPACE: Final = "tessera-system"
"""Namespace of Tessera's programs, and of the objects that they share. The chart rejects another."""
_REASON_CHARACTERS: Final = 512
Reason = Annotated[str, msgspec.Meta(max_length=_REASON_CHARACTERS)]
"""Why something on a node is not as desired; see `reason_text`."""
Tally = Annotated[int, msgspec.Meta(ge=0)]
Form = TypeVar("Form", bound=msgspec.Struct)


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """Identity of an object, its labels, and the generation of its spec."""

    name: str
    generation: int = 0
    labels: dict[str, str] = {}


def subject_of(kind: str, obj: Mapping[str, Any]) -> str:
    """Return an object's name for errors, however malformed it is."""
    metadata = obj.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return f"{kind} {shown(name)[1:-1]}"


def read_object(kind: str, obj: Mapping[str, Any], form: type[Form]) -> Form:
    """Return the record of an object.

    Raises:
        InvalidInput: it has another form.

    """
    try:
        return msgspec.convert(obj, form)
    except msgspec.ValidationError as error:
        hint = f"see `kubectl explain {kind.lower()}` for {API_VERSION}"
        raise refused_form(error, obj, subject_of(kind, obj), hint, form=form) from error


@contextlib.contextmanager
def of_this_version(kind: str, obj: Mapping[str, Any]) -> Iterator[None]:
    """Name the object in errors of reading what Tessera itself has written.

    Raises:
        InvalidInput: it has another form.

    """
    try:
        yield
    except ValueError as error:
        hint = f"see `kubectl explain {kind.lower()}` for {API_VERSION}"
        raise refused_form(error, obj, subject_of(kind, obj), hint) from error


def reason_text(reason: str) -> str:
    """Return a reason as a status has it, of bounded length; a registry or a store may say anything."""
    return "".join(each if each.isprintable() else " " for each in reason[:_REASON_CHARACTERS])


def object_of_node(kind: str, node: str, uid: str) -> dict[str, Any]:
    """Return a new object for a node, owned by the Node."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": node, "ownerReferences": [owner]}}


def coverage(nodes: int, ready: int, words: tuple[str, str, str]) -> tuple[Finding, Finding]:
    """Return the findings for a valid object whose content selected nodes should have.

    Args:
        nodes: how many are selected.
        ready: how many have all of it.
        words: what the others are doing, what they lack, and what all have in the end.

    """
    doing, lacking, whole = words
    if not nodes:
        found = Finding("Ready", "False", "NoNodes", "it selects no node with an agent")
    elif ready < nodes:
        lack = "node lacks" if nodes == 1 else "nodes lack"
        found = Finding("Ready", "False", doing, f"{nodes - ready} of {nodes} {lack} {lacking}")
    else:
        found = Finding("Ready", "True", "Present", f"all nodes have {whole}")
    return Finding("Accepted", "True", "Valid", "the spec is valid"), found


class _Status(Protocol):
    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Return its conditions."""


StatusT = TypeVar("StatusT", bound=_Status)


def refused_status(former: StatusT, generation: int, problem: str, now: dt.datetime) -> StatusT:
    """Return the status of an invalid object; everything that was applied before stays."""
    conditions = updated_conditions(former.conditions, (invalid(problem),), now, generation=generation)
    return msgspec.structs.replace(former, observed_generation=generation, conditions=conditions)  # type: ignore[type-var]


def invalid(problem: str) -> Finding:
    """Return the finding for an invalid object."""
    return Finding("Accepted", "False", "Invalid", problem)
