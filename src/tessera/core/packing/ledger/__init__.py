"""The working state of a live cluster: which nodes fit a pod, which is best, which shares it gets, and why not."""

from tessera.core.packing.ledger.ledger import Ledger
from tessera.core.packing.ledger.records import (
    Filtered,
    ImpossibleShares,
    LedgerEntry,
    LedgerKey,
    Purpose,
    PurposeKey,
    ledger_key,
)
from tessera.core.packing.ledger.schedulable import schedulable_node

__all__ = [
    "Filtered",
    "ImpossibleShares",
    "Ledger",
    "LedgerEntry",
    "LedgerKey",
    "Purpose",
    "PurposeKey",
    "ledger_key",
    "schedulable_node",
]
