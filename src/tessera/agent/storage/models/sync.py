"""Syncs a folder with a store: one call, shared by the command and the agent's loop."""

import contextlib
import time
from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from tessera.agent.nodefiles import remove_folder
from tessera.agent.storage.models.cancellation import Cancellation
from tessera.agent.storage.models.chunkreads import ChunkReads
from tessera.agent.storage.models.folder import NOT_REMOVED, ModelFolder
from tessera.agent.storage.models.modelsharing import ModelSharing, NoSharing
from tessera.agent.storage.models.reading import Progress, TransferSource
from tessera.agent.storage.models.staging import (
    SyncOptions,
    desired_objects,
    evictions_for,
    refuse_nested,
    stage,
    unstaged_bytes,
)
from tessera.clients.store import ObjectStore
from tessera.core.storage.models.revisions import Manifest, StoredObject
from tessera.core.storage.models.syncplans import Pack, SyncPlan, is_packed, plan_sync
from tessera.errors import Conflict, Unsupported

__all__ = ["Synced", "sync"]

_ALONE = NoSharing()
_NEVER = Cancellation()


class Synced(msgspec.Struct, frozen=True):
    """The result of a sync: files in the revision, fetched bytes."""

    revision: str
    files: int
    bytes: int
    requests: int
    seconds: float
    peak_bytes_per_second: int


def sync(
    store: ObjectStore,
    folder: ModelFolder,
    options: SyncOptions,
    report: Callable[[int, int], None] = lambda _done, _total: None,
    sharing: ModelSharing = _ALONE,
    cancellation: Cancellation = _NEVER,
) -> Synced:
    """Make `current` the store's current revision; readers see the former one until it is complete.

    Args:
        store: the source.
        folder: the destination.
        options: what is desired.
        report: called with bytes done and bytes in total.
        sharing: with peers.
        cancellation: ends it while it lists, compares, fetches or reuses files, not while it packs or publishes them.

    Raises:
        Canceled: it is canceled; `current` is unchanged, and fetched data is kept.
        TooLittleRoom: the disk is full.
        TesseraError: the store does not answer or has another revision than the desired one, or another process
            syncs there; `current` is unchanged.

    """
    begun = time.monotonic()
    refuse_nested(store, folder.top)
    with folder.locked(), sharing.fetching():
        # 1. List the store.
        objects = desired_objects(store, options, cancellation)
        # 2. Find what is on the disk; a revision whose manifest is broken is fetched again.
        folder.evict_broken()
        current = folder.current()  # first, because most often nothing has changed
        manifests = dict(sorted(folder.manifests().items(), key=lambda each: each[0] != current))
        plan = plan_sync(objects, store.source, manifests, _unusable(folder, manifests, options, cancellation))
        folder.clear_staging(plan.identity)
        # 3. Fetch the rest, and publish it to readers.
        source = TransferSource(store, options.limits, Progress(report, plan.bytes_to_fetch), cancellation)
        revision = _unchanged(plan, objects, manifests, store.source)
        if not revision or (options.pack != "Always" and folder.cannot_mount(revision)):  # it becomes plain files
            revision = _fetch_revision(source, folder, objects, plan, options, sharing)
        # 4. Make it the current one, if it is the desired one.
        is_desired = options.revision in {"", revision}
        if is_desired:
            folder.form(revision).make_readable()
            folder.flip(revision)
        # 5. Remove superseded revisions, and broken ones; the next sync tries again to remove one that stays.
        folder.evict_broken()
        if len(folder.manifests()) > options.keep:
            with contextlib.suppress(*NOT_REMOVED):
                folder.evict_superseded(options.keep)
    if not is_desired:
        raise Conflict(
            store.source,
            found=f"its revision is {revision[:12]}, and spec.revision is {options.revision[:12]}",
            hint="name a source that has it, or leave out spec.revision",
        )
    seconds, fetched = round(time.monotonic() - begun, 3), source.progress
    return Synced(revision, len(objects), fetched.fetched, store.requests, seconds, fetched.peak)


