"""kube-scheduler's extender requests and responses as JSON (extender v1).

Keys are Go's field names, because the Go structs have no tags. They are read as Go reads them: the exact name or any
other case of it, the last one where a name comes twice, null as nothing, unknown names left out.

Source: kubernetes/kube-scheduler `extender/v1/types.go`; Go `encoding/json`, `Unmarshal`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from decimal import Decimal
from typing import Any, TypeVar

import msgspec

from tessera.api.fields import error_phrase, in_place, refused_form
from tessera.errors import UNDECODABLE, InvalidInput, shown

__all__ = [
    "Args",
    "BindingArgs",
    "Preemption",
    "PreemptionCandidate",
    "read_args",
    "read_binding",
    "read_preemption",
    "write_bound",
    "write_error",
    "write_filtered",
    "write_priorities",
    "write_victims",
]

Wire = TypeVar("Wire", bound=msgspec.Struct)
Value = TypeVar("Value")

_ACCEPTED = "send what kube-scheduler does: extender/v1 of k8s.io/kube-scheduler"


class Args(msgspec.Struct, frozen=True, kw_only=True):
    """A pod, and the candidate nodes: the body of filter and prioritize."""

    pod: dict[str, Any]
    names: tuple[str, ...]
    """Names of the nodes, each once, in their order."""
    nodes: tuple[tuple[str, msgspec.Raw], ...] | None = None
    """The Node objects of the request, by name; None for names alone."""
    named: bool = True
    """Whether names were sent; the response has names then."""


class BindingArgs(msgspec.Struct, frozen=True, kw_only=True):
    """A pod to bind and its node."""

    namespace: str
    name: str
    uid: str
    """Empty if the caller did not send it."""
    node: str

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


class PreemptionCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """A node with kube-scheduler's victims."""

    node: str
    victims: tuple[str, ...]
    """Their UIDs."""
    violations: int = 0
    """How many of them violate a PodDisruptionBudget."""


