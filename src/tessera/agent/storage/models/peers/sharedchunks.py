"""The chunks of objects that are fetched together with peers, as they arrive from the store, peers and the journal."""

from functools import partial
from pathlib import Path

from tessera.agent.storage.models.digests import chunk_digest
from tessera.agent.storage.models.journal import Journal
from tessera.agent.storage.models.peers.peerchunks import PeerChunks
from tessera.agent.storage.models.peers.serving import ServedObject
from tessera.agent.storage.models.peers.sharedchecksums import SharedChecksums
from tessera.agent.storage.models.peers.sharedfiles import SharedFile
from tessera.agent.storage.models.peers.transferstate import TransferState
from tessera.agent.storage.models.reading import Reader
from tessera.core.storage.models.peers.provenance import EARLIER, STORE
from tessera.core.storage.models.peers.repairs import Chunk
from tessera.core.storage.models.revisions import StoredObject

__all__ = ["SharedChunks"]


class SharedChunks:
    """The chunks of a transfer's objects; thread-safe.

    A peer's chunk is unverified until the whole object matches the store's checksum, and is not served before.

    Args:
        folder: the destination; its sub-folder `files` gets the files, `journal-shared` lists their complete chunks.
        reader: of the store; it names objects in errors, and has the progress.
        peers: the peers.

    """

    def __init__(self, folder: Path, reader: Reader, peers: PeerChunks) -> None:
        self._folder = folder
        self._reader = reader
        self._peers = peers
        self._journal = Journal(folder / "journal-shared")
        self._counted: set[Chunk] = set()
        """Reported progress; guarded by the state's condition."""
        self.state = TransferState()
        self.checksums = SharedChecksums(self.state, self._ban)

    def open(self, objects: tuple[StoredObject, ...]) -> None:
        """Create the files, and serve them to peers."""
        files = self._folder / "files"
        for folder in sorted({(files / each.path).parent for each in objects}):
            folder.mkdir(parents=True, exist_ok=True)
        self._journal.open()
        self.state.files += [SharedFile(index, each, str(files / each.path)) for index, each in enumerate(objects)]
        for file in self.state.files:
            self._peers.served.offer(file.key, ServedObject(self.state, file.index))

    def close(self) -> None:
        """Close the journal; nothing may arrive any more."""
        self._journal.close()

    def resume(self, task: Chunk, buffer: memoryview) -> bool:
        """Reuse a chunk of an earlier attempt that matches the journal; its origin is unknown."""
        file, first, view = self.state.span(task, buffer)
        digest = self._journal.restored(task, view, partial(file.chunks.read, offset=first))
        self._journal.known.pop(task, None)  # it is reused once: what was wrong with it is fetched
        if not digest:
            return False
        with self.state.changed:
            if task[1] in file.provenance.origins:
                return False
            file.provenance.put(task[1], digest, EARLIER)
            self._counted.add(task)
        self._reader.progress.add(len(view), fetched=False)
        self.checksums.add(file, buffer, task[1])
        self.state.arrived(task)
        return True

    def keep(self, task: Chunk, view: memoryview, origin: str) -> None:
        """Write a chunk, unless it is present; the store's replaces a peer's, which is logged.

        Raises:
            OSError: the disk is full or broken; the chunk is absent then.

        """
        file, first, _ = self.state.span(task, view)
        chunk, digest, changed = task[1], chunk_digest(view), self.state.changed
        with changed:
            changed.wait_for(lambda: task not in self.state.writing)
            write, wrong = file.provenance.receive(chunk, digest, origin)
            if wrong:
                self._ban(file, chunk, wrong)
            if write:
                self.state.writing.add(task)
        is_new = False
        if write:
            try:
                file.chunks.write(view, first)
                self._journal.add((*task, digest))
                with changed:
                    file.provenance.put(chunk, digest, origin)
                    is_new = task not in self._counted
                    self._counted.add(task)
            finally:
                with changed:
                    self.state.writing.discard(task)
                    changed.notify_all()
        if is_new:
            self._reader.progress.add(len(view), fetched=True)
        self.checksums.add(file, view, chunk if write else -1)
        self.state.arrived(task)

    def read_without_peers(self) -> None:
        """Fetch objects from the store alone: it encrypts them with a key of its own, so ETags are no checksums."""
        with self.state.changed:
            for file in self.state.files:
                if file.stored.checksum.partition(":")[2] == file.stored.etag:
                    file.provenance.provable, file.provenance.alone = False, True

    def begin_reading(self, task: Chunk) -> bool:
        """Return whether a chunk is to be read from the store, once no other thread reads it.

        A caller that gets True calls `end_reading`. It is not to be read if the store's is there, or the transfer ends.
        """
        state, stop = self.state, self._reader.stop
        with state.changed:
            state.changed.wait_for(lambda: task not in state.reading or stop.is_set())
            if state.files[task[0]].provenance.origins.get(task[1]) == STORE or stop.is_set():
                state.missing.discard(task)
                state.changed.notify_all()
                return False
            state.reading.add(task)
            return True

    def end_reading(self, task: Chunk) -> None:
        """Let others read the chunk, if it is not there."""
        with self.state.changed:
            self.state.reading.discard(task)
            self.state.changed.notify_all()

    def forget(self, wrong: list[int]) -> None:
        """Let no later attempt reuse chunks of these objects."""
        self._journal.forget(wrong)

    def _ban(self, file: SharedFile, chunk: int, peer: str) -> None:
        if peer not in {STORE, EARLIER}:
            self._peers.ban(peer, f"chunk {chunk} of {self._reader.subject(file.stored)}")
