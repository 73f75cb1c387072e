"""The public keys whose signatures count on each node, as this server knows them: the servers' and the nodes' own."""

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
    """The keys that verify assignments, and the key ids that are not known yet."""

    def __init__(self) -> None:
        self.ring = KeyRing()
        """The servers' public keys, with the revoked ones."""
        self.authority = Authority(servers={}, verify=verify)
        """The servers' public keys."""
        self._on: dict[str, Keys] = {}
        self._strangers = Recent[tuple[str, str]]()
        self.doubts: dict[tuple[str, str], None] = {}
        """Nodes, and ids of unknown keys in signatures there: these count until the key was looked up."""
        self.doubted = WakeUp()
        """Set when there is an unknown key to look up."""

    @property
    def version(self) -> int:
        """Version of the last ConfigMap of the servers' public keys."""
        return self.ring.version

    def take(self, config_map: Object, begun: int | None) -> bool:
        """Take the current ConfigMap of the servers' public keys; return whether the valid keys changed.

        Args:
            config_map: the ConfigMap.
            begun: `version` when the read began, if it was read and not watched.

        """
        self.ring = self.ring.observe(
            uid_of(config_map), int(version_of(config_map) or 0), published_keys(config_map), begun=begun
        )
        if self.ring.public == self.authority.servers:
            return False
        self.authority = Authority(servers=self.ring.public, verify=verify)
        return True

    def on(self, node: str) -> Keys | None:
        """Return the keys whose signatures count on a node; None where the node is not known."""
        return self._on.get(node)

    def update(self, node: str, state: GpuNodeState | None, gpus: Iterable[Gpu]) -> bool:
        """Recompute the keys that count on a node; return whether they changed."""
        indices = frozenset(gpu.index for gpu in gpus)
        keys = self.authority.keys(state, indices, lambda key: (node, key) in self._strangers)
        if keys.like(self._on.get(node)):
            return False
        self._on[node] = keys
        return True

    def drop(self, node: str) -> None:
        """Forget a deleted node."""
        self._on.pop(node, None)

    def doubt(self, node: str, key: str) -> None:
        """Note an unknown key that signed on a node."""
        self.doubts[node, key] = None
        self.doubted.set()

    def reject_unknown(self, asked: Iterable[tuple[str, str]]) -> list[str]:
        """Treat those of the looked-up keys that are still unknown as invalid; return their nodes."""
        nodes = []
        for node, key in asked:
            self.doubts.pop((node, key), None)
            if node not in self._on or key not in self._on[node].public:
                self._strangers.add((node, key))
                nodes.append(node)
        return nodes
