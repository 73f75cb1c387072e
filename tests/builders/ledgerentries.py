"""What pods are allocated in a ledger."""

from tessera.core.cluster.snapshot import NodeName, Share
from tessera.core.packing.ledger import LedgerEntry
from tessera.core.workload.need import Need, PodKey


def entry(uid: str, *shares: Share, on: str = "n", need: Need | None = None, priority: int = 0) -> LedgerEntry:
    return LedgerEntry(uid, PodKey(f"default/{uid}"), NodeName(on), need or Need(), shares, priority)
