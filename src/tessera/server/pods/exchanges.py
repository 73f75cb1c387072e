"""Exchanges of assignments that a node's agent is in the middle of: what one pod gave up, another uses already.

An agent that mistook pods of equal requests writes their assignments one by one (docs/decisions/0009). In between, one
place is named twice, and another by nobody though a pod is in it: it is held until somebody names it.
"""

from collections import Counter
from collections.abc import Callable

import msgspec

from tessera.api.tessera.pods.clusterpods import LivePod
from tessera.core.cluster.snapshot import NodeName, Share
from tessera.core.packing.ledger import Hold, Holder, Ledger, Purpose
from tessera.core.workload.need import Need

__all__ = ["ExchangeHolds"]

_LATE_S = 120.0
"""How long an agent may take to write the next assignment: it evicts a pod that cannot be written after a minute. No
container starts before its own pod is written, so that nothing is used twice after that either."""

_MORE_S = 10.0
"""How long after an exchange is complete the agent may begin another: it corrects all that it mistook in one go."""

Shares = tuple[Share, ...]
"""Without the names of containers, which differ between pods."""


class _Node:
    """The exchanges of one node that are not complete, or were until a moment ago."""

    def __init__(self) -> None:
        self.held: dict[Hold, Shares] = {}
        self.twice = Counter[Shares]()
        """What two pods name, by how many more than one."""
        self.settled: set[str] = set()
        """UIDs of the pods that were written, so that they name what they use, and of those that ended."""
        self.until_s = 0.0


class ExchangeHolds:
    """What is held in the ledger for exchanges that are not complete.

    Args:
        ledger: where it is held.
        clock_s: the monotonic clock.

    """

    def __init__(self, ledger: Ledger, clock_s: Callable[[], float]) -> None:
        self._ledger = ledger
        self._clock_s = clock_s
        self._nodes: dict[str, _Node] = {}
        self._number = 0

    def moved(self, before: LivePod, after: LivePod) -> None:
        """Account for a pod whose assignment names other shares than before."""
        gave, took = _unnamed(before.shares), _unnamed(after.shares)
        if before.doubted or after.doubted or not gave or not took or _places(gave) == _places(took):
            return  # a doubted assignment nobody has granted; what stays in its place was counted anew, not exchanged
        node = self._nodes.setdefault(after.node, _Node())
        node.until_s = self._clock_s() + _LATE_S
        node.settled.add(after.uid)
        # 1. What it names now was held since another gave it up; else another names it, too.
        held = next((name for name, shares in node.held.items() if shares == took), None)
        if held is None:
            node.twice[took] += 1
        else:
            self._release(node, held)
        # 2. What it gave up another names as well; else it is held for the one that uses it.
        if node.twice[gave]:
            node.twice[gave] -= 1
        else:
            self._hold(node, before)
        # 3. What ends before the next exchange begins may be used by a pod that is written then.
        if not node.held:
            node.until_s = self._clock_s() + _MORE_S

    def ended(self, live: LivePod) -> None:
        """Account for a pod that has ended: if its own shares were never written, another may use what it named."""
        node = self._nodes.get(live.node)
        if node is not None and live.uid not in node.settled and live.shares:
            node.settled.add(live.uid)
            self._hold(node, live)

    def drop_expired(self) -> None:
        """Give up exchanges of which nothing was heard for long."""
        now_s = self._clock_s()
        for name in [name for name, node in self._nodes.items() if node.until_s <= now_s]:
            self._drop(name)

    def _drop(self, name: str) -> None:
        node = self._nodes.pop(name)
        for held in tuple(node.held):
            self._release(node, held)

    def _hold(self, node: _Node, live: LivePod) -> None:
        self._number += 1
        name = Hold(Purpose.EXCHANGE, live.uid, live.node, str(self._number))
        node.held[name] = _unnamed(live.shares)
        self._ledger.put_pod(Holder(name, live.key, NodeName(live.node), Need(), live.shares, live.priority))

    def _release(self, node: _Node, name: Hold) -> None:
        del node.held[name]
        self._ledger.drop_pod(name)


def _places(shares: Shares) -> set[tuple[int, int | None]]:
    return {(each.gpu, each.start) for each in shares}


def _unnamed(shares: Shares) -> Shares:
    return tuple(msgspec.structs.replace(each, container="") for each in shares)
