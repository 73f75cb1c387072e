"""The folder of a model: its revisions, `current`, and Tessera's metadata.

versions/REVISION/...             the files of a revision, which never change; of a packed one, its image
current -> versions/REVISION      switched atomically
.tessera/manifests/REVISION.json  the revision's files with their digests; a folder without one is not a revision
.tessera/verified/REVISION.json   when its content was compared with its digests last, and what differed
.tessera/images/REVISION.erofs    the image of a packed one
.tessera/pins/REVISION            it is never evicted
.tessera/trash/                   files being removed
"""

import contextlib
import errno
import re
import time
from collections.abc import Collection
from functools import partial
from pathlib import Path

import msgspec

from tessera.agent.nodefiles import NOTHING_THERE, is_folder, is_regular, is_there, remove_any
from tessera.agent.storage.models.chunkfiles import sync_file_system
from tessera.agent.storage.models.chunkreads import ChunkReads
from tessera.agent.storage.models.inuse import revisions_in_use
from tessera.agent.storage.models.mirrorfolder import MirrorFolder
from tessera.agent.storage.models.plain import LINKED
from tessera.agent.storage.models.records import RevisionRecords
from tessera.agent.storage.models.revisionforms import PackedRevision, PlainRevision, RevisionForm
from tessera.agent.storage.models.syncedfolder import Revision, SyncedFolder, refuse_broken_disk
from tessera.clients.disks import ErofsMounts, HostErofsMounts
from tessera.core.storage.models.paths import NOTES
from tessera.core.storage.models.retention import RevisionOnDisk, superseded
from tessera.core.storage.models.revisions import Manifest
from tessera.core.storage.models.verifications import Verification
from tessera.errors import Conflict, InvalidInput, TesseraError

__all__ = ["NOT_REMOVED", "ModelFolder"]

NOT_REMOVED = TesseraError, OSError
"""Errors of a revision that cannot be removed: the disk refuses it, or its image is read or cannot be unmounted."""
_NAME = re.compile(r"[0-9a-f]{64}")


