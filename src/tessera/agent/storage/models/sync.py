"""Syncs a folder with a store: one call, shared by the command and the agent's loop."""

import time
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

import msgspec

from tessera.agent.nodefiles import entries, remove_folder
from tessera.agent.storage.models.cancellation import Cancellation
from tessera.agent.storage.models.chunkreads import ChunkReads
from tessera.agent.storage.models.folder import ModelFolder
from tessera.agent.storage.models.modelsharing import ModelSharing, NoSharing
from tessera.agent.storage.models.reading import Progress, TransferLimits, TransferSource
from tessera.agent.storage.models.syncedfolder import SyncedFolder
from tessera.agent.storage.models.transfer import listed
from tessera.clients.store import ObjectStore
from tessera.clients.store.folders import FolderStore
from tessera.core.storage.models.erofs import Pack, is_packed
from tessera.core.storage.models.paths import checked_objects, selected
from tessera.core.storage.models.peers.multipart import proof_of
from tessera.core.storage.models.retention import RevisionOnDisk, make_room, superseded
from tessera.core.storage.models.revisions import Manifest, ModelFile, StoredObject
from tessera.core.storage.models.syncplans import SyncPlan, plan_sync, refuse_empty, refuse_unverified
from tessera.errors import Conflict, InvalidInput, Unsupported

__all__ = [
    "SyncOptions",
    "Synced",
    "desired_objects",
    "evictions_for",
    "refuse_nested",
    "stage",
    "sync",
    "unstaged_bytes",
]

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
        revision = _unchanged(plan, objects, manifests, store.source) or _fetch_revision(
            source, folder, objects, plan, options, sharing
        )
        # 4. Make it the current one, if it is the desired one.
        is_desired = options.revision in {"", revision}
        if is_desired:
            folder.form(revision).make_readable()
            folder.flip(revision)
        # 5. Remove superseded revisions.
        if len(folder.manifests()) > options.keep:
            for name in superseded(folder.on_disk(folder.revisions()), options.keep):
                folder.evict(name)
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
    suspect = any(folder.records.verification(each).damaged for each in (folder.current(), options.revision))
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
    revisions = [
        msgspec.structs.replace(each, protected="has unchanged files") if each.revision in forms else each
        for each in folder.on_disk(folder.revisions())
    ]
    for name in evictions_for(folder, revisions, unstaged_bytes(plan, staged) + sum(copied), options):
        folder.evict(name)
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


def _unchanged(plan: SyncPlan, objects: tuple[StoredObject, ...], manifests: dict[str, Manifest], source: str) -> str:
    """Return the revision on the disk that equals the listing; empty for none."""
    if plan.fetched:
        return ""
    names = {name for name, _ in plan.reused.values()}
    name = next(iter(names))
    same = len(names) == 1 and manifests[name].source == source and len(manifests[name].files) == len(objects)
    return name if same and all(file.path == path for path, (_, file) in plan.reused.items()) else ""


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
