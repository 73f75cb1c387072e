"""The resources of a Node object, and the names under which its GPUs were advertised."""

import math
from collections.abc import Mapping
from typing import Any

from tessera.api.kubernetes.times import read_time
from tessera.core.deviceplugin.allocations.registerednode import RegisteredNode
from tessera.core.workload.tesseranames import RENAMED_RESOURCES

__all__ = ["registered_node"]


def registered_node(node: Mapping[str, Any]) -> RegisteredNode:
    """Return the resources of a Node object; none if there is no object."""
    status = node.get("status") or {}
    names = {*(status.get("capacity") or ()), *(status.get("allocatable") or ())}
    metadata = node.get("metadata") or {}
    renamed = str((metadata.get("annotations") or {}).get(RENAMED_RESOURCES) or "").split(",")
    return RegisteredNode(
        resources=frozenset(names),
        renamed=frozenset(filter(None, renamed)),
        created_s=_created_s(metadata),
    )


def _created_s(metadata: Mapping[str, Any]) -> float:
    try:
        return read_time(str(metadata.get("creationTimestamp")))
    except ValueError:
        return math.inf
