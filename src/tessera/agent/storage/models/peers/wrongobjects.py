"""What is fetched again of objects whose content does not match the store's checksum."""

from collections.abc import Mapping

from tessera.agent.storage.models.digests import chunk_digest
from tessera.agent.storage.models.peers.chunksources import ChunkSources
from tessera.agent.storage.models.peers.peerchunks import PeerChunks
from tessera.agent.storage.models.peers.sharedchunks import SharedChunks
from tessera.core.storage.models.peers.provenance import Provenance
from tessera.core.storage.models.peers.repairs import Chunk, discarded, from_store_alone, is_stale, suspects

__all__ = ["WrongObjects"]


class WrongObjects:
    """Finds out which chunks of wrong objects to fetch again.

    Args:
        chunks: of the transfer.
        sources: other peers, and the store.
        peers: knows which are banned.

    """

    def __init__(self, chunks: SharedChunks, sources: ChunkSources, peers: PeerChunks) -> None:
        self._chunks = chunks
        self._sources = sources
        self._peers = peers

    def chunks_to_repeat(self, wrong: list[int], buffer: memoryview) -> list[Chunk] | None:
        """Return what to fetch again; None where the store's own content does not match its checksum."""
        state = self._chunks.state
        files = [state.files[index] for index in wrong]
        objects = {file.index: file.provenance for file in files}
        # 1. Discard what peers served that were wrong before.
        with state.changed:
            tasks = discarded(objects, self._peers.banned)
        # 2. Request the same chunks from other peers until one differs.
        if not tasks and not is_stale(objects):
            shared = {index: each for index, each in objects.items() if not each.alone}
            repeated = self._recheck(shared, buffer)
            # 3. Where none differs, read everything from the store, unless it has delivered all of it meanwhile.
            if repeated is None and not is_stale(objects):
                with state.changed:
                    repeated = from_store_alone(objects)
                if not repeated:
                    return [] if any(file.is_right for file in files) else None
            tasks = repeated or []
        # 4. Compute the checksums again.
        self._chunks.checksums.restart(files)
        return tasks

    def _recheck(self, wrong: Mapping[int, Provenance], buffer: memoryview) -> list[Chunk] | None:
        """Fetch chunks from other peers until one differs; return what to fetch again, None for nothing.

        All chunks of the first peer in wrong objects are discarded: it is the likeliest to be wrong.
        """
        state = self._chunks.state
        for index, chunk, peer in suspects(wrong):
            task = (index, chunk)
            _, _, view = state.span(task, buffer)
            other = self._sources.from_another(task, {peer, *wrong[index].excluded}, view)
            if not other:
                self._sources.from_store(task, buffer)
                if peer in self._peers.banned:
                    with state.changed:
                        return discarded(wrong, [peer])
            elif chunk_digest(view) != wrong[index].digests[chunk]:
                with state.changed:
                    tasks = discarded(wrong, [peer])
                self._chunks.keep(task, view, other)
                return [each for each in tasks if each != task]
        return None
