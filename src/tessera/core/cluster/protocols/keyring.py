"""Public keys that count, as an object in the cluster publishes them: none goes unless somebody took it out.

Every process that reads assignments follows the same object, so that the rule is here once
(docs/decisions/0012-assignments-are-signed.md):

- A key that the object shows counts.
- It goes on to count when the object is deleted, and when another object of that name does not have it: that is an
  accident, and pods that the key signed run.
- It is revoked when a later version of the same object, by UID, does not have it any more: somebody took it out.
- A revoked key that is shown again counts again.
- What is older than what was seen says nothing: watches and reads are late by different amounts.
- A read of what the API server has now (a quorum read) that began after all that was seen, and yet shows an older
  version, shows that the history went back: etcd was restored from a backup. It is taken as it is. Nobody took out what
  it lacks, so that nothing is revoked for it, and what it shows counts.

A process that starts knows what the object shows then, and nothing of before.
"""

from collections.abc import Mapping

import msgspec

__all__ = ["KeyRing"]


class KeyRing(msgspec.Struct, frozen=True, kw_only=True):
    """Keys that one process has seen published; an empty one before it has seen any."""

    public: Mapping[str, bytes] = {}
    """Those that count, by id."""
    revoked: frozenset[str] = frozenset()
    """Ids of keys that were taken out of the object."""
    uid: str = ""
    """Of the object that was seen last."""
    version: int = 0
    """Its resourceVersion as a number."""
    shown: frozenset[str] = frozenset()
    """Ids of the keys that it showed. What `public` has beyond them is to be written into it again."""

    def saw(self, uid: str, version: int, public: Mapping[str, bytes], *, begun: int | None = None) -> "KeyRing":
        """Return the ring after another version of the object, with these keys by id. A deletion is no version.

        Args:
            uid: of the object.
            version: its resourceVersion as a number.
            public: the keys that it shows.
            begun: for a quorum read the `version` of the ring when it began; None for what a watch shows.

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
