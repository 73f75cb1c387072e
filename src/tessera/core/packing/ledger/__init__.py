"""The working state of a live cluster: which nodes fit a pod, which is best, which shares it gets, and why not."""

from tessera.core.packing.ledger.ledger import Ledger
from tessera.core.packing.ledger.records import Clash, Filtered, Holder
from tessera.core.packing.ledger.seen import seen

__all__ = ["Clash", "Filtered", "Holder", "Ledger", "seen"]
