"""Places kept for pods that kube-scheduler is about to bind, so that the next pod is not sent to the same place.

kube-scheduler asks for scores, takes the best node and binds in the background, while it asks about the next pod
already. A nomination is this server's alone and lasts seconds; nothing is allocated by it.
"""

from collections.abc import Callable

import msgspec

from tessera.core.cluster.snapshot import NodeName
from tessera.core.packing.ledger import Hold, Holder, Ledger, Purpose
from tessera.core.workload.need import Need, PodKey

__all__ = ["Nominations"]

_LAST_S = 5.0
"""How long a place is kept; a scheduler that binds does so within a fraction of a second."""


class _Nomination(msgspec.Struct, frozen=True):
    until_s: float
    node: str


class Nominations:
    """The nominations of one server.

    Args:
        ledger: where they count as held.
        clock_s: the monotonic clock.

    """

    def __init__(self, ledger: Ledger, clock_s: Callable[[], float]) -> None:
        self._ledger = ledger
        self._clock_s = clock_s
        self._all: dict[str, _Nomination] = {}

    def add(self, uid: str, key: PodKey, need: Need, node: str) -> None:
        """Keep what the pod would get on a node, where it gets something there."""
        self.drop(uid)
        shares = self._ledger.choose(need, node)
        if not isinstance(shares, str):
            self._all[uid] = _Nomination(self._clock_s() + _LAST_S, node)
            self._ledger.put_pod(Holder(Hold(Purpose.NOMINATION, uid), key, NodeName(node), need, shares))

    def drop(self, uid: str) -> None:
        """Keep nothing for a pod any more."""
        if self._all.pop(uid, None) is not None:
            self._ledger.drop_pod(Hold(Purpose.NOMINATION, uid))

    def drop_expired(self) -> None:
        """Drop what was kept for too long; they lie in order of time."""
        now_s = self._clock_s()
        while self._all and (uid := next(iter(self._all))) and self._all[uid].until_s <= now_s:
            self.drop(uid)

    def drop_all_on(self, node: str) -> bool:
        """Drop all of a node, and return whether there were any."""
        on_node = [uid for uid, each in self._all.items() if each.node == node]
        for uid in on_node:
            self.drop(uid)
        return bool(on_node)
