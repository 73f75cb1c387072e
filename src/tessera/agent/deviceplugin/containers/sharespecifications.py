"""The CDI specifications of containers with shares, one each, which the runtime reads when it creates the container."""

import msgspec

from tessera.agent.deviceplugin.containers.cdifolder import CdiFolder
from tessera.api.nvidia import cdi
from tessera.core.deviceplugin.containers.edits import ShareEdits
from tessera.core.deviceplugin.containers.injection import SHARE_KIND, VOID
from tessera.log import Logger

__all__ = ["Prepared", "ShareSpecifications"]

_PREFIX = "share-"


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """What a container with some shares is handed."""

    visible: tuple[str, ...]
    """UUIDs of its GPUs and MIG instances, each once."""
    edits: ShareEdits


class ShareSpecifications:
    """Writes and removes the specifications, by the name of a share (`core.deviceplugin.containers.injection`).

    Args:
        folder: of all CDI specifications of this node.
        log: for removals.

    """

    def __init__(self, folder: CdiFolder, log: Logger) -> None:
        self._folder = folder
        self._log = log
        self._needed = frozenset[str]()
        """Names that were in use at the last cleanup."""

    def write(self, name: str, prepared: Prepared, *, dev_root: str) -> None:
        """Write what the runtime gives the container of a share.

        Raises:
            TesseraError: the folder cannot be written.

        """
        edits = msgspec.structs.replace(prepared.edits, env=(*VOID, *prepared.edits.env))
        self._folder.write(
            f"{_PREFIX}{name}", cdi.write(SHARE_KIND, {name: edits}, self._folder.driver, dev_root=dev_root)
        )

    def keep(self, needed: frozenset[str]) -> None:
        """Remove what is needed neither now nor was at the last call.

        Raises:
            Unavailable: the folder cannot be written.

        """
        removed = self._folder.keep({f"{_PREFIX}{name}" for name in needed | self._needed}, prefix=_PREFIX)
        self._needed = needed
        if removed:
            self._log.info("shares_removed", shares=[name.removeprefix(_PREFIX) for name in removed])
