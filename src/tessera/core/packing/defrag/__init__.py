"""Which running pods must move so that others fit: the fewest, each with a place for its replacement."""

from tessera.core.packing.defrag.evictable import Evictable
from tessera.core.packing.defrag.records import DefragProposal, Move, Placed, PodPlace, PodToPlace, Stuck
from tessera.core.packing.defrag.search import MOST_MOVES, propose

__all__ = ["MOST_MOVES", "DefragProposal", "Evictable", "Move", "Placed", "PodPlace", "PodToPlace", "Stuck", "propose"]
