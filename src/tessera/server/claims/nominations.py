"""Places reserved for pods that kube-scheduler is about to bind, so that the next pod is not sent to the same place.

kube-scheduler requests scores, takes the best node and binds in the background, while it schedules the next pod
already. A nomination is local to this server and lasts seconds; it allocates nothing.
"""

from collections.abc import Callable

import msgspec

from tessera.core.cluster.snapshot import NodeName
from tessera.core.packing.ledger import Ledger, LedgerEntry, Purpose, PurposeKey
from tessera.core.workload.need import Need, PodKey

__all__ = ["Nominations"]

_LAST_S = 5.0
"""How long a place is reserved; a scheduler binds within a fraction of a second."""


class _Nomination(msgspec.Struct, frozen=True):
    until_s: float
    node: str


class Nominations:
    """The nominations of one server.

    Args:
        ledger: counts them as holders.
        clock_s: the monotonic clock.

    """

    def __init__(self, ledger: Ledger, clock_s: Callable[[], float]) -> None:
        self._ledger = ledger
        self._clock_s = clock_s
        self._all: dict[str, _Nomination] = {}

    def add(self, uid: str, key: PodKey, need: Need, node: str) -> None:
        """Reserve what the pod would be assigned on a node, if it fits there."""
        self.drop(uid)
        shares = self._ledger.choose(need, node)
        if not isinstance(shares, str):
            self._all[uid] = _Nomination(self._clock_s() + _LAST_S, node)
            self._ledger.put_pod(LedgerEntry(PurposeKey(Purpose.NOMINATION, uid), key, NodeName(node), need, shares))

    def drop(self, uid: str) -> None:
        """Drop the nomination of a pod."""
        if self._all.pop(uid, None) is not None:
            self._ledger.drop_pod(PurposeKey(Purpose.NOMINATION, uid))

    def drop_expired(self) -> None:
        """Drop expired nominations; they are ordered by time."""
        now_s = self._clock_s()
        while self._all and (uid := next(iter(self._all))) and self._all[uid].until_s <= now_s:
            self.drop(uid)

    def drop_all_on(self, node: str) -> bool:
        """Drop all nominations of a node, and return whether there were any."""
        on_node = [uid for uid, each in self._all.items() if each.node == node]
        for uid in on_node:
            self.drop(uid)
        return bool(on_node)