class Preemption(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that fits nowhere, and the nodes where preemption may help."""

    pod: dict[str, Any]
    candidates: tuple[PreemptionCandidate, ...]


# The wire

_NULL = msgspec.Raw(b"null")


class _Args(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    rename={"pod": "Pod", "nodes": "Nodes", "node_names": "NodeNames"},
):
    pod: msgspec.Raw = _NULL
    nodes: msgspec.Raw = _NULL
    node_names: list[str] | None = None


class _NodeList(msgspec.Struct, frozen=True):
    items: list[msgspec.Raw] | None = None


class _Metadata(msgspec.Struct, frozen=True):
    name: str | None = ""
    uid: str | None = ""


class _Named(msgspec.Struct, frozen=True):
    metadata: _Metadata | None = None


class _Binding(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    rename={"name": "PodName", "namespace": "PodNamespace", "uid": "PodUID", "node": "Node"},
):
    name: str | None = ""
    namespace: str | None = ""
    uid: str | None = ""
    node: str | None = ""


class _Preemption(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    rename={"pod": "Pod", "victims": "NodeNameToVictims", "meta": "NodeNameToMetaVictims"},
):
    pod: msgspec.Raw = _NULL
    victims: dict[str, msgspec.Raw] | None = None
    meta: dict[str, msgspec.Raw] | None = None


class _Victims(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    rename={"pods": "Pods", "violations": "NumPDBViolations"},
):
    pods: list[msgspec.Raw] | None = None
    violations: int | None = 0


class _MetaPod(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"uid": "UID"}):
    uid: str | None = ""


_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_POD = msgspec.json.Decoder(dict[str, Any], float_hook=Decimal)
_ENCODE = msgspec.json.Encoder().encode


def _guarded(subject: str, decode: Callable[[], Value]) -> Value:
    """Return a decoder's result, with its errors as ours."""
    try:
        return in_place(subject, decode)
    except RecursionError as error:
        raise InvalidInput(subject, found="its JSON is nested too deeply", hint=_ACCEPTED) from error
    except ValueError as error:
        cause = error_phrase(error, b"")
        raise InvalidInput(subject, found=f"it is not a JSON object ({cause})", hint=_ACCEPTED) from error


def _read(kind: type[Wire], body: bytes | msgspec.Raw, subject: str) -> Wire:
    """Return a record; names match in any case unless all are as Go writes them."""
    try:
        return msgspec.json.decode(body, type=kind)
    except UNDECODABLE:
        return _guarded(subject, lambda: _folded(kind, body))


def _folded(kind: type[Wire], body: bytes | msgspec.Raw) -> Wire:
    members = {key.casefold(): (key, value) for key, value in _MEMBERS.decode(body).items()}
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        key, value = members.get(field.encode_name.casefold(), ("", None))
        if value is not None:
            values[field.name] = _member(key, value, field.type)
    return kind(**values)


def _member(key: str, value: msgspec.Raw, kind: Any) -> Any:
    try:
        return msgspec.json.decode(value, type=kind)
    except msgspec.ValidationError as error:
        raise refused_form(error, bytes(value), shown(key)[1:-1], _ACCEPTED) from error


def _pod(raw: msgspec.Raw, subject: str) -> dict[str, Any]:
    if _nothing(raw):
        raise InvalidInput(subject, found="it has no Pod", hint=_ACCEPTED)
    return _guarded(f"{subject}, Pod", lambda: _POD.decode(raw))


def _nothing(raw: msgspec.Raw) -> bool:
    return raw == _NULL


# Questions


def read_args(body: bytes, subject: str = "filter request") -> Args:
    """Return the request of filter and prioritize.

    Raises:
        InvalidInput: not JSON, no pod, or neither nodes nor names.

    """
    wire = _read(_Args, body, subject)
    nodes = None if _nothing(wire.nodes) else _nodes(wire.nodes, subject)
    if nodes is None and wire.node_names is None:
        raise InvalidInput(subject, found="it has neither Nodes nor NodeNames", hint=_ACCEPTED)
    names = wire.node_names if wire.node_names is not None else [name for name, _ in nodes or ()]
    return Args(
        pod=_pod(wire.pod, subject),
        names=tuple(dict.fromkeys(names)),
        nodes=nodes,
        named=wire.node_names is not None,
    )


def _nodes(raw: msgspec.Raw, subject: str) -> tuple[tuple[str, msgspec.Raw], ...]:
    items = _guarded(f"{subject}, Nodes", lambda: _folded(_NodeList, raw)).items or ()
    return tuple((_metadata(item, f"{subject}, Nodes").name or "", item) for item in items)


def _metadata(item: msgspec.Raw, subject: str) -> _Metadata:
    return _guarded(subject, lambda: msgspec.json.decode(item, type=_Named)).metadata or _Metadata()


def read_binding(body: bytes, subject: str = "bind request") -> BindingArgs:
    """Return the request of bind.

    Raises:
        InvalidInput: not JSON, or without the names of pod and node.

    """
    wire = _read(_Binding, body, subject)
    if not wire.name or not wire.namespace or not wire.node:
        lacking = (("PodName", wire.name), ("PodNamespace", wire.namespace), ("Node", wire.node))
        found = f"no {', no '.join(name for name, value in lacking if not value)}"
        raise InvalidInput(subject, found=f"it has {found}", hint=_ACCEPTED)
    return BindingArgs(namespace=wire.namespace, name=wire.name, uid=wire.uid or "", node=wire.node)


def read_preemption(body: bytes, subject: str = "preempt request") -> Preemption:
    """Return the request of preempt; victims come as pods or as their UIDs alone.

    Raises:
        InvalidInput: not JSON, or no pod.

    """
    wire = _read(_Preemption, body, subject)
    given = wire.meta if wire.meta is not None else wire.victims or {}
    candidates = []
    for node, raw in given.items():
        at = f"{subject}, node {shown(node)}"
        victims = _Victims() if _nothing(raw) else _read(_Victims, raw, at)
        pods = victims.pods or ()
        uids = tuple(
            (_read(_MetaPod, each, at) if wire.meta is not None else _metadata(each, at)).uid or "" for each in pods
        )
        candidates.append(PreemptionCandidate(node=node, victims=uids, violations=victims.violations or 0))
    return Preemption(pod=_pod(wire.pod, subject), candidates=tuple(candidates))


# Answers


def write_filtered(
    args: Args, fitting: Collection[str], failed: Mapping[str, str], hopeless: Mapping[str, str]
) -> bytes:
    """Return the response of filter, in the form of the request's nodes.

    Args:
        args: the request.
        fitting: names of nodes on which the pod fits.
        failed: others and why not; preemption may help there.
        hopeless: others and why not; preemption cannot help.

    """
    nodes = None
    if args.nodes is not None:
        fits = frozenset(fitting)
        nodes = {"metadata": {}, "items": [raw for name, raw in args.nodes if name in fits]}
    return _ENCODE(
        {
            "Nodes": nodes,
            "NodeNames": list(fitting) if args.named else None,
            "FailedNodes": failed,
            "FailedAndUnresolvableNodes": hopeless,
            "Error": "",
        }
    )


def write_error(error: Exception | str) -> bytes:
    """Return the error response of any verb."""
    return _ENCODE({"Error": str(error)})


def write_priorities(names: Iterable[str], scores: Iterable[int]) -> bytes:
    """Return the response of prioritize: a score of 0 to 10 for each node."""
    return _ENCODE([{"Host": name, "Score": score} for name, score in zip(names, scores, strict=True)])


def write_bound(error: str = "") -> bytes:
    """Return the response of bind: empty, or the error."""
    return _ENCODE({"Error": error})


def write_victims(candidates: Iterable[PreemptionCandidate]) -> bytes:
    """Return the response of preempt: the remaining nodes, with their victims."""
    return _ENCODE(
        {
            "NodeNameToMetaVictims": {
                each.node: {
                    "Pods": [{"UID": uid} for uid in each.victims],
                    "NumPDBViolations": each.violations,
                }
                for each in candidates
            }
        }
    )
