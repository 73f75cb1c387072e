"""What pods were granted stays theirs while they live, whatever becomes of their annotations and of the keys.

A tenant may take away or spoil the assignment of a running pod, where no admission policy forbids it. The pod uses what
it was granted still, and that must not look free.
"""

from collections.abc import Collection

import msgspec

from tessera.api.kubernetes.podspecs import SIGNATURE
from tessera.api.tessera.pods.clusterpods import LivePod
from tessera.api.tessera.pods.signatures import Keys, is_signed, key_named
from tessera.clients.kube import Object, annotations_of
from tessera.core.cluster.snapshot import Share

__all__ = ["Retention"]


class _Granted(msgspec.Struct, frozen=True):
    """What a pod was granted, as it was read last from an assignment that counted."""

    shares: tuple[Share, ...]
    key: str
    """Id of the key that signed it; empty for one that counted without signature."""


class Retention:
    """What each pod that is known was granted."""

    def __init__(self) -> None:
        self._granted: dict[str, _Granted] = {}

    def held(self, each: Object, live: LivePod, keys: Keys | None, revoked: Collection[str]) -> LivePod:
        """Return a pod with what it holds: what its assignment says where that counts, else what it was granted before.

        Shares that are doubted, since it is not known yet whether their key counts, are no grant and end none: they are
        returned where nothing is known to be granted.

        A grant ends with the pod, by UID, and where the key that signed it is revoked. What counted without signature
        is held only where it may count so still.

        Args:
            each: the pod's object.
            live: what its object says.
            keys: whose signatures count on its node; None where the node is not known.
            revoked: ids of keys that were revoked.

        """
        if not live.node:
            return live
        before = self._granted.get(live.uid)
        if keys is None:  # nobody can judge what its assignment says, and the node gives nothing
            return msgspec.structs.replace(live, shares=before.shares if before else (), doubted="")
        if live.shares and not live.doubted:
            self._granted[live.uid] = _Granted(live.shares, _signed_by(each, keys))
            return live
        if before is None:
            return live
        counts = before.key not in revoked if before.key else keys.unsigned != "refused"
        return msgspec.structs.replace(live, shares=before.shares, doubted="") if counts else live

    def forget(self, uid: str) -> None:
        """Forget a pod, which is gone."""
        self._granted.pop(uid, None)


def _signed_by(each: Object, keys: Keys) -> str:
    """Return the id of the key that signed an assignment that counts; empty where it counts without a signature."""
    unsigned = keys.unsigned == "counts" or (keys.unsigned == "gpushare" and not is_signed(each, keys))
    return "" if unsigned else key_named(annotations_of(each)[SIGNATURE])
