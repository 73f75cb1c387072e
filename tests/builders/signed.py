"""Signed assignments for tests: the one place where tests sign, with keys that are the same in every run."""

from collections.abc import Mapping
from typing import Any

from tessera.api.tessera.pods.signatures import Authority, Keys, key_id, published
from tessera.signing import Signer, verify

Object = dict[str, Any]

SERVER = Signer(bytes(range(32)))
"""The key of the servers."""
AGENT = Signer(bytes(range(1, 33)))
"""The key of an agent."""
STRANGER = Signer(bytes(range(2, 34)))
"""A key that nobody knows."""


def public(*signers: Signer) -> dict[str, bytes]:
    """Return public keys by id."""
    return {key_id(each.public): each.public for each in signers}


def keys(*signers: Signer, **more: Any) -> Keys:
    """Return what counts on a node: signatures of these, of the servers where none are named."""
    return Keys(public=public(*(signers or (SERVER,))), verify=verify, **more)


def authority(*signers: Signer) -> Authority:
    """Return the keys of a cluster's servers."""
    return Authority(servers=public(*(signers or (SERVER,))), verify=verify)


def signed(pod: Object, signer: Signer = SERVER, **instead: str) -> Object:
    """Return a pod with its assignment signed, for another `uid` or `node` where one is named."""
    metadata = pod["metadata"]
    text = {"uid": metadata.get("uid", ""), "node": pod["spec"].get("nodeName", "")} | instead
    annotations = signer.sealed(metadata.get("annotations", {}), uid=text["uid"], node=text["node"])
    return {**pod, "metadata": {**metadata, "annotations": annotations}}


def config_map(signer: Signer = SERVER) -> Object:
    """Return the ConfigMap in which servers publish this key."""
    return published(signer.public)


class Trusting:
    """What an agent of a node knows: the servers' key and its own, which signs."""

    def __init__(self, node: str = "n") -> None:
        self.keys = keys(SERVER, AGENT)
        self._node = node
        self.knows_servers = True
        self.unpublished = frozenset[str]()
        self.revoked_keys: set[str] = set()

    def sealed(self, pod: Object, annotations: Mapping[str, str]) -> dict[str, str]:
        """Return annotations signed by the agent."""
        return AGENT.sealed(annotations, uid=pod["metadata"].get("uid", ""), node=self._node)

    def revoked(self, key: str) -> bool:
        """Return whether this key was revoked."""
        return key in self.revoked_keys

    async def refresh(self) -> None:
        """Know all there is already."""
