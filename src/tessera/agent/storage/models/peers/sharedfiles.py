"""An object fetched together with peers: its file, its running checksum, and the origin of its chunks."""

from pathlib import Path

from tessera.agent.storage.models.chunkfiles import ChunkFile
from tessera.agent.storage.models.digests import matches, start_checksum
from tessera.agent.storage.models.peers.servedcontent import StoredChunk
from tessera.core.storage.models.peers.owners import content_key
from tessera.core.storage.models.peers.provenance import Provenance
from tessera.core.storage.models.revisions import ModelFile, StoredObject, chunk_range

__all__ = ["SharedFile"]


class SharedFile:
    """An object being fetched to a file.

    The transfer's lock guards all but `chunks`, and `checksum`, which is the thread's that is summing.

    Args:
        index: among the fetched objects.
        stored: the object in the store.
        path: of the file.

    """

    def __init__(self, index: int, stored: StoredObject, path: str) -> None:
        self.provenance = Provenance(stored.checksum, stored.size)
        self.index = index
        self.stored = stored
        self.path = path
        self.key = content_key(stored.checksum, stored.size)
        self.chunks = ChunkFile(path, stored.size)
        self.restart()

    def restart(self) -> None:
        """Restart the store's checksum."""
        self.provenance.restart()
        self.checksum = start_checksum(self.stored.checksum, self.stored.size)
        self.is_summing = False
        """Whether a thread is adding chunks to the checksum."""

    @property
    def is_right(self) -> bool:
        """Whether all of it is verified."""
        return self.provenance.is_right_with(self.checksum_now)

    @property
    def checksum_now(self) -> str:
        """The checksum so far."""
        return self.checksum.hexdigest() if self.checksum else ""

    def piece(self, chunk: int) -> StoredChunk:
        """Return a chunk that may be served to peers."""
        first, last = chunk_range(self.stored.size, chunk)
        return StoredChunk(Path(self.path), first, last - first, self.provenance.digests[chunk])

    def as_model_file(self) -> ModelFile:
        """Return it as a file of a revision."""
        stored = self.stored
        verified = self.provenance.provable and self.checksum is not None and matches(self.checksum, stored.checksum)
        checksum = stored.checksum if verified else ""
        return ModelFile(stored.path, stored.size, tuple(self.provenance.digests), stored.etag, checksum)
