"""How a sync shares objects with peers."""

import contextlib
from pathlib import Path

import msgspec

from tessera.agent.storage.models.folder import ModelFolder
from tessera.agent.storage.models.peers.peerchunks import PeerChunks
from tessera.agent.storage.models.peers.shared import SharedTransfer
from tessera.agent.storage.models.reading import TransferSource
from tessera.agent.storage.models.transfer import Transfer
from tessera.core.storage.models.peers.multipart import proof_of
from tessera.core.storage.models.revisions import ModelFile, StoredObject

__all__ = ["PeerSharing"]


class PeerSharing:
    """A node that fetches objects together with its peers.

    Args:
        peers: the peers.

    """

    def __init__(self, peers: PeerChunks) -> None:
        self.peers = peers

    def fetching(self) -> contextlib.AbstractContextManager[object]:
        """Return the context of a fetch; what it fetches is served until its end."""
        return self.peers.served

    def begin(self, objects: tuple[StoredObject, ...]) -> None:
        """Set all objects of the source, from which all nodes compute the same owners."""
        self.peers.begin(objects)

    def fetch(self, source: TransferSource, staged: Path, objects: tuple[StoredObject, ...]) -> tuple[ModelFile, ...]:
        """Fetch objects: those that no peer can prove from the store alone, then the others together with peers."""
        own = tuple(each for each in objects if not self.peers.is_shareable(each))
        shared = tuple(
            msgspec.structs.replace(each, checksum=proof_of(each)) for each in objects if self.peers.is_shareable(each)
        )
        fetched = Transfer(source, staged).run(own)
        self.peers.count_store_bytes(source.progress.fetched)
        return fetched + (SharedTransfer(source, staged, self.peers).run(shared) if shared else ())

    def serve(self, folder: ModelFolder) -> None:
        """Serve exactly the revisions of a folder to peers, except packed ones."""
        plain = [each for name, each in folder.manifests().items() if folder.form(name).has_plain_files]
        self.peers.served.serve(folder.versions, plain)
