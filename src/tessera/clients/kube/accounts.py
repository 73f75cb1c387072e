"""The users of an in-memory Kubernetes API and their permissions, for its reviews."""

from collections.abc import Iterable
from typing import Any

import msgspec

from tessera.api.kubernetes.reviews import Attributes, ReviewedUser
from tessera.clients.kube.protocol import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS, Kind, Object

__all__ = ["Accounts"]

_MASTERS = "system:masters"
"""The group that may do everything. Source: kubernetes `pkg/apis/rbac` and its bootstrap policy."""


class Accounts:
    """Users with their tokens and permissions; at first none."""

    def __init__(self) -> None:
        self._users: dict[str, ReviewedUser] = {}
        self._rights: set[tuple[str, str, str, str]] = set()

    def add(self, token: str, user: ReviewedUser) -> None:
        """Add a token."""
        self._users[token] = user

    def drop(self, token: str) -> None:
        """Remove a token."""
        self._users.pop(token, None)

    def allow(self, name: str, verb: str, resource: str, namespaces: Iterable[str] = ("",)) -> None:
        """Allow a user or group something in namespaces, in all of them if empty; a resource may be a path."""
        self._rights |= {(name, verb, resource, namespace) for namespace in namespaces}

    def withdraw(self, name: str, verb: str, resource: str, namespaces: Iterable[str] = ("",)) -> None:
        """Withdraw what was allowed in these namespaces."""
        self._rights -= {(name, verb, resource, namespace) for namespace in namespaces}

    def answer(self, kind: Kind, body: Object) -> Object | None:
        """Return the answer to a review; None if the kind is not one."""
        spec: dict[str, Any] = body.get("spec") or {}
        if kind == TOKEN_REVIEWS:
            user = self._users.get(spec.get("token", ""))
            status = {"authenticated": True, "user": msgspec.to_builtins(user)} if user else {}
            return body | {"status": status}
        if kind == SUBJECT_ACCESS_REVIEWS:
            requested = msgspec.convert(spec.get("nonResourceAttributes") or spec["resourceAttributes"], Attributes)
            names = (spec.get("user", ""), *spec.get("groups", ()))
            namespaces = {"", requested.namespace}
            rules = {
                (name, requested.verb, requested.path or requested.resource, each)
                for name in names
                for each in namespaces
            }
            allowed = _MASTERS in names or not rules.isdisjoint(self._rights)
            return body | {"status": {"allowed": allowed}}
        return None
