"""Public keys that count, published by an object in the cluster: a key counts until it is removed on purpose.

Every process that reads assignments watches the same object, so the rule is here once
(docs/decisions/0012-assignments-are-signed.md):

- A key in the object counts.
- It still counts when the object is deleted, and when a recreated object does not have it: that is an
  accident, and pods with its signatures run.
- It is revoked when a later version of the same object, by UID, does not have it: an administrator removed it.
- A revoked key that appears again counts again.
- Versions older than the last observed one are ignored: watches and reads lag by different amounts.
- A read of what the API server has now (a quorum read) that began after the last observation, and returns an older
  version, shows that the history went back: etcd was restored from a backup. It is taken as it is. Missing keys were
  not removed by a user, so none is revoked for it, and its keys count.

A process that starts knows the current object, and nothing of before.
"""

from collections.abc import Mapping

import msgspec

__all__ = ["KeyRing"]


class KeyRing(msgspec.Struct, frozen=True, kw_only=True):
    """The published keys that one process has observed; empty before the first."""

    public: Mapping[str, bytes] = {}
    """Those that count, by id."""
    revoked: frozenset[str] = frozenset()
    """Ids of keys that were removed from the object."""
    uid: str = ""
    """UID of the last observed object."""
    version: int = 0
    """Its resourceVersion as a number."""
    shown: frozenset[str] = frozenset()
    """Ids of its keys. Further keys in `public` are to be written into it again."""

    def observe(self, uid: str, version: int, public: Mapping[str, bytes], *, begun: int | None = None) -> "KeyRing":
        """Return the ring after another version of the object, with these keys by id. A deletion is no version.

        Args:
            uid: of the object.
            version: its resourceVersion as a number.
            public: its keys.
            begun: for a quorum read the `version` of the ring when it began; None for a watch.

        """
        went_back = version < self.version == begun
        if version <= self.version and not went_back:
            return self
        taken_out = self.shown - public.keys() if uid == self.uid and not went_back else frozenset[str]()
        return KeyRing(
            public={name: key for name, key in {**self.public, **public}.items() if name not in taken_out},
            revoked=(self.revoked | taken_out) - public.keys(),
            uid=uid,
            version=version,
            shown=frozenset(public),
        )
