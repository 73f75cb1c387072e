"""The origin of each chunk of a shared object, whether all of it is right, and which peer was wrong.

A peer's chunks are unverified until the whole object has the store's checksum. Replaced chunks then show
which peer was wrong: the one whose chunk differs from the verified object.
"""

from typing import NamedTuple

from tessera.core.storage.models.peers.multipart import is_assumed
from tessera.core.storage.models.revisions import chunk_count

__all__ = ["EARLIER", "STORE", "Provenance", "Receipt"]

STORE, EARLIER = "", "?"
"""Origin of a chunk that is not from a peer: the store, or an earlier attempt."""


class Receipt(NamedTuple):
    """What follows from a chunk that came."""

    write: bool
    """Whether it is written; otherwise the one that is there stays."""
    wrong: str
    """The peer whose chunk differs from the store's; empty for none."""


class Provenance:
    """Of one object.

    Args:
        listed: the checksum in the store's listing.
        size: bytes.

    """

    def __init__(self, listed: str, size: int) -> None:
        self.listed = listed
        self.digests = [""] * chunk_count(size)
        self.origins: dict[int, str] = {}
        """The origin of each present chunk."""
        self.proven = False
        self.provable = True
        """Whether the ETag in the store's listing is a checksum at all."""
        self.excluded: set[str] = set()
        """Peers excluded for it: their chunks differed from others'."""
        self.replaced: list[tuple[int, str, str]] = []
        """Chunk, peer and digest of replaced chunks."""
        self.alone = False
        """Whether it is no longer requested from peers."""
        self.summed = 0
        """Chunks that are included in the running checksum."""
        self.stale = False
        """Whether one of them was replaced since."""

    def receive(self, chunk: int, digest: str, origin: str) -> Receipt:
        """Return what follows from a chunk; the store's replaces a peer's, and a peer's replaces nothing.

        The store's own chunk counts as its own from now on where the same one is there already.
        """
        former = self.origins.get(chunk)
        if former is None:
            return Receipt(write=True, wrong="")
        if self.digests[chunk] != digest:
            wrong = former or origin if STORE in {former, origin} else ""
            return Receipt(write=origin == STORE, wrong="" if wrong == EARLIER else wrong)
        if origin == STORE:
            self.origins[chunk] = STORE
        return Receipt(write=False, wrong="")

    def put(self, chunk: int, digest: str, origin: str) -> None:
        """Note a chunk that is written, perhaps over another."""
        self.stale = self.stale or chunk in self.origins
        self.digests[chunk], self.origins[chunk] = digest, origin

    def restart(self) -> None:
        """Restart the checksum."""
        self.summed = 0
        self.stale = False

    @property
    def wrong_peers(self) -> dict[str, int]:
        """The peers whose chunks differ from the verified object, each with one of these chunks."""
        return {peer: chunk for chunk, peer, digest in self.replaced if digest != self.digests[chunk]}

    def drop(self, peer: str) -> list[int]:
        """Discard a peer's chunks; return which these were."""
        found = [chunk for chunk, origin in self.unproven.items() if origin == peer]
        for chunk in found:
            self.replaced.append((chunk, peer, self.digests[chunk]))
            del self.origins[chunk]
        return found

    @property
    def unproven(self) -> dict[int, str]:
        """The peers of the chunks that are not from the store."""
        return {chunk: origin for chunk, origin in sorted(self.origins.items()) if origin != STORE}

    @property
    def is_summed(self) -> bool:
        """Whether there is nothing left to add, or no use in it."""
        return self.stale or not self.provable or self.summed == len(self.digests)

    def is_right_with(self, computed: str) -> bool:
        """Return whether all of it is the store's, by the running checksum."""
        if len(self.origins) < len(self.digests):
            return False
        # The store's own chunks are right, if the size of its ETag's parts is unknown.
        if not self.provable or (is_assumed(self.listed) and not self.unproven):
            return not self.unproven
        whole = self.summed == len(self.digests) and not self.stale
        return whole and computed == self.listed.partition(":")[2]
