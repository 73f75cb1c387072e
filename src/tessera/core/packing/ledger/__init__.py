"""The working state of a live cluster: which nodes fit a pod, which is best, which shares it gets, and why not."""

from tessera.core.packing.ledger.ledger import Ledger
from tessera.core.packing.ledger.records import Filtered, Hold, Holder, HolderId, ImpossibleUse, Purpose, holder_id
from tessera.core.packing.ledger.schedulable import schedulable_node

__all__ = [
    "Filtered",
    "Hold",
    "Holder",
    "HolderId",
    "ImpossibleUse",
    "Ledger",
    "Purpose",
    "holder_id",
    "schedulable_node",
]
