"""How a sync shares objects with other nodes; most share nothing."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tessera.agent.storage.models.folder import ModelFolder
from tessera.agent.storage.models.reading import TransferSource
from tessera.agent.storage.models.transfer import Transfer
from tessera.core.storage.models.revisions import ModelFile, StoredObject

if TYPE_CHECKING:
    from tessera.agent.storage.models.peers.peerchunks import PeerChunks

__all__ = ["ModelSharing", "NoSharing"]


class ModelSharing(Protocol):
    """How a node shares objects with its peers."""

    @property
    def peers(self) -> "PeerChunks | None":
        """The peers; None if the node has none."""

    def fetching(self) -> contextlib.AbstractContextManager[object]:
        """Return the context of a fetch; what it fetches is served until its end."""

    def begin(self, objects: tuple[StoredObject, ...]) -> None:
        """Set all objects of the source, also those that are on the disk."""

    def fetch(self, source: TransferSource, staged: Path, objects: tuple[StoredObject, ...]) -> tuple[ModelFile, ...]:
        """Fetch objects to the sub-folder `files` of a folder, and return them as files.

        Raises:
            TesseraError: the store does not answer, returns an error, or sends what does not match its own checksum.
            OSError: the disk is full or broken.

        """
        ...

    def serve(self, folder: ModelFolder) -> None:
        """Serve exactly the revisions of a folder to peers, except packed ones."""


class NoSharing:
    """A node that fetches everything from the store, and serves nothing."""

    peers = None

    def fetching(self) -> contextlib.AbstractContextManager[object]:
        """Return a context that does nothing."""
        return contextlib.nullcontext()

    def begin(self, objects: tuple[StoredObject, ...]) -> None:
        """Do nothing."""

    def fetch(self, source: TransferSource, staged: Path, objects: tuple[StoredObject, ...]) -> tuple[ModelFile, ...]:
        """Fetch objects from the store."""
        return Transfer(source, staged).run(objects)

    def serve(self, folder: ModelFolder) -> None:
        """Do nothing."""
