"""The working state of a live cluster: which nodes fit a pod, which is best, which shares it gets, and why not."""

from tessera.core.ledger.ledger import Ledger
from tessera.core.ledger.records import Clash, Filtered, Holder
from tessera.core.ledger.seen import seen

__all__ = ["Clash", "Filtered", "Holder", "Ledger", "seen"]
