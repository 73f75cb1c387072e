"""Who gave which chunk of an object that nodes fetch together, whether all of it is right, and which peer lied.

What a peer gave is unproven until the whole object has the store's checksum. What others gave in its place says then
who lied: whoever gave something else than what is in the proven object.
"""

from tessera.core.storage.models.multipart import is_assumed
from tessera.core.storage.models.revisions import chunk_count

__all__ = ["EARLIER", "STORE", "Provenance"]

STORE, EARLIER = "", "?"
"""Who gave a chunk, where that is no peer: the store, or an attempt of a process that has ended."""


class Provenance:
    """Of one object.

    Args:
        listed: the checksum that the store lists.
        size: bytes.

    """

    def __init__(self, listed: str, size: int) -> None:
        self.listed = listed
        self.digests = [""] * chunk_count(size)
        self.givers: dict[int, str] = {}
        """Who gave each chunk that is there."""
        self.proven = False
        self.provable = True
        """Whether the ETag that the store listed is a checksum at all."""
        self.doubted: set[str] = set()
        """Peers that are asked for none of it: others gave something else."""
        self.said: list[tuple[int, str, str]] = []
        """Chunk, peer and digest of what was replaced by what others gave."""
        self.alone = False
        """Whether peers are asked for none of it any more."""
        self.summed = 0
        """Chunks that are in the checksum which is computed."""
        self.stale = False
        """Whether one of them was replaced since."""

    def restart(self) -> None:
        """Let the checksum be computed anew."""
        self.summed = 0
        self.stale = False

    @property
    def lies(self) -> dict[str, int]:
        """Whoever gave what is not in the proven object, and which chunk."""
        return {peer: chunk for chunk, peer, digest in self.said if digest != self.digests[chunk]}

    def drop(self, peer: str) -> list[int]:
        """Take out what a peer gave; return which chunks that were."""
        found = [chunk for chunk, giver in self.unproven.items() if giver == peer]
        for chunk in found:
            self.said.append((chunk, peer, self.digests[chunk]))
            del self.givers[chunk]
        return found

    @property
    def unproven(self) -> dict[int, str]:
        """Who gave the chunks that are not from the store."""
        return {chunk: giver for chunk, giver in sorted(self.givers.items()) if giver != STORE}

    @property
    def is_summed(self) -> bool:
        """Whether there is nothing left to sum, or no use in it."""
        return self.stale or not self.provable or self.summed == len(self.digests)

    def is_right_with(self, computed: str) -> bool:
        """Return whether all of it is what the store has, given the checksum of what was summed."""
        if len(self.givers) < len(self.digests):
            return False
        # What the store has itself given is right, where nobody knows how large the parts of its ETag are.
        if not self.provable or (is_assumed(self.listed) and not self.unproven):
            return not self.unproven
        whole = self.summed == len(self.digests) and not self.stale
        return whole and computed == self.listed.partition(":")[2]
