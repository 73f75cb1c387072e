"""A pod keeps its allocation while it lives, whatever happens to its annotations and the keys.

Without an admission policy a tenant may remove or spoil the assignment of a running pod. The pod still uses
what it was allocated, so that must not count as free.
"""

from collections.abc import Collection

import msgspec

from tessera.api.kubernetes.podspecs import SIGNATURE
from tessera.api.tessera.pods.clusterpods import LivePod
from tessera.api.tessera.pods.signatures import Keys, is_signed, key_named
from tessera.clients.kube import Object, annotations_of
from tessera.core.cluster.snapshot import Share

__all__ = ["Retention"]


class _Retained(msgspec.Struct, frozen=True):
    """A pod's allocation, as of the last assignment that counted."""

    shares: tuple[Share, ...]
    key: str
    """Id of the key that signed it; empty for one that counted without signature."""


class Retention:
    """The allocation of each known pod."""

    def __init__(self) -> None:
        self._retained: dict[str, _Retained] = {}

    def retained(self, pod: Object, live: LivePod, keys: Keys | None, revoked: Collection[str]) -> LivePod:
        """Return a pod with its allocation: by its assignment where that counts, else the former one.

        Shares signed by an unknown key neither grant nor end an allocation: they are
        returned only if no allocation is known.

        An allocation ends with the pod, by UID, and when its key is revoked. One without a signature
        counts only while unsigned assignments may count.

        Args:
            pod: the pod's object.
            live: the parsed object.
            keys: the keys whose signatures count on its node; None where the node is not known.
            revoked: ids of revoked keys.

        """
        if not live.node:
            return live
        before = self._retained.get(live.uid)
        if keys is None:  # its assignment cannot be verified, and the node allocates nothing
            return msgspec.structs.replace(live, shares=before.shares if before else (), doubted="")
        if live.shares and not live.doubted:
            self._retained[live.uid] = _Retained(live.shares, _signed_by(pod, keys))
            return live
        if before is None:
            return live
        counts = before.key not in revoked if before.key else keys.unsigned != "refused"
        return msgspec.structs.replace(live, shares=before.shares, doubted="") if counts else live

    def forget(self, uid: str) -> None:
        """Forget a deleted pod."""
        self._retained.pop(uid, None)


def _signed_by(pod: Object, keys: Keys) -> str:
    """Return the id of the key of a valid assignment; empty where it counts without a signature."""
    unsigned = keys.unsigned == "counts" or (keys.unsigned == "gpushare" and not is_signed(pod, keys))
    return "" if unsigned else key_named(annotations_of(pod)[SIGNATURE])
