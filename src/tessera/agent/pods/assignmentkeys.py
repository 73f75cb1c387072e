"""The keys whose signatures count on this node's pods, and the agent's own signing key.

The key is created at the first start and kept in the state folder; the public key is in the status of the node's
GPUNode, with the former ones, so that losing the state folder invalidates nothing that runs. A key stolen from
a node forges for that node alone.

The observed public keys of servers are kept there too: if the ConfigMap that publishes them is deleted while no
server and no agent runs, pods that they signed still count.
"""

import base64
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

from tessera.agent.nodefiles import UNREADABLE, read_file, write_through
from tessera.api.tessera.node.serverkeys import read_server_keys, write_server_keys
from tessera.api.tessera.pods.signatures import KEYS, Keys, keys_text, public_keys, published_keys
from tessera.api.tessera.v1alpha1.objects import NAMESPACE
from tessera.clients.kube import CONFIG_MAPS, Change, Kube, Object, Selection, Store, version_of
from tessera.core.cluster.protocols.keyring import KeyRing
from tessera.errors import InvalidInput, Unavailable
from tessera.log import Logger
from tessera.signing import SEED_BYTES, Signer, verify

__all__ = ["AssignmentKeys", "Trust"]

_SERVERS: Final = "server-keys.json"
"""Beside the private key: the observed public keys of servers."""
_UNPUBLISHED_S = 60.0
"""How long servers may take to publish their keys again."""
_MOST_KEYS = 8
"""Published keys, including the current one."""


class Trust(Protocol):
    """Verifies and signs assignments."""

    @property
    def keys(self) -> Keys:
        """The keys whose signatures count; the same object while nothing changes."""
        ...

    @property
    def knows_servers(self) -> bool:
        """Whether a server's key is known; until then no assignment counts, and none is reported as forged."""
        ...

    @property
    def unpublished(self) -> frozenset[str]:
        """Ids of servers' keys that count here, but have not been published for more than a minute."""
        ...

    def revoked(self, key: str) -> bool:
        """Return whether the servers' key of this id is revoked."""
        ...

    def sealed(self, pod: Object, annotations: Mapping[str, str]) -> dict[str, str]:
        """Return annotations for a pod of this node, with an assignment signed."""
        ...

    async def refresh(self) -> None:
        """Update `keys` to all that count at this moment."""


