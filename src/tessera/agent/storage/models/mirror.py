"""Keeps plain files the same as a store's: each is replaced at once, and what the store has no more is removed."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from tessera.agent.storage.models.folder import ModelFolder
from tessera.agent.storage.models.plainfiles import PlainFiles
from tessera.agent.storage.models.reading import Progress
from tessera.agent.storage.models.sync import Synced, SyncOptions, clear_room, desired_objects, stage
from tessera.agent.storage.models.verify import found_file
from tessera.clients.store import Store
from tessera.core.storage.models.revisions import Manifest, ModelFile, StoredObject
from tessera.core.storage.models.syncplans import SyncPlan, plan_mirror
from tessera.errors import Conflict

__all__ = ["sync_mirror"]


def sync_mirror(
    store: Store, top: Path, options: SyncOptions, report: Callable[[int, int], None] = lambda _done, _total: None
) -> Synced:
    """Make the files below a folder those that the store has now.

    Files that no mirror has brought stay; they are taken over where the store has them with the same checksum, and
    replaced where it has others under their names.

    Args:
        store: where from.
        top: where to.
        options: what is desired; `keep` is of no account.
        report: gets bytes done and bytes in all.

    Raises:
        TesseraError: the store does not answer, the disk is full, a folder or a link is where a file belongs, another
            process syncs there; no file was changed.

    """
    begun = time.monotonic()
    folder, files = ModelFolder(top), PlainFiles(top)
    if folder.manifests():
        raise Conflict(str(top), found="it is a folder of revisions", hint="leave out --mirror")
    with folder.locked():
        files.finish()
        # 1. What does the store have?
        objects = desired_objects(store, options)
        # 2. What of it is here, brought by us or by others?
        before = files.manifest()
        plan = plan_mirror(objects, store.source, before, files.damaged(content=options.check))
        files.refuse_obstacles((each.path for each in plan.fetched.fetched), plan.removed)
        kept = {**plan.kept, **_found(top, plan.fetched.fetched, before)}
        fetch = SyncPlan({}, tuple(each for each in objects if each.path not in kept))
        # 3. Fetch the rest, where there is room for it.
        folder.clear_staging(fetch.identity)
        progress, staged = Progress(report, fetch.bytes_to_fetch), folder.staging / fetch.identity
        clear_room(folder, fetch, staged, options)
        fetched = stage(store, folder, fetch, staged, (options.limits, progress))
        # 4. Bring it in.
        manifest = Manifest(store.source, tuple(sorted((*kept.values(), *fetched), key=lambda file: file.path)))
        if fetched or plan.removed:
            files.bring(manifest, staged / "files")
        elif manifest != before:
            files.note(manifest)
        shutil.rmtree(staged)
    seconds = time.monotonic() - begun
    return Synced(manifest.revision, len(objects), progress.fetched, store.requests, round(seconds, 3), progress.peak)


def _found(top: Path, objects: tuple[StoredObject, ...], manifest: Manifest | None) -> dict[str, ModelFile]:
    """Return the files that others have left here and that the store has: what we have brought was looked at."""
    ours = {file.path for file in manifest.files} if manifest else set[str]()
    files = (found_file(top / each.path, each) for each in objects if each.path not in ours)
    return {file.path: file for file in files if file is not None}
