"""Opens a folder that a store was synced to, whatever its form."""

from pathlib import Path

from tessera.agent.storage.models.folder import ModelFolder
from tessera.agent.storage.models.mirrorfolder import MirrorFolder
from tessera.agent.storage.models.syncedfolder import SyncedFolder
from tessera.errors import InvalidInput

__all__ = ["open_folder"]


def open_folder(top: Path) -> SyncedFolder:
    """Return a mirror, or a folder of revisions, which may be empty.

    Raises:
        InvalidInput: there is no such folder; that is most often a wrong path.

    """
    if not top.is_dir():
        fix = f"check the path, or fetch a model with `tessera models sync SRC {top}`"
        raise InvalidInput(str(top), found="there is no such folder", hint=fix)
    mirror = MirrorFolder(top)
    return mirror if mirror.exists else ModelFolder(top)
