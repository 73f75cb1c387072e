"""Which nodes share the chunks of a model, and how often a node reads that."""

from collections.abc import Iterable

from tessera.core.storage.models.nodemodels import DesiredModel, NodeModels

__all__ = ["peers_of", "refresh_interval_s"]

_LISTED_PER_S = 5_000
"""Objects that the API server lists in a second for all nodes together: half of what one of its processors can
(docs/decisions/0034-nodes-share-models.md)."""


def peers_of(model: DesiredModel, nodes: Iterable[NodeModels]) -> tuple[str, ...]:
    """Return the addresses of the nodes with the same desired source."""

    def shares(node: NodeModels) -> bool:
        return any((each.source, each.endpoint) == (model.source, model.endpoint) for each in node.desired or ())

    return tuple(node.peer for node in nodes if node.peer and shares(node))


def refresh_interval_s(least_s: float, listed: int) -> float:
    """Return the interval at which a node lists all nodes: all together list at most 5,000 objects a second.

    Args:
        least_s: it is no shorter.
        listed: how many there were.

    """
    return max(least_s, listed * listed / _LISTED_PER_S)
