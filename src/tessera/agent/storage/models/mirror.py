"""Mirrors a store as plain files: each is replaced atomically, and files that left the store are removed."""

import time
from collections.abc import Callable
from pathlib import Path

from tessera.agent.nodefiles import remove_folder
from tessera.agent.storage.models.cancellation import Cancellation
from tessera.agent.storage.models.chunkreads import ChunkReads
from tessera.agent.storage.models.mirrorfolder import MirrorFolder
from tessera.agent.storage.models.plain import adopted_file
from tessera.agent.storage.models.reading import Progress, TransferSource
from tessera.agent.storage.models.staging import (
    SyncOptions,
    desired_objects,
    evictions_for,
    refuse_nested,
    stage,
    unstaged_bytes,
)
from tessera.agent.storage.models.sync import Synced
from tessera.clients.store import ObjectStore
from tessera.core.storage.models.revisions import Manifest, ModelFile, StoredObject
from tessera.core.storage.models.syncplans import SyncPlan, plan_mirror

__all__ = ["sync_mirror"]


def sync_mirror(
    store: ObjectStore, top: Path, options: SyncOptions, report: Callable[[int, int], None] = lambda _done, _total: None
) -> Synced:
    """Make the files below a folder equal to the store's.

    Foreign files stay; those with the same name are adopted if the store's checksum matches, and
    replaced if not.

    Args:
        store: the source.
        top: the destination.
        options: of the sync; `keep` has no effect.
        report: called with bytes done and bytes in total.

    Raises:
        TesseraError: the store does not answer, the disk is full, a folder or a link is where a file belongs, another
            process syncs there; no file was changed.

    """
    begun, folder = time.monotonic(), MirrorFolder(top)
    refuse_nested(store, top)
    with folder.locked():
        # 1. List the store.
        objects = desired_objects(store, options)
        # 2. Find the files that are present, from us or others.
        before = folder.manifest()
        unusable = frozenset(folder.damaged("", ChunkReads() if options.check else None))
        if options.require_checksums and before is not None:
            unusable |= {file.path for file in before.unverified}
        plan = plan_mirror(objects, store.source, before, unusable)
        folder.refuse_obstacles((each.path for each in plan.fetched), plan.removed)
        kept = {**plan.unchanged, **_adopted(top, plan.fetched, before)}
        fetch = SyncPlan({}, tuple(each for each in objects if each.path not in kept))
        # 3. Fetch the rest, if there is room.
        folder.clear_staging(fetch.identity)
        progress, staged = Progress(report, fetch.bytes_to_fetch), folder.staging / fetch.identity
        evictions_for(folder, (), unstaged_bytes(fetch, staged), options)
        source = TransferSource(store, options.limits, progress, Cancellation())
        fetched = stage(source, folder, staged, fetch.fetched, options)
        # 4. Move it into place.
        manifest = Manifest(store.source, tuple(sorted((*kept.values(), *fetched), key=lambda file: file.path)))
        if fetched or plan.removed:
            folder.install(manifest, staged / "files")
        elif manifest != before:
            folder.write_manifest(manifest)
        remove_folder(staged)
    seconds = time.monotonic() - begun
    return Synced(manifest.revision, len(objects), progress.fetched, store.requests, round(seconds, 3), progress.peak)


def _adopted(top: Path, objects: tuple[StoredObject, ...], manifest: Manifest | None) -> dict[str, ModelFile]:
    """Return the foreign files that the store has too: our own were checked before."""
    ours = {file.path for file in manifest.files} if manifest else set[str]()
    files = (adopted_file(top / each.path, each) for each in objects if each.path not in ours)
    return {file.path: file for file in files if file is not None}
