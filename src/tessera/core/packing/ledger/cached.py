"""What the ledger keeps of a node and of a need, so that it is not computed again."""

from typing import Final

import msgspec
import numpy as np

from tessera.core.cluster.gputypes import Ints
from tessera.core.cluster.snapshot import Node, Share
from tessera.core.packing.obstacles import Cause, Obstacle, Obstacles

__all__ = ["NO_CODE", "UNKNOWN_NODE", "KnownObstacles", "ReservedNode"]

NO_CODE: Final = -1
"""Stands for an unknown node."""
UNKNOWN_NODE: Final = Obstacle(Cause.NOT_KNOWN, "the node is not known here yet")


class ReservedNode(msgspec.Struct, frozen=True):
    """A node with its reservations."""

    node: Node
    shares: tuple[Share, ...]


class KnownObstacles:
    """The obstacles of one need, by node, with the length of the change log when each was computed."""

    def __init__(self, obstacles: Obstacles, nodes: int) -> None:
        self.obstacles = obstacles
        self.codes: Ints = np.zeros(nodes, dtype=np.int64)
        self.fresh: Ints = np.full(nodes, -1)
