"""Whose signatures count on each node, as far as this server knows: the servers' keys, and those that nodes publish."""

from collections.abc import Iterable

from tessera.api.tessera.pods.signatures import Authority, Keys, published_keys
from tessera.clients.kube import Object, uid_of, version_of
from tessera.core.cluster.gpunodestate import GpuNodeState
from tessera.core.cluster.protocols.keyring import KeyRing
from tessera.core.cluster.snapshot import Gpu
from tessera.server.recent import Recent
from tessera.signing import verify
from tessera.wakeup import WakeUp

__all__ = ["KnownKeys"]


class KnownKeys:
    """The keys by which assignments are checked, and the doubts about keys that are not known yet."""

    def __init__(self) -> None:
        self.ring = KeyRing()
        """The servers' public keys, and which were revoked."""
        self.authority = Authority(servers={}, verify=verify)
        """The servers' public keys."""
        self._on: dict[str, Keys] = {}
        self._strangers = Recent[tuple[str, str]]()
        self.doubts: dict[tuple[str, str], None] = {}
        """Nodes, and ids of keys that sign there and are not known yet: what they sign counts until it was asked."""
        self.doubted = WakeUp()
        """Set when there is another."""

    @property
    def version(self) -> int:
        """Version of the ConfigMap of the servers' public keys that was taken last."""
        return self.ring.version

    def take(self, each: Object, begun: int | None) -> bool:
        """Take the ConfigMap of the servers' public keys as it is now; return whether others count than before.

        Args:
            each: the ConfigMap.
            begun: `version` when it was asked for, where it was read and not watched.

        """
        self.ring = self.ring.saw(uid_of(each), int(version_of(each) or 0), published_keys(each), begun=begun)
        if self.ring.public == self.authority.servers:
            return False
        self.authority = Authority(servers=self.ring.public, verify=verify)
        return True

    def on(self, node: str) -> Keys | None:
        """Return whose signatures count on a node; None where the node is not known."""
        return self._on.get(node)

    def judge(self, node: str, state: GpuNodeState | None, gpus: Iterable[Gpu]) -> bool:
        """Determine again whose signatures count on a node; return whether that changed."""
        indices = frozenset(gpu.index for gpu in gpus)
        keys = self.authority.keys(state, indices, lambda key: (node, key) in self._strangers)
        if keys.like(self._on.get(node)):
            return False
        self._on[node] = keys
        return True

    def drop(self, node: str) -> None:
        """Forget a node, which is gone."""
        self._on.pop(node, None)

    def doubt(self, node: str, key: str) -> None:
        """Note that a key signs on a node and is not known yet."""
        self.doubts[node, key] = None
        self.doubted.set()

    def settle(self, asked: Iterable[tuple[str, str]]) -> list[str]:
        """Call those of the doubted keys unknown that are unknown still; return their nodes."""
        nodes = []
        for node, key in asked:
            self.doubts.pop((node, key), None)
            if node not in self._on or key not in self._on[node].public:
                self._strangers.add((node, key))
                nodes.append(node)
        return nodes
