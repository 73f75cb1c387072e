"""What is fetched again of objects whose content does not match the store's checksum."""

from collections.abc import Mapping

from tessera.agent.storage.models.digests import chunk_digest
from tessera.agent.storage.models.peers.chunksources import ChunkSources
from tessera.agent.storage.models.peers.peerchunks import PeerChunks
from tessera.agent.storage.models.peers.sharedchunks import SharedChunks
from tessera.agent.storage.models.peers.sharedfiles import SharedFile
from tessera.core.storage.models.peers.repairs import Chunk, is_stale, suspects

__all__ = ["WrongObjects"]


class WrongObjects:
    """Finds out which chunks of wrong objects to fetch again.

    Args:
        chunks: of the transfer.
        sources: other peers, and the store.
        sharing: knows which peers are banned.

    """

    def __init__(self, chunks: SharedChunks, sources: ChunkSources, sharing: PeerChunks) -> None:
        self._chunks = chunks
        self._sources = sources
        self._sharing = sharing

    def chunks_to_repeat(self, wrong: list[int], buffer: memoryview) -> list[Chunk] | None:
        """Return what to fetch again; None where the store's own content does not match its checksum."""
        files = {index: self._chunks.files[index] for index in wrong}
        # 1. Discard what peers served that were wrong before.
        tasks = self._chunks.discard(files, self._sharing.banned)
        # 2. Ask other peers for the same chunks until one differs.
        if not tasks and not is_stale(files):
            repeated = self._recheck({index: each for index, each in files.items() if not each.alone}, buffer)
            # 3. Where none differs, read everything from the store, unless it has delivered all of it meanwhile.
            if repeated is None and not is_stale(files):
                repeated = self._chunks.discard_all(files)
                if not repeated:
                    return [] if any(file.is_right for file in files.values()) else None
            tasks = repeated or []
        # 4. Compute the checksums again.
        self._chunks.sum_again(files.values())
        return tasks

    def _recheck(self, wrong: Mapping[int, SharedFile], buffer: memoryview) -> list[Chunk] | None:
        """Fetch chunks of wrong files from other peers until one differs; return what to fetch again, None for nothing.

        All chunks of the first peer in wrong files are discarded: it is the likeliest to be wrong.
        """
        for index, chunk, peer in suspects(wrong):
            file, task = wrong[index], (index, chunk)
            _, _, view = self._chunks.span(task, buffer)
            other = self._sources.from_another(task, {peer, *file.excluded}, view)
            if not other:
                self._sources.from_store(task, buffer)
                if peer in self._sharing.banned:
                    return self._chunks.discard(wrong, [peer])
            elif chunk_digest(view) != file.digests[chunk]:
                tasks = self._chunks.discard(wrong, [peer])
                self._chunks.keep(task, view, other)
                return [each for each in tasks if each != task]
        return None