class AssignmentKeys:
    """The keys of one node.

    Args:
        kube: the Kubernetes API.
        node: the node's name.
        path: where the private key is kept.
        log: for created keys; never a private key.
        wake: called when the servers' keys changed.
        clock_s: a monotonic clock.

    Attributes:
        store: the servers' keys; they are watched while its `run` runs.

    """

    def __init__(
        self,
        kube: Kube,
        node: str,
        path: Path,
        log: Logger,
        *,
        wake: Callable[[], None],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._node = node
        self._path = path
        self._log = log
        self._clock_s = clock_s
        selection = Selection(namespace=NAMESPACE, fields=(("metadata.name", KEYS),))
        self.store = Store(
            kube, CONFIG_MAPS, selection, wake=wake, on_change=self._take_change, on_error=self._log_error
        )
        self._signer: Signer | None = None
        self._published: tuple[str, ...] = ()
        self._ring = self._remembered()
        """The servers' keys."""
        self._listed = False
        self._missing_s: dict[str, float] = {}
        """When published keys disappeared."""
        self._keys = Keys(public=self._ring.public, verify=verify)

    async def synced(self) -> None:
        """Wait until the servers' keys are read: without them running pods would appear unassigned."""
        await self.store.synced()

    def _log_error(self, error: Exception) -> None:
        self._log.warning("server_keys_not_read", reason=str(error))

    def open(self, published: tuple[str, ...]) -> None:
        """Read the private key, or create one.

        Args:
            published: the public keys in the GPUNode.

        Raises:
            Unavailable: it cannot be read or stored.

        """
        seed = self._read()
        self._signer = Signer(seed)
        if seed is None:
            self._write(self._signer.seed)
        self._published = keys_text([self._signer.public])
        self.keep(published)

    def keep(self, published: tuple[str, ...]) -> None:
        """Continue to publish the public keys in the GPUNode, and accept what they signed."""
        self._published = (*self._published, *(each for each in published if each not in self._published))[:_MOST_KEYS]
        new = Keys(public={**self._keys.public, **public_keys(self._published)}, verify=verify)
        self._keys = self._keys if new.like(self._keys) else new

    @property
    def published(self) -> tuple[str, ...]:
        """The desired public keys of the GPUNode: this agent's, the current one first."""
        return self._published

    @property
    def keys(self) -> Keys:
        """The keys whose signatures count: the servers' published and not revoked ones, and this node's own."""
        return self._keys

    @property
    def knows_servers(self) -> bool:
        """Whether a server's key is known."""
        return bool(self._ring.public)

    @property
    def unpublished(self) -> frozenset[str]:
        """Ids of servers' keys that count here, but have not been published for more than a minute.

        The object that publishes them was deleted. Servers that know them write them again at once; if none ran, their
        signatures appear forged to every server.
        """
        now_s = self._clock_s()
        missing = self._ring.public.keys() - self._ring.shown
        self._missing_s = {key: self._missing_s.get(key, now_s) for key in missing}
        return frozenset(key for key, since_s in self._missing_s.items() if now_s - since_s >= _UNPUBLISHED_S)

    def revoked(self, key: str) -> bool:
        """Return whether the servers' key of this id is revoked."""
        return key in self._ring.revoked

    def _take_change(self, change: Change) -> None:
        if change.object is not None and not change.gone:
            # The first list starts after everything that was stored.
            first, self._listed = not self._listed, True
            self._take(change.object, self._ring.version if first else None)

    def _take(self, config_map: Object, begun: int | None) -> None:
        uid, version = config_map["metadata"].get("uid", ""), int(version_of(config_map) or 0)
        before, self._ring = self._ring, self._ring.observe(uid, version, published_keys(config_map), begun=begun)
        if self._ring != before:
            self._remember()
        new = Keys(public={**self._ring.public, **public_keys(self._published)}, verify=verify)
        self._keys = self._keys if new.like(self._keys) else new

    async def refresh(self) -> None:
        """Read the servers' keys again, so that a key published just now counts.

        Raises:
            TesseraError: the API server does not answer.

        """
        begun = self._ring.version
        found = await self._kube.get(CONFIG_MAPS, KEYS, NAMESPACE)
        if found is not None:
            self._take(found, begun)

    def sealed(self, pod: Object, annotations: Mapping[str, str]) -> dict[str, str]:
        """Return annotations for a pod of this node, with an assignment signed."""
        if self._signer is None:
            raise Unavailable(
                f"node {self._node}", found="there is no key to sign with yet", hint="the agent tries again"
            )
        return self._signer.sealed(annotations, uid=pod["metadata"].get("uid", ""), node=self._node)

    def _remembered(self) -> KeyRing:
        """Return the stored servers' keys; an empty ring where there are none, or they cannot be read."""
        path = self._path.with_name(_SERVERS)
        try:
            return read_server_keys(read_file(path), str(path))
        except FileNotFoundError:
            return KeyRing()
        except (*UNREADABLE, InvalidInput) as error:
            self._log.warning("server_keys_forgotten", file=str(path), reason=type(error).__name__)
            return KeyRing()

    def _remember(self) -> None:
        path = self._path.with_name(_SERVERS)
        try:
            write_through(path, write_server_keys(self._ring), mode=0o600)
        except OSError as error:  # they count until the agent ends
            self._log.warning("server_keys_not_kept", file=str(path), reason=error.strerror or "an error")

    def _read(self) -> bytes | None:
        """Return the private key; None where there is no usable one.

        Raises:
            Unavailable: the disk cannot be read; a new key in its place would not help.

        """
        try:
            seed = base64.b64decode(read_file(self._path).strip(), validate=True)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unkept(self._path, error) from error
        except ValueError as error:
            self._log.warning("key_not_read", file=str(self._path), reason=type(error).__name__)
            return None
        if len(seed) != SEED_BYTES:
            self._log.warning("key_not_read", file=str(self._path), reason=f"{len(seed)} bytes")
            return None
        return seed

    def _write(self, seed: bytes) -> None:
        """Store the private key, readable by root alone."""
        try:
            write_through(self._path, base64.b64encode(seed), mode=0o600)
        except OSError as error:
            raise _unkept(self._path, error) from error
        self._log.info("key_created", file=str(self._path))


def _unkept(path: Path, error: OSError) -> Unavailable:
    return Unavailable(
        str(path),
        found=error.strerror or "an error",
        hint="give --state-dir, where the key that signs assignments can be kept",
    )
