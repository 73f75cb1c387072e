"""The input and the result of a defragmentation."""

import msgspec

from tessera.core.cluster.snapshot import NodeName, Share
from tessera.core.workload.need import Need, PodKey

__all__ = ["DefragProposal", "Move", "Placed", "PodPlace", "PodToPlace", "Stuck"]


class PodToPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A pod to make room for."""

    pod: PodKey
    need: Need
    priority: int = 0
    """Pods of a higher priority are never moved for it."""


class PodPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a pod is or would be: the node, and its shares there."""

    node: NodeName
    shares: tuple[Share, ...]


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """A pod to evict, whose controller creates another in its place."""

    pod: PodKey
    uid: str
    owner: str
    """The workload that makes the replacement, `Kind/namespace/name`."""
    frees: PodPlace
    """Its present node."""
    fits: PodPlace
    """Where the replacement fits while this pod still has its place; the scheduler decides where it goes."""
    budgets: tuple[str, ...] = ()


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that fits once all moves are made."""

    pod: PodKey
    place: PodPlace


class Stuck(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that fits after no allowed moves."""

    pod: PodKey
    reasons: tuple[str, ...]
    """The obstacles, without full stop each."""


class DefragProposal(msgspec.Struct, frozen=True, kw_only=True):
    """The moves, one after another, and the pods that fit then."""

    moves: tuple[Move, ...] = ()
    placed: tuple[Placed, ...] = ()
    stuck: tuple[Stuck, ...] = ()
    at_least: int = 0
    """Fewer moves than this were all tried and none is enough to place those that are `placed`."""
    exhaustive: bool = True
    """Whether the search was complete; else fewer moves may exist, and moves for a pod that is `stuck`."""

    @property
    def fewest(self) -> bool:
        """Whether no fewer moves place the same pods."""
        return self.at_least >= len(self.moves)
