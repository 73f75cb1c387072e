"""The servers' signing key: created by the first server, read by the others, published before its first use.

It is in a Secret that only servers may read. It is replaced when the Secret is deleted, and when its public key is
removed from the ConfigMap, which revokes it: the next server creates another. Other public keys stay in the
ConfigMap, so that earlier signatures still count; if the ConfigMap is deleted, each server writes all keys that
it knows to it again.
"""

import asyncio
from collections.abc import Callable, Mapping

from tessera.api.tessera.pods.signatures import KEYS, SECRET, key_id, published, secret, secret_seed
from tessera.api.tessera.v1alpha1.objects import NAMESPACE
from tessera.clients.kube import CONFIG_MAPS, SECRETS, Kube, Object, version_of
from tessera.core.cluster.protocols.keyring import KeyRing
from tessera.errors import Conflict, Unavailable
from tessera.log import Logger
from tessera.signing import Signer

__all__ = ["SigningKey"]


class SigningKey:
    """The key with which a server signs assignments.

    Args:
        kube: the Kubernetes API.
        ring: returns the servers' valid public keys, and the revoked ones.
        log: records when the key changes; never the key itself.

    """

    def __init__(self, kube: Kube, ring: Callable[[], KeyRing], log: Logger) -> None:
        self._kube = kube
        self._ring = ring
        self._log = log
        self._signer: Signer | None = None
        self.ready = asyncio.Event()
        """Set when there is a key."""

    @property
    def signer(self) -> Signer:
        """The key. Its public key is valid: agents reject what a revoked key signs.

        Raises:
            Unavailable: it has not been read yet, or was revoked.

        """
        if self._signer is None:
            raise Unavailable(
                f"Secret {NAMESPACE}/{SECRET}", found="the key that signs is not read yet", hint="try again"
            )
        if self.void:
            found = f"key {self.id}, which ConfigMap {NAMESPACE}/{KEYS} does not have any more"
            accepted = "a server makes another key at once; try again"
            raise Unavailable(f"Secret {NAMESPACE}/{SECRET}", found=found, hint=accepted)
        return self._signer

    @property
    def void(self) -> bool:
        """Whether there is a key that was revoked: removed from the ConfigMap."""
        return self._signer is not None and self.id not in self._ring().public

    @property
    def id(self) -> str:
        """Id of the key; empty before there is one."""
        return key_id(self._signer.public) if self._signer else ""

    async def renew(self, shown: Mapping[str, bytes] | None = None) -> Object | None:
        """Read the key, create one if it is missing or revoked; publish it and any missing key.

        Returns the ConfigMap where it was written: the key is valid once it is in there.

        Args:
            shown: public keys by id in the API server's ConfigMap; read just now, since a watch may lag.

        Raises:
            TesseraError: the API server does not answer or forbids it, or the Secret has no key.

        """
        found = await self._kube.get(SECRETS, SECRET, NAMESPACE) or await self._create_secret()
        if key_id(Signer(secret_seed(found)).public) in self._ring().revoked:
            found = await self._replaced(found)
        signer = Signer(secret_seed(found))
        name = key_id(signer.public)
        written: Object | None = None
        for each, public in {name: signer.public, **self._ring().public}.items():
            if each not in (shown or {}) and each not in self._ring().revoked:  # a key revoked meanwhile stays revoked
                # One field manager a key: servers that add their keys at the same time do not remove each other's.
                manager = f"tessera-key-{each}"
                written = await self._kube.apply(CONFIG_MAPS, published(public), manager=manager, force=True)
        if self.id != name:
            self._signer = signer
            self._log.info("signs_with", key=name)
        self.ready.set()
        return written

    async def _replaced(self, stored: Object) -> Object:
        """Replace a revoked key; a Conflict where another server was faster."""
        new = Signer()
        changed = {
            **secret(new.seed),
            "metadata": {**secret(new.seed)["metadata"], "resourceVersion": version_of(stored)},
        }
        self._log.warning("revoked_key_replaced", key=key_id(Signer(secret_seed(stored)).public), by=key_id(new.public))
        return await self._kube.apply(SECRETS, changed, manager=f"tessera-key-{key_id(new.public)}", force=True)

    async def _create_secret(self) -> Object:
        """Create the Secret, unless another server is faster."""
        new = Signer()
        try:
            return await self._kube.apply(SECRETS, secret(new.seed), manager=f"tessera-key-{key_id(new.public)}")
        except Conflict:  # another server created it
            found = await self._kube.get(SECRETS, SECRET, NAMESPACE)
        if found is None:
            raise Unavailable(
                f"Secret {NAMESPACE}/{SECRET}", found="it was created and deleted at once", hint="see who deletes it"
            )
        return found
