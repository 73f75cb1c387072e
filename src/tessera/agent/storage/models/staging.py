"""What syncs of both forms do: they list a store, find room, and fetch objects into a folder of their own."""

from collections.abc import Collection
from pathlib import Path

import msgspec

from tessera.agent.nodefiles import entries
from tessera.agent.storage.models.cancellation import Cancellation
from tessera.agent.storage.models.modelsharing import ModelSharing, NoSharing
from tessera.agent.storage.models.reading import TransferLimits, TransferSource
from tessera.agent.storage.models.syncedfolder import SyncedFolder
from tessera.agent.storage.models.transfer import listed
from tessera.clients.store import ObjectStore
from tessera.clients.store.folders import FolderStore
from tessera.core.storage.models.paths import checked_objects, selected
from tessera.core.storage.models.peers.multipart import proof_of
from tessera.core.storage.models.retention import RevisionOnDisk, make_room
from tessera.core.storage.models.revisions import Manifest, ModelFile, StoredObject
from tessera.core.storage.models.syncplans import Pack, SyncPlan, refuse_empty, refuse_unverified
from tessera.errors import InvalidInput

__all__ = ["SyncOptions", "desired_objects", "evictions_for", "refuse_nested", "stage", "unstaged_bytes"]

_RESERVE = 64 * 2**20
_ALONE = NoSharing()
_NEVER = Cancellation()


class SyncOptions(msgspec.Struct, frozen=True):
    """Options of a sync.

    Args:
        keep: number of revisions to keep, including the current one.
        include: patterns of the files to take; empty for all.
        exclude: patterns of files to leave out.
        check: compare files on disk with their digests before reusing them.
        reserve_bytes: stay free on the disk.
        limits: of the transfer.
        pack: whether files are packed into one image.
        revision: the desired one; empty for what the store has.
        require_checksums: whether files are refused that no checksum of the store verifies.

    """

    keep: int = 2
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    check: bool = False
    reserve_bytes: int = _RESERVE
    limits: TransferLimits = TransferLimits()
    pack: Pack = "Never"
    revision: str = ""
    require_checksums: bool = False


def refuse_nested(store: ObjectStore, top: Path) -> None:
    """Refuse a destination within its source: each sync would copy the copies of the last one.

    Raises:
        InvalidInput: it is.

    """
    if isinstance(store, FolderStore) and store.has(top):
        raise InvalidInput(str(top), found=f"it is in its source {store.source}", hint="name a folder elsewhere")


def desired_objects(
    store: ObjectStore, options: SyncOptions, cancellation: Cancellation = _NEVER
) -> tuple[StoredObject, ...]:
    """Return the selected objects of the store, ordered by path.

    Raises:
        TesseraError: the store does not answer, has none of them, or has names that cannot be files, or no checksums
            where they are required.
        Canceled: it is canceled.

    """
    objects = selected(listed(store, options.limits.patience, cancellation), options.include, options.exclude)
    objects = checked_objects(objects, source=store.source)
    refuse_empty(objects, source=store.source)
    if options.require_checksums:
        objects = tuple(msgspec.structs.replace(each, checksum=proof_of(each)) for each in objects)
        refuse_unverified(objects, source=store.source)
    return objects


def unstaged_bytes(plan: SyncPlan, staged: Path) -> int:
    """Return the bytes to fetch that an earlier attempt has not staged."""
    present = (
        sum(each.stat(follow_symlinks=False).st_blocks * 512 for each in entries(staged)) if staged.is_dir() else 0
    )
    return max(0, plan.bytes_to_fetch - present)


def evictions_for(
    folder: SyncedFolder, revisions: Collection[RevisionOnDisk], needed_bytes: int, options: SyncOptions
) -> tuple[str, ...]:
    """Return the revisions to evict so that so many bytes fit.

    Raises:
        TooLittleRoom: they would not fit even then.

    """
    return make_room(
        revisions,
        needed_bytes=needed_bytes,
        free_bytes=folder.free_bytes(),
        reserve_bytes=options.reserve_bytes,
        subject=str(folder.top),
    )


def stage(
    source: TransferSource,
    folder: SyncedFolder,
    staged: Path,
    objects: tuple[StoredObject, ...],
    options: SyncOptions,
    sharing: ModelSharing = _ALONE,
) -> tuple[ModelFile, ...]:
    """Fetch objects into a folder of their own, `staged/files`, and return them as files.

    Raises:
        TesseraError: the store does not answer, or sends what does not match its checksum, or has none that is
            required; or the disk is full.

    """
    files = staged / "files"
    files.mkdir(parents=True, exist_ok=True)
    with folder.freeing_if_full(staged):
        fetched = sharing.fetch(source, staged, objects)
        if options.require_checksums:
            for file in Manifest(source.store.source, fetched).unverified:
                (files / file.path).unlink()  # the next attempt fetches it again
            refuse_unverified(fetched, source=source.store.source)
    return fetched
