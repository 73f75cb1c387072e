"""An object that a node fetches together with its peers: what of it is there, who gave it, and whether it is right."""

from collections.abc import Callable
from pathlib import Path

from tessera.agent.storage.models.chunkfiles import ChunkFile
from tessera.agent.storage.models.digests import start_checksum
from tessera.agent.storage.models.shelf import Piece
from tessera.core.storage.models.multipart import is_assumed
from tessera.core.storage.models.peers import content_key
from tessera.core.storage.models.revisions import ModelFile, StoredObject, chunk_count, chunk_range

__all__ = ["EARLIER", "STORE", "Gift", "SharedFile"]

STORE, EARLIER = "", "?"
"""Who gave a chunk, where that is no peer: the store, or an attempt of a process that has ended."""


class Gift:
    """An object of a transfer, for the shelf.

    Args:
        take: gives a chunk of one of its objects.
        index: which object.

    """

    def __init__(self, take: Callable[[tuple[int, int], float | None], Piece], index: int) -> None:
        self._take = take
        self._index = index

    def take(self, chunk: int, wait_s: float | None) -> Piece:
        """Return a chunk."""
        return self._take((self._index, chunk), wait_s)


class SharedFile:
    """An object on its way to a file. All but `chunks` belongs to who holds the transfer's lock.

    Args:
        index: its place among those that are fetched.
        found: the object.
        path: of the file.

    """

    def __init__(self, index: int, found: StoredObject, path: str) -> None:
        self.index = index
        self.found = found
        self.path = path
        self.key = content_key(found.checksum, found.size)
        self.digests = [""] * chunk_count(found.size)
        self.givers: dict[int, str] = {}
        """Who gave each chunk that is there."""
        self.chunks = ChunkFile(path, found.size)
        self.proven = False
        self.provable = True
        """Whether the ETag that the store listed is a checksum at all."""
        self.doubted: set[str] = set()
        """Peers that are asked for none of it: others gave something else."""
        self.said: list[tuple[int, str, str]] = []
        """Chunk, peer and digest of what was replaced by what others gave; when all is proven, it says who lied."""
        self.alone = False
        """Whether peers are asked for none of it any more."""
        self.restart()

    def restart(self) -> None:
        """Compute the store's checksum anew."""
        self.checksum = start_checksum(self.found.checksum, self.found.size)
        self.summed = 0
        """Chunks that are in the checksum."""
        self.summing = False
        self.stale = False
        """Whether one of them was replaced since."""

    @property
    def lies(self) -> dict[str, int]:
        """Whoever gave what is not in the proven file, and which chunk."""
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
    def is_right(self) -> bool:
        """Whether all of it is what the store has."""
        if len(self.givers) < len(self.digests):
            return False
        # What the store has itself given is right, where nobody knows how large the parts of its ETag are.
        if not self.provable or (is_assumed(self.found.checksum) and not self.unproven):
            return not self.unproven
        whole = self.summed == len(self.digests) and not self.stale
        return whole and self.checksum_now == self.found.checksum.partition(":")[2]

    @property
    def checksum_now(self) -> str:
        """The checksum of what was summed."""
        return self.checksum.hexdigest() if self.checksum else ""

    @property
    def is_summed(self) -> bool:
        """Whether there is nothing left to sum, or no use in it."""
        return self.stale or not self.provable or self.summed == len(self.digests)

    def piece(self, chunk: int) -> Piece:
        """Return a chunk that may be given to peers."""
        first, last = chunk_range(self.found.size, chunk)
        return Piece(Path(self.path), first, last - first, self.digests[chunk])

    def as_model_file(self) -> ModelFile:
        """Return it as a file of a revision."""
        found = self.found
        checksum = found.checksum if self.provable and not is_assumed(found.checksum) else ""
        return ModelFile(found.path, found.size, tuple(self.digests), found.etag, checksum)
