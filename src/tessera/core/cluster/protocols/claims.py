"""Which claims of a node count: the protocol by which several servers never grant one thing twice.

A server claims shares on the node's GPUNode object before it binds a pod to them; docs/decisions/0010 has the whole
protocol. Here is what one server knows of one node's claims, and what follows from it. Time is the server's own.
"""

import enum
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple, TypeAlias

import msgspec

from tessera.core.cluster.gpunodestate import Claim

__all__ = ["ClaimKey", "Fate", "Fates", "NodeClaims", "key_of"]


class Fate(enum.Enum):
    """What became of a pod, as far as is known."""

    OPEN = "open"
    """Neither seen bound nor seen gone: a request to bind it may be under way."""
    BOUND = "bound"
    """It runs on a node, this or another, and holds what its annotations say."""
    GONE = "gone"
    """It is no more; no other pod will ever have its UID."""


Fates: TypeAlias = Callable[[str], Fate]
"""The fate of a pod by its UID."""


class ClaimKey(NamedTuple):
    """One attempt to bind one pod."""

    uid: str
    attempt: str


class _Seen(msgspec.Struct):
    """A claim that the object has, or had."""

    claim: Claim
    since_s: float
    version: int
    """The last version of the object that is known to have it."""


def key_of(claim: Claim) -> ClaimKey:
    """Return which attempt a claim is of."""
    return ClaimKey(claim.uid, claim.attempt)


class NodeClaims:
    """What one server knows of the claims on one node.

    A claim counts until it is settled: its pod was seen bound or gone, or `give_up` said that its attempt will never
    bind the pod. A claim that vanished from the object counts on until then, because another server may have dropped
    it for a pod whose binding is not seen here yet.

    Attributes:
        version: of the object as it was seen last; 0 before it was seen.
        verified: whether every version was seen since the node's pods were listed last, so that pods and claims
            together are all there is. Only then may a claim be made on `version`.

    """

    def __init__(self) -> None:
        self.version = 0
        self.verified = False
        self._skipped = False
        self._seen: dict[ClaimKey, _Seen] = {}
        self._dead: set[ClaimKey] = set()
        self._kept: frozenset[ClaimKey] = frozenset()
        """Claims that went with their object: nobody dropped them, so that no verification lets them go until another
        object has them."""

    @property
    def empty(self) -> bool:
        """Whether no claim is known, not even a settled one."""
        return not self._seen

    def saw(self, version: int, claims: Iterable[Claim], now_s: float, *, skipped: bool = False) -> None:
        """Take the object in as a watch, or the answer to an own write, shows it; nothing where it is known already.

        Args:
            version: the object's.
            claims: those in it.
            now_s: time of this server's monotonic clock.
            skipped: whether there may have been versions between this and the one seen last.

        """
        if version <= self.version:
            return
        if skipped:
            self.verified, self._skipped = False, True
        self._take(version, claims, now_s)
        self.version = version

    def lost(self) -> None:
        """Mark what is known of the object as possibly out of date."""
        self.verified, self._skipped = False, True

    def deleted(self) -> None:
        """Record that the object was deleted. Its claims count until settled: who deleted it knew no pod's fate."""
        self.lost()
        self._kept = frozenset(self._seen)

    def reading(self) -> None:
        """Begin to verify: the object is read after this, and the node's pods after the object."""
        self._skipped = False

    def read(self, version: int, claims: Iterable[Claim], now_s: float) -> None:
        """End to verify: the object was read, and then the node's pods, which are known by now.

        What vanished before that version needs no keeping: pods that were bound by then were in the list.
        """
        self._take(version, claims, now_s)
        self.version = max(self.version, version)
        for key in [key for key, seen in self._seen.items() if seen.version < version and key not in self._kept]:
            del self._seen[key]
        self._kept &= self._seen.keys()
        self._dead &= self._seen.keys()
        self.verified = not self._skipped

    def _take(self, version: int, claims: Iterable[Claim], now_s: float) -> None:
        for claim in claims:
            seen = self._seen.setdefault(key_of(claim), _Seen(claim, now_s, version))
            seen.claim, seen.version = claim, max(seen.version, version)
            if version > self.version:
                self._kept -= {key_of(claim)}

    def give_up(self, key: ClaimKey) -> None:
        """Give up an attempt that will never bind its pod: it was refused, or is too old to be under way.

        Not for an attempt that took over the shares of an earlier one (`earlier`), which may bind the pod still.
        """
        self._dead.add(key)

    def present(self) -> tuple[Claim, ...]:
        """Return the claims that the object has."""
        return tuple(seen.claim for seen in self._seen.values() if seen.version == self.version)

    def counting(self, fates: Fates) -> tuple[Claim, ...]:
        """Return the claims that count, in the order they were first seen; equal claims for one pod once.

        Settled claims that the object no longer has are forgotten.
        """
        for key, seen in list(self._seen.items()):
            if seen.version < self.version and self._settled(seen.claim, fates):
                del self._seen[key]
                self._dead.discard(key)
        counting = (seen.claim for seen in self._seen.values() if not self._settled(seen.claim, fates))
        return tuple({(claim.uid, claim.shares): claim for claim in counting}.values())

    def earlier(self, uid: str, fates: Fates) -> Claim | None:
        """Return the claim that the object has or had for a pod; a new attempt must take the same shares.

        An earlier request to bind the pod may still be under way. Were its claim replaced by other shares, nothing
        would keep those that it names.
        """
        kept = (self._seen[key].claim for key in self._kept & self._seen.keys())
        found = (claim for claim in (*self.present(), *kept) if claim.uid == uid and not self._settled(claim, fates))
        return next(found, None)

    def lacking(self, fates: Fates) -> tuple[Claim, ...]:
        """Return the claims that went with a former object, count still, and are not in the one there is now.

        A server that starts now does not know them. Where the object has a later claim for the same pod, that stands.
        """
        uids = {claim.uid for claim in self.present()}
        return tuple(
            seen.claim
            for key, seen in self._seen.items()
            if key in self._kept and seen.version < self.version and key.uid not in uids
            if not self._settled(seen.claim, fates)
        )

    def with_claims(self, new: Collection[Claim], fates: Fates) -> tuple[Claim, ...]:
        """Return the claims to write with new ones: they replace those of their pods, settled ones are left out."""
        uids = {claim.uid for claim in new}
        return (*(each for each in self.present() if each.uid not in uids and not self._settled(each, fates)), *new)

    def without_settled(self, fates: Fates) -> tuple[Claim, ...] | None:
        """Return the claims to write so that settled ones go; None where the object has none."""
        present = self.present()
        left = tuple(claim for claim in present if not self._settled(claim, fates))
        return left if len(left) < len(present) else None

    def overdue(self, before_s: float, fates: Fates) -> tuple[Claim, ...]:
        """Return the claims that count and were first seen before a time; their pods must be looked up."""
        return tuple(
            seen.claim
            for seen in self._seen.values()
            if seen.since_s <= before_s and not self._settled(seen.claim, fates)
        )

    def vanished(self, before_s: float, fates: Fates) -> bool:
        """Return whether a claim counts that the object has no more, and that was first seen before a time.

        Who dropped it knew its pod's fate; verifying the node shows it: `read` forgets what vanished before.
        """
        return any(
            seen.version < self.version
            and seen.since_s <= before_s
            and key not in self._kept
            and not self._settled(seen.claim, fates)
            for key, seen in self._seen.items()
        )

    def _settled(self, claim: Claim, fates: Fates) -> bool:
        return key_of(claim) in self._dead or fates(claim.uid) is not Fate.OPEN
