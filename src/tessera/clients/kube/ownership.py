"""Field ownership of server-side apply: what is merged, taken over and removed.

A field is a path of keys to a value that is not an object; lists are one field, and so is an empty object.

Source: Kubernetes, "Server-Side Apply"; sigs.k8s.io/structured-merge-diff (conflicts, removal). Random sequences of
writes show that it agrees with the API server; not covered are kinds with lists merged by key, and fields without a
schema.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tessera.clients.kube.protocol import Object

__all__ = ["UNNAMED", "Owner", "Owners", "applied", "contested", "fields_of", "updated"]

Path = tuple[str, ...]
Fields = frozenset[Path]
Owner = tuple[str, str]
"""A manager and the subresource: `("tessera-controller", "status")`."""
Owners = Mapping[Owner, Fields]

UNNAMED: Owner = ("", "")
"""Managers that write without apply."""

_NOT_OWNED = frozenset({("apiVersion",), ("kind",)})
_OWN_METADATA = frozenset({"labels", "annotations", "finalizers", "ownerReferences"})
"""The rest of the metadata is the server's."""


def fields_of(obj: Object) -> Fields:
    """Return the fields of an object that can be owned."""
    return frozenset(_values(obj))


def contested(live: Object, body: Object, owners: Owners, owner: Owner) -> frozenset[tuple[Owner, Path]]:
    """Return the fields owned by others that applying `body` would change, with their owners."""
    changed = {path for path in fields_of(body) if not _holds(_at(live, path), _at(body, path))}
    return frozenset(
        (other, theirs)
        for other, fields in owners.items()
        if other != owner
        for theirs in fields
        if any(_takes(path, theirs, live) for path in changed)
    )


def applied(live: Object, body: Object, owners: Owners, owner: Owner) -> tuple[Object, dict[Owner, Fields]]:
    """Return the object and its ownership after an owner applied `body`, taking over conflicting fields."""
    lost = contested(live, body, owners, owner)
    others = {other: fields - {path for loser, path in lost if loser == other} for other, fields in owners.items()}
    former, fields = others.pop(owner, frozenset()), fields_of(body)
    kept = fields.union(*others.values())
    unwanted = {path for path in former if not any(each[: len(path)] == path for each in kept)}
    merged = live
    for path in sorted(unwanted):
        merged = _without(merged, path)
    for path in sorted(fields):
        merged = _with(merged, path, _at(body, path))
    others[owner] = fields
    there = {
        each: frozenset(path for path in owned if _at(merged, path) is not _NOWHERE) for each, owned in others.items()
    }
    return merged, {each: owned for each, owned in there.items() if owned}


def updated(before: Object, after: Object, owners: Owners) -> dict[Owner, Fields]:
    """Return the ownership after a write without apply made `after` of `before`: changed fields are its own."""
    was, now = _values(before), _values(after)
    written = {path for path, value in now.items() if path not in was or was[path] != value}
    touched = written | (was.keys() - now.keys())
    rest = {
        owner: frozenset(path for path in fields if not any(_touch(path, each) for each in touched))
        for owner, fields in owners.items()
    }
    rest[UNNAMED] = rest.get(UNNAMED, frozenset()) | written
    return {owner: fields for owner, fields in rest.items() if fields}


def _values(obj: Object) -> dict[Path, Any]:
    owned = {key: part for key, part in obj.items() if key != "metadata"}
    metadata = {key: part for key, part in (obj.get("metadata") or {}).items() if key in _OWN_METADATA}
    return {
        path: value
        for path, value in _leaves(owned | ({"metadata": metadata} if metadata else {}), ())
        if path not in _NOT_OWNED
    }


def _leaves(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, dict) and value:
        for key, part in value.items():
            yield from _leaves(part, (*path, key))
    elif path:
        yield path, value


_NOWHERE = object()


def _at(value: Any, path: Iterable[str]) -> Any:
    for key in path:
        value = value.get(key, _NOWHERE) if isinstance(value, dict) else _NOWHERE
    return value


def _holds(live: Any, desired: Any) -> bool:
    """Return whether a field is as desired; an object that should exist is, whatever is in it."""
    return bool(live == desired) or (desired == {} and isinstance(live, dict))


def _takes(path: Path, theirs: Path, live: Object) -> bool:
    """Return whether writing a field replaces another: the same, or a value replaced by an object."""
    if path == theirs:
        return True
    return path[: len(theirs)] == theirs and not isinstance(_at(live, theirs), dict)


def _touch(one: Path, other: Path) -> bool:
    """Return whether one field is the other or contains it."""
    return all(mine == theirs for mine, theirs in zip(one, other, strict=False))


def _with(value: Any, path: Path, desired: Any) -> Any:
    if not path:
        return value if _holds(value, desired) else desired
    present = value if isinstance(value, dict) else {}
    return present | {path[0]: _with(present.get(path[0]), path[1:], desired)}


def _without(value: Any, path: Path) -> Any:
    """Return a value without a field, and without objects left empty by that."""
    if not isinstance(value, dict) or path[0] not in value:
        return value
    rest = {key: part for key, part in value.items() if key != path[0]}
    if len(path) == 1:
        return rest
    inner = _without(value[path[0]], path[1:])
    return rest if inner == {} and value[path[0]] else value | {path[0]: inner}
