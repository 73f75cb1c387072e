"""The objects that an agent creates for its node: one of a kind, owned by the Node and deleted with it."""

from collections.abc import Callable

from tessera.clients.kube import NODES, Kind, Kube, Object
from tessera.errors import Conflict, Unavailable

__all__ = ["create_own"]


async def create_own(kube: Kube, kind: Kind, node: str, new: Callable[[str, str], Object]) -> Object:
    """Create a node's object of a kind, and return it.

    Args:
        kube: the Kubernetes API.
        kind: of the object.
        node: its name.
        new: returns the object for a Node of this name and UID.

    Raises:
        Unavailable: another process created it a moment ago, or the node is not known yet.

    """
    found = await kube.get(NODES, node)
    if found is None:
        hint = "set NODE_NAME to the node of this agent"
        raise Unavailable(f"Node {node}", found="there is no Node of this name", hint=hint)
    try:
        return await kube.create(kind, new(node, found["metadata"].get("uid", "")))
    except Conflict as error:
        hint = "the agent tries again"
        raise Unavailable(f"{kind.name} {node}", found="another process created it", hint=hint) from error
