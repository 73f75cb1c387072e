"""Brings a folder in step with a store: one call, which the command and the agent's loop share."""

import errno
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from tessera.agent.storage.folder import ModelFolder
from tessera.agent.storage.transfer import Limits, Progress, Transfer, listed
from tessera.agent.storage.verify import damaged_files
from tessera.clients.store import Store
from tessera.core.storage.paths import NOTES, checked_objects, selected
from tessera.core.storage.retention import Kept, make_room, superseded
from tessera.core.storage.revisions import Manifest, ModelFile, StoredObject
from tessera.core.storage.syncplans import SyncPlan, plan_sync, refuse_empty
from tessera.errors import Conflict, Unavailable

__all__ = ["SyncOptions", "Synced", "clear_room", "desired_objects", "stage", "sync"]

_RESERVE = 64 * 2**20


class SyncOptions(msgspec.Struct, frozen=True):
    """What is desired of a sync.

    Args:
        keep: revisions that stay, the current one among them.
        include: patterns of the files to take; all where there are none.
        exclude: patterns of files to leave out.
        check: compare what is on the disk with its digests before it is taken over.
        reserve_bytes: what stays free on the disk.
        limits: how hard it works.

    """

    keep: int = 2
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    check: bool = False
    reserve_bytes: int = _RESERVE
    limits: Limits = Limits()


class Synced(msgspec.Struct, frozen=True):
    """What a sync did: files in the revision, bytes that were fetched."""

    revision: str
    files: int
    bytes: int
    requests: int
    seconds: float
    peak_bytes_per_second: int


def sync(
    store: Store,
    folder: ModelFolder,
    options: SyncOptions,
    report: Callable[[int, int], None] = lambda _done, _total: None,
    make_room: Callable[[int, list[Kept]], None] = lambda _bytes, _kept: None,
) -> Synced:
    """Make `current` the revision that the store has now; readers see the former one until it is complete.

    Args:
        store: where from.
        folder: where to.
        options: what is desired.
        report: is told bytes done and bytes in all.
        make_room: is told the bytes that are needed, and what is kept here, before anything here is evicted.

    Raises:
        TesseraError: the store does not answer, the disk is full, another process syncs there; `current` is as before.

    """
    begun = time.monotonic()
    if (folder.top / NOTES / "mirror.json").exists():
        raise Conflict(str(folder.top), found="a mirror", expected="a folder of revisions", hint="use --mirror there")
    with folder.locked():
        # 1. What does the store have?
        objects = desired_objects(store, options)
        # 2. What of it is on the disk?
        manifests = folder.manifests()
        damaged = {
            (name, path)
            for name, manifest in manifests.items()
            for path in damaged_files(folder.versions / name, manifest, content=options.check)
        }
        plan = plan_sync(objects, store.source, manifests, damaged)
        folder.clear_staging(plan.identity)
        # 3. Fetch the rest, where there is room for it.
        progress = Progress(report, plan.bytes_to_fetch)
        manifest = _unchanged(plan, objects, manifests, store.source)
        if manifest is None:
            staged = folder.staging / plan.identity
            clear_room(folder, plan, staged, options, make_room)
            fetched = stage(store, folder, plan, staged, (options.limits, progress))
            kept = (msgspec.structs.replace(file, path=path) for path, (_, file) in plan.kept.items())
            manifest = Manifest(store.source, tuple(sorted((*fetched, *kept), key=lambda file: file.path)))
            # 4. Show it to readers.
            folder.publish(manifest, staged / "files")
            shutil.rmtree(staged)
        folder.flip(manifest.revision)
        # 5. Remove what is superseded.
        if len(folder.manifests()) > options.keep:
            for name in superseded(folder.kept(folder.revisions()), options.keep):
                folder.evict(name)
    seconds = time.monotonic() - begun
    return Synced(manifest.revision, len(objects), progress.fetched, store.requests, round(seconds, 3), progress.peak)


def desired_objects(store: Store, options: SyncOptions) -> tuple[StoredObject, ...]:
    """Return what the store has of what is desired, in the order of the paths.

    Raises:
        TesseraError: the store does not answer, has nothing of it, or has names that can be no files.

    """
    objects = selected(listed(store, options.limits.patience), options.include, options.exclude)
    objects = checked_objects(objects, source=store.source)
    refuse_empty(objects, source=store.source)
    return objects


def _unchanged(
    plan: SyncPlan, objects: tuple[StoredObject, ...], manifests: dict[str, Manifest], source: str
) -> Manifest | None:
    """Return the revision on the disk that is the listing; None where there is none."""
    if plan.fetched:
        return None
    names = {name for name, _ in plan.kept.values()}
    manifest = manifests[next(iter(names))]
    same = len(names) == 1 and manifest.source == source and len(manifest.files) == len(objects)
    return manifest if same and all(plan.kept[path][1].path == path for path in plan.kept) else None


def clear_room(
    folder: ModelFolder,
    plan: SyncPlan,
    staged: Path,
    options: SyncOptions,
    elsewhere: Callable[[int, list[Kept]], None] = lambda _bytes, _kept: None,
) -> None:
    """Make room for what is to be fetched: revisions that may go do.

    Raises:
        Unavailable: it would not fit even then.

    """
    there = sum(path.lstat().st_blocks * 512 for path in staged.rglob("*")) if staged.is_dir() else 0
    linked = {name for name, _ in plan.kept.values()}
    kept = [
        msgspec.structs.replace(each, protected="has unchanged files") if each.revision in linked else each
        for each in folder.kept(folder.revisions())
    ]
    needed = max(0, plan.bytes_to_fetch - there)
    elsewhere(needed, kept)
    status = os.statvfs(folder.top)
    for name in make_room(
        kept,
        needed_bytes=needed,
        free_bytes=status.f_bavail * status.f_frsize,
        reserve_bytes=options.reserve_bytes,
        subject=str(folder.top),
    ):
        folder.evict(name)


def stage(
    store: Store, folder: ModelFolder, plan: SyncPlan, staged: Path, how: tuple[Limits, Progress]
) -> tuple[ModelFile, ...]:
    """Fetch and link all files of a plan into a folder of their own, `staged/files`; return those that were fetched."""
    files = staged / "files"
    files.mkdir(parents=True, exist_ok=True)
    try:
        fetched = Transfer(store, staged, *how).run(plan.fetched)
        for path, (name, file) in plan.kept.items():
            target = files / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            os.link(folder.versions / name / file.path, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise
        shutil.rmtree(staged)
        raise Unavailable(
            str(folder.top),
            found="the disk is full",
            expected="room for the revision",
            hint="free space, then sync again",
        ) from error
    return fetched
