"""Exchanges of assignments in progress on a node: shares that one pod gave up and another uses already.

An agent that confused pods with equal requests rewrites their assignments one by one (docs/decisions/0009). In between,
one place is assigned twice and another to no pod though one uses it: the ledger keeps it until it is assigned again.
"""

from collections import Counter
from collections.abc import Callable

import msgspec

from tessera.api.tessera.pods.clusterpods import LivePod
from tessera.core.cluster.snapshot import NodeName, Share
from tessera.core.packing.ledger import Ledger, LedgerEntry, Purpose, PurposeKey
from tessera.core.workload.need import Form, Need

__all__ = ["ExchangedShares"]

_LATE_S = 120.0
"""How long an agent may take to write the next assignment: it evicts a pod that cannot be written after a minute. No
container starts before its own pod is written, so that nothing is used twice after that either."""

_MORE_S = 10.0
"""How long after a complete exchange the next may begin: the agent corrects everything it confused in one go."""

Shares = tuple[Share, ...]
"""Shares without container names, which differ between pods."""


class _Node:
    """The incomplete exchanges of one node, and those completed a moment ago."""

    def __init__(self) -> None:
        self.pending: dict[PurposeKey, Shares] = {}
        self.twice = Counter[Shares]()
        """Shares assigned to more than one pod, and to how many more."""
        self.done: set[str] = set()
        """UIDs of pods whose assignment was rewritten, and of those that ended."""
        self.until_s = 0.0


class ExchangedShares:
    """The shares counted in the ledger for incomplete exchanges.

    Args:
        ledger: counts them.
        clock_s: the monotonic clock.

    """

    def __init__(self, ledger: Ledger, clock_s: Callable[[], float]) -> None:
        self._ledger = ledger
        self._clock_s = clock_s
        self._nodes: dict[str, _Node] = {}
        self._number = 0

    def moved(self, before: LivePod, after: LivePod) -> None:
        """Account for a pod whose assignment changed."""
        gave, took = _unnamed(before.shares), _unnamed(after.shares)
        if before.doubted or after.doubted or not gave or not took or _places(gave) == _places(took):
            return  # unverified assignments allocate nothing; the pod's former shares were counted anew, not exchanged
        node = self._nodes.setdefault(after.node, _Node())
        node.until_s = self._clock_s() + _LATE_S
        node.done.add(after.uid)
        # 1. Its new shares were kept since another pod gave them up; or another pod is assigned them, too.
        pending = next((name for name, shares in node.pending.items() if shares == took), None)
        if pending is None:
            node.twice[took] += 1
        else:
            self._release(node, pending)
        # 2. Its former shares are assigned to another pod as well; or they are kept for the pod that uses them.
        if node.twice[gave]:
            node.twice[gave] -= 1
        else:
            self._hold(node, before)
        # 3. Shares of a pod that ends before the next exchange may be used by a pod that is rewritten then.
        if not node.pending:
            node.until_s = self._clock_s() + _MORE_S

    def ended(self, live: LivePod) -> None:
        """Account for a pod that has ended: if it was never rewritten, another pod may use its assigned shares."""
        node = self._nodes.get(live.node)
        if node is None:
            return
        if live.uid not in node.done and live.shares:
            node.done.add(live.uid)
            self._hold(node, live)
        if not self._may_be_rewritten(node, live):
            self._drop(live.node)  # nobody is left who could use what is kept

    def drop_expired(self) -> None:
        """Drop exchanges without any change for too long."""
        now_s = self._clock_s()
        for name in [name for name, node in self._nodes.items() if node.until_s <= now_s]:
            self._drop(name)

    def _may_be_rewritten(self, node: _Node, ended: LivePod) -> bool:
        """Return whether a pod is left whose assignment may not say what it uses; one is rewritten once.

        Not those that got devices by name, whose agent writes what they have.
        """
        return any(
            isinstance(each.id, str)
            and each.id != ended.uid
            and each.id not in node.done
            and (
                any(request.form is not Form.EXACT for request in each.need.requests)
                if each.need.requests
                else each.shares
            )
            for each in self._ledger.pods_on(ended.node)
        )

    def _drop(self, name: str) -> None:
        node = self._nodes.pop(name)
        for hold in tuple(node.pending):
            self._release(node, hold)

    def _hold(self, node: _Node, live: LivePod) -> None:
        self._number += 1
        name = PurposeKey(Purpose.EXCHANGE, live.uid, live.node, str(self._number))
        node.pending[name] = _unnamed(live.shares)
        self._ledger.put_pod(LedgerEntry(name, live.key, NodeName(live.node), Need(), live.shares, live.priority))

    def _release(self, node: _Node, name: PurposeKey) -> None:
        del node.pending[name]
        self._ledger.drop_pod(name)


def _places(shares: Shares) -> set[tuple[int, int | None]]:
    return {(each.gpu, each.start) for each in shares}


def _unnamed(shares: Shares) -> Shares:
    return tuple(msgspec.structs.replace(each, container="") for each in shares)
