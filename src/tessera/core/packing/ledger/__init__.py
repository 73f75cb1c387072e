"""The working state of a live cluster: which nodes fit a pod, which is best, which shares it gets, and why not."""

from tessera.core.packing.ledger.ledger import Ledger
from tessera.core.packing.ledger.records import Clash, Filtered, Hold, Holder, HolderId, Purpose, uid_of
from tessera.core.packing.ledger.schedulable import schedulable_node

__all__ = ["Clash", "Filtered", "Hold", "Holder", "HolderId", "Ledger", "Purpose", "schedulable_node", "uid_of"]
