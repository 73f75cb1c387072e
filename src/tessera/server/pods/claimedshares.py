"""The shares that servers claimed on each node for pods they bind, counted in the ledger so that they are not free."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from tessera.api.tessera.pods.clusterpods import LivePod
from tessera.core.cluster.protocols.claims import Fate, NodeClaims
from tessera.core.cluster.snapshot import NodeName
from tessera.core.packing.ledger import Ledger, LedgerEntry, Purpose, PurposeKey
from tessera.core.workload.need import Need, PodKey

__all__ = ["ClaimedShares", "PodLookup"]


class PodLookup(Protocol):
    """The observed pods of the cluster."""

    def live_pod(self, uid: str) -> LivePod | None:
        """Return the pod of this UID; None if it was not observed."""
        ...

    def fate(self, uid: str) -> Fate:
        """Return what became of a pod, as far as observed."""
        ...


class ClaimedShares:
    """The claims of all nodes, and the ledger's holders for those that count.

    Args:
        ledger: holds the shares of each claim that counts.
        pods: say which claims are settled, and what their pods need.

    """

    def __init__(self, ledger: Ledger, pods: PodLookup) -> None:
        self._ledger = ledger
        self._pods = pods
        self._claims: dict[str, NodeClaims] = {}
        self._holders: dict[str, dict[PurposeKey, LedgerEntry]] = {}
        self._nodes_of: dict[str, set[str]] = {}

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes with claims, settled ones too."""
        return tuple(name for name, claims in self._claims.items() if not claims.empty)

    def on(self, node: str) -> NodeClaims:
        """Return the observed claims on a node."""
        return self._claims.setdefault(node, NodeClaims())

    def nodes_of(self, uid: str) -> frozenset[str]:
        """Return the nodes with a claim for the pod."""
        return frozenset(self._nodes_of.get(uid, ()))

    def hold(self, node: str) -> None:
        """Update the ledger with the claims of a node that count."""
        before, holders = self._holders.get(node, {}), dict[PurposeKey, LedgerEntry]()
        for claim in self.on(node).counting(self._pods.fate):
            live = self._pods.live_pod(claim.uid)
            need, priority = (live.need, live.priority) if live else (Need(), 0)
            name = PurposeKey(Purpose.CLAIM, claim.uid, node, claim.attempt)
            holders[name] = LedgerEntry(name, PodKey(claim.pod), NodeName(node), need, claim.shares, priority)
            self._nodes_of.setdefault(claim.uid, set()).add(node)
        for name in before.keys() - holders.keys():
            self._ledger.drop_pod(name)
        for holder in holders.values():
            self._ledger.put_pod(holder)
        self._holders[node] = holders

    def drop_settled(self, uid: str) -> None:
        """Drop a pod's claims where they are settled."""
        if uid in self._nodes_of and self._pods.fate(uid) is not Fate.OPEN:
            for node in self._nodes_of.pop(uid):
                self.hold(node)

    @contextmanager
    def set_aside(self, uid: str) -> Iterator[frozenset[str]]:
        """Set a pod's claims aside in the ledger, and yield their nodes: a retry there would get the same shares.

        The result of its Binding is unknown: it may still succeed. Its own claim does not block it.
        """
        nodes = frozenset(
            node for node in self._nodes_of.get(uid, ()) if self.on(node).earlier(uid, self._pods.fate) is not None
        )
        restore = self._ledger.set_aside(name for node in nodes for name in self._holders[node] if name.uid == uid)
        try:
            yield nodes
        finally:
            restore()

    def begin_verification(self, clock_s: Callable[[], float]) -> Callable[[], None]:
        """Begin to verify all nodes; call the returned function once all pods were listed after this."""
        base = {name: (claims.version, claims.present()) for name, claims in self._claims.items()}
        for name in base:
            self._claims[name].reading()

        def end() -> None:
            for name, (version, present) in base.items():
                self._claims[name].read(version, present, clock_s())
                self.hold(name)

        return end