class ModelFolder(SyncedFolder):
    """A model's folder of revisions.

    Args:
        top: its path.
        images: mounts the images of packed revisions.

    """

    def __init__(self, top: Path, images: ErofsMounts | None = None) -> None:
        super().__init__(top)
        self.erofs_mounts = images or HostErofsMounts()
        self.versions = top / "versions"
        self.records = RevisionRecords(self.notes)
        self._images = self.notes / "images"
        self._trash = self.notes / "trash"

    def _refuse_other_form(self) -> None:
        mirror = MirrorFolder(self.top)
        mirror.refuse_both()
        if mirror.exists:
            raise Conflict(str(self.top), found="it is a mirror", hint="use --mirror there")

    def _own_folders(self) -> tuple[Path, ...]:
        return (*self.records.folders, self._images, self._trash, self.versions)

    def _recover(self) -> None:
        """Clean up after a killed process: trash, and folders, images and records without each other.

        What cannot be read or removed stays, and so does a revision that has lost its manifest while it is pinned or
        read.
        """
        with contextlib.suppress(OSError):
            self._empty_trash()
        for path in self.versions.iterdir():
            with contextlib.suppress(OSError):
                if _NAME.fullmatch(path.name) and not is_folder(path):
                    path.unlink()  # a link is no revision, whatever it leads to
        for name in self.records.names():
            with contextlib.suppress(OSError):
                if not is_folder(self.versions / name):
                    self.records.remove(name)
        lost = {each for each in self.folder_names() if self.records.lacks(each)}
        stay = self._in_use(lost)
        for name in lost - stay:
            try:
                self.form(name).remove(self._trash)
            except NOT_REMOVED:
                stay.add(name)  # its image may still be mounted
        images = (path for path in self._images.iterdir() if path.stem not in stay and self.records.lacks(path.stem))
        for path in (*images, *self.records.leftovers()):
            with contextlib.suppress(OSError):
                remove_any(path)
        self.mount_images()

    # Forms

    def form(self, revision: str, *, packed: bool = False) -> RevisionForm:
        """Return a revision as it lies on the disk; one that is not there is packed or not."""
        image = self.image(revision)
        if image is not None or (packed and not is_there(self.versions / revision)):
            return self._packed(revision)
        return PlainRevision(self.versions / revision)

    def _packed(self, revision: str) -> PackedRevision:
        return PackedRevision(self.versions / revision, self._images / f"{revision}.erofs", self.erofs_mounts)

    def image(self, revision: str) -> Path | None:
        """Return the image of a packed revision; None for one of plain files."""
        path = self._images / f"{revision}.erofs"
        return path if is_regular(path) else None

    def cannot_mount(self, revision: str) -> bool:
        """Return whether a revision is an image that is not mounted, and this node cannot mount images."""
        return not self.form(revision).is_readable and bool(self.erofs_mounts.why_not())

    def mount_images(self) -> None:
        """Mount unmounted images, as after a reboot, if possible; the next sync replaces a damaged image."""
        for path in self._image_files():
            with contextlib.suppress(TesseraError, OSError):  # readers of this revision get the reason
                self.mount_image(path.stem)

    def mount_image(self, revision: str) -> None:
        """Mount the image of a revision unless it is mounted, damaged, or there is none.

        Raises:
            TesseraError: the manifest makes no sense, or the image cannot be mounted.
            OSError: one of them cannot be read.

        """
        if self.image(revision) is not None:
            self._packed(revision).mount_again(partial(self.records.manifest, revision))

    def unmount_images(self) -> bool:
        """Unmount all, before the folder is removed; return whether none is left."""
        return all(self._packed(path.stem).unmount() for path in self._image_files())

    def _image_files(self) -> list[Path]:
        there = self._images.iterdir() if is_folder(self._images) else ()
        return sorted(path for path in there if path.suffix == ".erofs")

    # Revisions

    def names(self) -> list[str]:
        """Return the revisions that are there, the most recently used first, without those whose manifest is broken."""
        return list(self.manifests())

    def folder_names(self) -> list[str]:
        """Return the revisions that have a folder, with a manifest or without."""
        there = self.versions.iterdir() if is_folder(self.versions) else ()
        return sorted(path.name for path in there if _NAME.fullmatch(path.name))

    def _in_use(self, revisions: Collection[str]) -> set[str]:
        """Return those of these revisions that are pinned, or that a process uses."""
        used = revisions_in_use(self.versions).keys() if revisions else ()
        return {each for each in revisions if each in used or self.records.is_pinned(each)}

    def all_names(self) -> list[str]:
        """Return the revisions that are there, also those whose manifest cannot be read."""
        return list(self._all_manifests())

    def protected(self) -> dict[str, str]:
        """Return the revisions that must stay, whether their manifests can be read or not, each with the reason."""
        names = self.all_names()
        pinned = dict.fromkeys((each for each in names if self.records.is_pinned(each)), "pinned")
        current = dict.fromkeys({self.current()}.intersection(names), "current")
        used = revisions_in_use(self.versions) if names else {}
        return {name: why for name, why in (used | pinned | current).items() if name in names}

    def manifests(self) -> dict[str, Manifest]:
        """Return the manifests of the revisions on the disk, the most recently used first.

        Broken ones are left out, and former ones that cannot be read.

        Raises:
            OSError: the current one, or which there are, cannot be read.

        """
        found = self._all_manifests()
        if isinstance(error := found.get(self.current()), OSError):
            raise error
        return {name: each for name, each in found.items() if isinstance(each, Manifest)}

    def _all_manifests(self) -> dict[str, Manifest | InvalidInput | OSError]:
        """Return each manifest, or what is wrong with it."""
        found: dict[str, Manifest | InvalidInput | OSError] = {}
        for name in self.records.names():
            try:
                if is_there(self.versions / name):
                    found[name] = self.records.manifest(name)
            except FileNotFoundError:  # it was evicted just now
                continue
            except (InvalidInput, OSError) as error:
                found[name] = error
        return found

    def refuse_broken(self) -> None:
        """Refuse a folder of which not all can be listed or verified.

        Raises:
            InvalidInput: a manifest is broken.
            Unavailable: one cannot be read, because the disk is broken, and evicting it helps.
            OSError: one cannot be read.

        """
        for name, each in self._all_manifests().items():
            if isinstance(each, Manifest):
                continue
            kept = self.protected().get(name, "")
            if isinstance(each, OSError) and not kept:
                refuse_broken_disk(each, fix=f"evict {name[:12]}")
            if isinstance(each, InvalidInput) and kept not in {"", "current"}:  # a sync replaces the others
                found = f"{each.found}, and its revision is {kept}"
                raise InvalidInput(each.subject, found=found, hint="sync again once that has ended") from each
            raise each

    def empty_trash(self) -> bool:
        """Remove what the disk refused to remove before, unless another process works here; return whether it did.

        Raises:
            OSError: something cannot be removed; the rest is gone.

        """
        if is_folder(self._trash) and any(self._trash.iterdir()):
            with contextlib.suppress(TesseraError), self.locked():
                self._empty_trash()
                return True
        return False

    def _empty_trash(self) -> None:
        errors = list[OSError]()
        for path in self._trash.iterdir():
            try:
                remove_any(path)
            except OSError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def evict_broken(self) -> None:
        """Remove the revisions whose manifests are broken: not the current one, and none that is pinned or in use.

        One that cannot be removed stays.
        """
        all_manifests = self._all_manifests().items()
        broken = {name for name, each in all_manifests if isinstance(each, InvalidInput)} - {self.current()}
        for name in broken - self._in_use(broken):
            with contextlib.suppress(*NOT_REMOVED):
                self.evict(name)

    def evict_superseded(self, keep: int) -> None:
        """Remove the revisions beyond the most recently used ones; protected ones count and stay.

        Raises:
            TesseraError: the image of one is read, or cannot be unmounted; the others are gone.
            OSError: one cannot be removed; the others are gone.

        """
        errors = list[Exception]()
        for name in superseded(self.on_disk(self.revisions()), keep):
            try:
                self.evict(name)
            except NOT_REMOVED as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def current(self) -> str:
        """Return the current revision; empty where there is none, or `current` leads elsewhere."""
        link = self.top / "current"
        try:
            there = self.versions / link.readlink().name
            return there.name if is_folder(there) and link.samefile(there) else ""
        except OSError as error:
            if error.errno not in {*NOTHING_THERE, errno.EINVAL}:  # of what is no link
                raise
            return ""

    def revisions(self) -> list[Revision]:
        """Return all revisions, the most recently used first."""
        current, used = self.current(), revisions_in_use(self.versions) if is_folder(self.versions) else {}
        return [
            Revision(
                revision=name,
                source=manifest.source,
                files=len(manifest.files),
                bytes=manifest.size,
                last_used_s=self.records.last_used_s(name),
                current=name == current,
                pinned=self.records.is_pinned(name),
                in_use=used.get(name, ""),
                unverified_bytes=manifest.unverified_bytes,
                verified_s=verification.at_s,
                damaged=verification.damaged,
            )
            for name, manifest in self.manifests().items()
            for verification in (self.verification(name),)
        ]

    def on_disk(self, revisions: list[Revision]) -> list[RevisionOnDisk]:
        """Return what retention decides on."""
        found = []
        for each in revisions:
            own, linked = self.form(each.revision).sizes(self.records.manifest(each.revision))
            found.append(RevisionOnDisk(each.revision, each.last_used_s, own, each.protected, linked))
        return found

    def verification(self, revision: str) -> Verification:
        """Return the last comparison of a revision; none where its record cannot be read, so that it is due."""
        try:
            return self.records.verification(revision)
        except OSError:
            return Verification()

    def damaged(self, revision: str, reads: ChunkReads | None) -> dict[str, str]:
        """Return the damaged files of a revision, by their paths, and record them.

        Without `reads` their sizes alone are compared, and those that were damaged before still are.

        Raises:
            InvalidInput: its manifest is broken.
            FileNotFoundError: it is not there, or was evicted meanwhile.

        """
        records, manifest = self.records, self.records.manifest(revision)
        if (self.versions / revision).is_symlink():
            return dict.fromkeys((file.path for file in manifest.files), LINKED)
        damaged = self.form(revision).damaged(manifest, reads)
        if reads is None:
            return dict.fromkeys(self.verification(revision).damaged, "damaged when it was verified") | damaged
        if not (records.has(revision) and is_there(self.versions / revision)):
            raise FileNotFoundError(errno.ENOENT, "the revision was evicted meanwhile", str(self.versions / revision))
        with contextlib.suppress(OSError):  # a disk that cannot be written can be compared
            records.write_verification(revision, Verification(time.time(), tuple(damaged)))
            for other in self.manifests().keys() - {revision} if damaged else ():  # they may share the files
                former = self.verification(other)
                records.write_verification(other, msgspec.structs.replace(former, at_s=0.0))
        return damaged

    def warm(self, revision: str) -> int:
        """Read a revision into the page cache, and return the bytes."""
        return self.form(revision).warm(self.records.manifest(revision))

    # Changes

    def publish(self, manifest: Manifest, staged: Path, *, packed: bool = False) -> None:
        """Make what is staged in the sub-folder `files` a revision; readers see all of it or nothing.

        Args:
            manifest: of the revision.
            staged: the folder of the sync.
            packed: whether it becomes an image, unless it is there already.

        Raises:
            Conflict: a damaged image of the same revision is in use.
            Unavailable: the disk is full, a staged file differs from what was fetched, or the image cannot be mounted.

        """
        with self.freeing_if_full(staged):
            if not packed and self.cannot_mount(manifest.revision):
                self._packed(manifest.revision).replace_by_plain(manifest, staged, self.records)
            else:
                self.form(manifest.revision, packed=packed).publish(manifest, staged, self.records)

    def flip(self, revision: str) -> None:
        """Make a revision the current one, atomically; if it was not, it is the most recently used one now."""
        if self.current() == revision:
            return
        self.records.touch(revision)
        link = self.top / "current"
        if is_there(link) and not link.is_symlink():
            raise InvalidInput(str(link), found="it is not the symbolic link that Tessera makes", hint="move it away")
        scratch = self.top / NOTES / "current.new"
        scratch.unlink(missing_ok=True)
        scratch.symlink_to(f"versions/{revision}")
        scratch.replace(link)
        sync_file_system(self.top)

    def evict(self, revision: str) -> None:
        """Remove a revision: its name at once, then its files; a record that cannot be removed is ignored then."""
        if is_there(self.versions / revision):
            self.form(revision).remove(self._trash)
        self.records.remove(revision)