def _unusable(
    folder: ModelFolder, manifests: dict[str, Manifest], options: SyncOptions, cancellation: Cancellation
) -> set[tuple[str, str]]:
    """Return the files on the disk, as revision and path, that are damaged, or lack a checksum that is required."""
    suspect = any(folder.verification(each).damaged for each in (folder.current(), options.revision))
    reads = ChunkReads(before=partial(cancellation.wait, 0)) if options.check or suspect else None
    unusable = {(name, path) for name in manifests for path in folder.damaged(name, reads)}
    if options.require_checksums:
        unusable |= {(name, file.path) for name, each in manifests.items() for file in each.unverified}
    return unusable


def _fetch_revision(
    source: TransferSource,
    folder: ModelFolder,
    objects: tuple[StoredObject, ...],
    plan: SyncPlan,
    options: SyncOptions,
    sharing: ModelSharing,
) -> str:
    """Fetch a revision, if there is room, and publish it to readers; return its name."""
    staged, packed = folder.staging / plan.identity, _packed(objects, folder, options.pack)
    forms = {name: folder.form(name) for name, _ in plan.reused.values()}
    # 1. Make room for what is fetched, and for what links cannot reuse: files from images, and into one.
    copied = (file.size for name, file in plan.reused.values() if packed or not forms[name].has_plain_files)
    _free_room(folder, unstaged_bytes(plan, staged) + sum(copied), options, forms)
    # 2. Fetch, and reuse unchanged files. What all of it takes in memory is known to fit on the disk.
    sharing.begin(objects)
    fetched = stage(source, folder, staged, plan.fetched, options, sharing)
    with folder.freeing_if_full(staged):
        for path, (name, file) in plan.reused.items():
            source.cancellation.wait(0)
            target = staged / "files" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            forms[name].reuse(folder.records.manifest(name), file.path, target)
    # 3. Publish.
    reused = (msgspec.structs.replace(file, path=path) for path, (_, file) in plan.reused.items())
    manifest = Manifest(source.store.source, tuple(sorted((*fetched, *reused), key=lambda file: file.path)))
    folder.publish(manifest, staged, packed=packed)
    sharing.serve(folder)
    remove_folder(staged)
    return manifest.revision


def _free_room(folder: ModelFolder, needed_bytes: int, options: SyncOptions, reused: Iterable[str]) -> None:
    """Evict what makes room; another revision in place of one that cannot be removed, and none that is reused.

    Raises:
        TooLittleRoom: it would not fit even then.

    """
    stay = dict.fromkeys(reused, "has unchanged files")
    while True:
        revisions = [
            msgspec.structs.replace(each, protected=stay.get(each.revision, each.protected))
            for each in folder.on_disk(folder.revisions())
        ]
        for name in evictions_for(folder, revisions, needed_bytes, options):
            try:
                folder.evict(name)
            except NOT_REMOVED as error:
                stay[name] = f"cannot be removed: {error}"
                break
        else:
            return


def _packed(objects: tuple[StoredObject, ...], folder: ModelFolder, pack: Pack) -> bool:
    """Return whether these objects become one image.

    Raises:
        Unsupported: they should, and this node cannot mount images.

    """
    problem = folder.erofs_mounts.why_not()
    packed = is_packed([each.size for each in objects], pack, can_mount=not problem)
    if packed and problem:
        raise Unsupported(str(folder.top), found=problem, hint="do not pack")
    return packed


def _unchanged(plan: SyncPlan, objects: tuple[StoredObject, ...], manifests: dict[str, Manifest], source: str) -> str:
    """Return the revision on the disk that equals the listing; empty for none."""
    if plan.fetched:
        return ""
    names = {name for name, _ in plan.reused.values()}
    name = next(iter(names))
    same = len(names) == 1 and manifests[name].source == source and len(manifests[name].files) == len(objects)
    return name if same and all(file.path == path for path, (_, file) in plan.reused.items()) else ""
