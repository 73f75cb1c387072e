"""Taints of Kubernetes Node objects."""

from collections.abc import Iterable
from typing import Final

from tessera.api.fields import Field
from tessera.core.cluster.snapshot import Taint

__all__ = ["not_ready_taints", "read_taints"]

_NOT_READY: Final = {"False": "node.kubernetes.io/not-ready", "Unknown": "node.kubernetes.io/unreachable"}
"""The taint of a node whose condition Ready is not true. Source: kubernetes
`pkg/controller/nodelifecycle`."""


def not_ready_taints(field: Field) -> tuple[Taint, ...]:
    """Return the taint of a node that is not ready, which may be missing yet; none if it is there."""
    taints = read_taints(field.get("spec", "taints").elements())
    conditions = field.get("status", "conditions").elements()
    ready = next((each.get("status").text("") for each in conditions if each.get("type").value == "Ready"), "")
    if ready not in _NOT_READY or any(each.key in _NOT_READY.values() for each in taints):
        return ()
    return (Taint(key=_NOT_READY[ready], effect="NoSchedule"),)


def read_taints(fields: Iterable[Field]) -> list[Taint]:
    """Return taints written as Kubernetes objects."""
    return [
        Taint(
            key=field.get("key").text(),
            value=field.get("value").text(""),
            effect=field.get("effect").choice("NoSchedule", "PreferNoSchedule", "NoExecute"),
        )
        for field in fields
    ]
