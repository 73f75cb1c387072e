"""Which claims of a node count: the protocol by which several servers never allocate a device twice.

A server claims shares on the node's GPUNode object before it binds a pod to them; docs/decisions/0010 has the whole
protocol. This is one server's knowledge of one node's claims, and its consequences. Time is the server's own.
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
    """Neither observed bound nor gone: a request to bind it may be in flight."""
    BOUND = "bound"
    """It runs on a node, this or another, and uses the devices in its annotations."""
    GONE = "gone"
    """It is gone; no other pod will ever have its UID."""


Fates: TypeAlias = Callable[[str], Fate]
"""The fate of a pod by its UID."""


class ClaimKey(NamedTuple):
    """One attempt to bind one pod."""

    uid: str
    attempt: str


class _TrackedClaim(msgspec.Struct):
    """A claim that is or was in the object."""

    claim: Claim
    since_s: float
    version: int
    """The last known version of the object with it."""


def key_of(claim: Claim) -> ClaimKey:
    """Return the attempt that a claim belongs to."""
    return ClaimKey(claim.uid, claim.attempt)


class NodeClaims:
    """One server's knowledge of the claims on one node.

    A claim counts until it is settled: its pod was observed bound or gone, or `give_up` said its attempt will never
    bind the pod. A claim that vanished from the object counts until then, because another server may have dropped
    it for a pod whose binding is not observed here yet.

    Attributes:
        version: last observed version of the object; 0 before the first.
        verified: whether every version was observed since the node's pods were last listed, so that pods and claims
            together are complete. Only then may a claim be made on `version`.

    """

    def __init__(self) -> None:
        self.version = 0
        self.verified = False
        self._skipped = False
        self._tracked: dict[ClaimKey, _TrackedClaim] = {}
        self._dead: set[ClaimKey] = set()
        self._orphaned: frozenset[ClaimKey] = frozenset()
        """Claims that were deleted with their object: no server dropped them, so they count until another
        object has them."""

    @property
    def empty(self) -> bool:
        """Whether no claim is known, not even a settled one."""
        return not self._tracked

    def take(self, version: int, claims: Iterable[Claim], now_s: float, *, skipped: bool = False) -> None:
        """Take the object from a watch or the answer to an own write; ignored if known already.

        Args:
            version: of the object.
            claims: those in it.
            now_s: time of this server's monotonic clock.
            skipped: whether there may have been versions between this and the last observed one.

        """
        if version <= self.version:
            return
        if skipped:
            self.verified, self._skipped = False, True
        self._take(version, claims, now_s)
        self.version = version

    def lost(self) -> None:
        """Mark the knowledge of the object as possibly outdated."""
        self.verified, self._skipped = False, True

    def deleted(self) -> None:
        """Record that the object was deleted. Its claims count until settled: its deletion settles no claim."""
        self.lost()
        self._orphaned = frozenset(self._tracked)

    def reading(self) -> None:
        """Begin to verify: the object is read after this, and the node's pods after the object."""
        self._skipped = False

    def read(self, version: int, claims: Iterable[Claim], now_s: float) -> None:
        """End verifying: the object was read, and then the node's pods, which are known by now.

        Claims that vanished before that version are forgotten: pods that were bound by then were in the list.
        """
        self._take(version, claims, now_s)
        self.version = max(self.version, version)
        for key in [
            key for key, tracked in self._tracked.items() if tracked.version < version and key not in self._orphaned
        ]:
            del self._tracked[key]
        self._orphaned &= self._tracked.keys()
        self._dead &= self._tracked.keys()
        self.verified = not self._skipped

    def _take(self, version: int, claims: Iterable[Claim], now_s: float) -> None:
        for claim in claims:
            tracked = self._tracked.setdefault(key_of(claim), _TrackedClaim(claim, now_s, version))
            tracked.claim, tracked.version = claim, max(tracked.version, version)
            if version > self.version:
                self._orphaned -= {key_of(claim)}

    def give_up(self, key: ClaimKey) -> None:
        """Give up an attempt that will never bind its pod: it was rejected, or is too old to be in flight.

        Not for an attempt that took over the shares of an earlier one (`earlier`), which may still bind the pod.
        """
        self._dead.add(key)

    def present(self) -> tuple[Claim, ...]:
        """Return the claims in the object."""
        return tuple(tracked.claim for tracked in self._tracked.values() if tracked.version == self.version)

    def counting(self, fates: Fates) -> tuple[Claim, ...]:
        """Return the claims that count, in the order of their first observation; equal claims for one pod once.

        Settled claims that are no longer in the object are forgotten.
        """
        for key, tracked in list(self._tracked.items()):
            if tracked.version < self.version and self._is_settled(tracked.claim, fates):
                del self._tracked[key]
                self._dead.discard(key)
        counting = (tracked.claim for tracked in self._tracked.values() if not self._is_settled(tracked.claim, fates))
        return tuple({(claim.uid, claim.shares): claim for claim in counting}.values())

    def earlier(self, uid: str, fates: Fates) -> Claim | None:
        """Return a pod's claim, present or former; a new attempt must use the same shares.

        An earlier request to bind the pod may still be in flight. If its claim were replaced by other shares, nothing
        would reserve those that it names.
        """
        kept = (self._tracked[key].claim for key in self._orphaned & self._tracked.keys())
        found = (claim for claim in (*self.present(), *kept) if claim.uid == uid and not self._is_settled(claim, fates))
        return next(found, None)

    def lacking(self, fates: Fates) -> tuple[Claim, ...]:
        """Return the claims that were deleted with a former object, still count, and are not in the current one.

        A server that starts now does not know them. If the object has a later claim for the same pod, that one stays.
        """
        uids = {claim.uid for claim in self.present()}
        return tuple(
            tracked.claim
            for key, tracked in self._tracked.items()
            if key in self._orphaned and tracked.version < self.version and key.uid not in uids
            if not self._is_settled(tracked.claim, fates)
        )

    def with_claims(self, new: Collection[Claim], fates: Fates) -> tuple[Claim, ...]:
        """Return the claims to write with new ones, which replace those of their pods; settled ones are left out."""
        uids = {claim.uid for claim in new}
        return (*(each for each in self.present() if each.uid not in uids and not self._is_settled(each, fates)), *new)

    def without_settled(self, fates: Fates) -> tuple[Claim, ...] | None:
        """Return the claims to write so that settled ones are removed; None if there are none."""
        present = self.present()
        left = tuple(claim for claim in present if not self._is_settled(claim, fates))
        return left if len(left) < len(present) else None

    def overdue(self, before_s: float, fates: Fates) -> tuple[Claim, ...]:
        """Return the claims that count and were first observed before a time; their pods must be read."""
        return tuple(
            tracked.claim
            for tracked in self._tracked.values()
            if tracked.since_s <= before_s and not self._is_settled(tracked.claim, fates)
        )

    def vanished(self, before_s: float, fates: Fates) -> bool:
        """Return whether a claim counts that is no longer in the object, and was first observed before a time.

        The server that dropped it knew its pod's fate; verifying the node shows it: `read` forgets vanished claims.
        """
        return any(
            tracked.version < self.version
            and tracked.since_s <= before_s
            and key not in self._orphaned
            and not self._is_settled(tracked.claim, fates)
            for key, tracked in self._tracked.items()
        )

    def _is_settled(self, claim: Claim, fates: Fates) -> bool:
        return key_of(claim) in self._dead or fates(claim.uid) is not Fate.OPEN
