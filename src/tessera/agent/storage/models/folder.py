"""The folder of a model: its revisions, `current`, and Tessera's metadata.

versions/REVISION/...             the files of a revision, which never change; of a packed one, its image
current -> versions/REVISION      switched atomically
.tessera/manifests/REVISION.json  the revision's files with their digests; a folder without one is not a revision
.tessera/verified/REVISION.json   when its content was compared with its digests last, and what differed
.tessera/images/REVISION.erofs    the image of a packed one
.tessera/pins/REVISION            it is never evicted
.tessera/staging/PLAN/            a sync in progress: files, journal
.tessera/trash/                   files being removed
.tessera/lock                     locked by the process that syncs
"""

import contextlib
import errno
import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tessera.agent.storage.models.chunkfiles import sync_file_system
from tessera.agent.storage.models.chunkreads import ChunkReads
from tessera.agent.storage.models.inuse import revisions_in_use
from tessera.agent.storage.models.packed import copy_out, damaged_in_image, layout_of
from tessera.agent.storage.models.verify import damaged_files
from tessera.api.tessera.storage.modelmanifests import (
    read_manifest,
    read_verification,
    write_manifest,
    write_verification,
)
from tessera.clients.disks import ErofsMounts, HostErofsMounts
from tessera.core.storage.models.paths import NOTES
from tessera.core.storage.models.retention import LinkedFile, RevisionOnDisk
from tessera.core.storage.models.revisions import Manifest, ModelFile
from tessera.core.storage.models.verifications import Verification
from tessera.errors import Conflict, InvalidInput, TesseraError, Unsupported, shown

__all__ = ["ModelFolder", "Revision", "write_whole"]

_NAME = re.compile(r"[0-9a-f]{64}")


class Revision(msgspec.Struct, frozen=True):
    """A revision on the disk, as `tessera models list` shows it."""

    revision: str
    source: str
    files: int
    bytes: int
    last_used: float
    current: bool
    pinned: bool
    in_use: str = ""
    unverified_bytes: int = 0
    verified: float = 0.0
    damaged: tuple[str, ...] = ()

    @property
    def protected(self) -> str:
        """Why it must stay; empty where it may go."""
        return "current" if self.current else "pinned" if self.pinned else self.in_use


class ModelFolder:
    """A model's folder; created by the first sync.

    Args:
        top: its path.
        images: mounts the images of packed revisions.

    """

    def __init__(self, top: Path, images: ErofsMounts | None = None) -> None:
        self.top = top
        self.erofs_mounts = images or HostErofsMounts()
        self.versions = top / "versions"
        self.staging = top / NOTES / "staging"
        self._manifests = top / NOTES / "manifests"
        self._images = top / NOTES / "images"
        self._pins = top / NOTES / "pins"
        self._verified = top / NOTES / "verified"
        self._trash = top / NOTES / "trash"
        self._read: dict[tuple[str, int, int], Manifest] = {}
        self._offsets: dict[str, dict[str, tuple[ModelFile, int]]] = {}

    @contextlib.contextmanager
    def locked(self, *, mirror: bool = False) -> Iterator[None]:
        """Lock the folder, and clean up after a killed process.

        Args:
            mirror: whether the folder has plain files: `versions` is theirs then.

        Raises:
            Conflict: another process has the lock; the message names it.

        """
        notes = self.top / NOTES
        own = (notes, self.staging, self._manifests, self._verified, self._images, self._pins, self._trash)
        for folder in own if mirror else (*own, self.versions):
            if folder.is_symlink():
                raise InvalidInput(str(folder), found="it is a symbolic link", hint="name a folder of Tessera's own")
        for folder in own[1:]:
            folder.mkdir(parents=True, exist_ok=True)
        number = os.open(notes / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                other = re.sub(r"[^0-9]", "", os.pread(number, 20, 0).decode("ascii", "replace")) or "unknown"
                raise Conflict(
                    str(self.top), found=f"process {other} syncs or evicts there", hint="wait for it, or end it"
                ) from error
            os.ftruncate(number, 0)
            os.pwrite(number, str(os.getpid()).encode(), 0)
            self._finish(mirror=mirror)
            yield
        finally:
            os.close(number)

    def _finish(self, *, mirror: bool) -> None:
        """Clean up after a killed process: trash, and folders and manifests without each other."""
        shutil.rmtree(self._trash)
        self._trash.mkdir()
        for path in self._manifests.iterdir():
            if path.suffix != ".json" or not (self.versions / path.stem).is_dir():
                path.unlink()
        for path in self.versions.iterdir() if self.versions.is_dir() and not mirror else ():
            if _NAME.fullmatch(path.name) and not (self._manifests / f"{path.name}.json").exists():
                self._discard(path)
        for path in (*self._images.iterdir(), *self._verified.iterdir()):
            if not (self._manifests / f"{path.stem}.json").exists():
                path.unlink()
        self.mount_images()

    # Packed revisions

    def image(self, revision: str) -> Path | None:
        """Return the image of a packed revision; None for one of plain files."""
        path = self._images / f"{revision}.erofs"
        return path if path.is_file() and not path.is_symlink() else None

    def mount_images(self) -> None:
        """Mount unmounted images, as after a reboot, if possible; the next sync replaces a damaged image."""
        for path in sorted(self._images.glob("*.erofs")) if self._images.is_dir() else ():
            target = self.versions / path.stem
            if not target.is_dir() or self.erofs_mounts.is_mounted(target) or self.erofs_mounts.why_not():
                continue
            with contextlib.suppress(TesseraError, OSError):  # readers of this revision get the reason
                if not damaged_in_image(path, self.manifest(path.stem), None):
                    self.erofs_mounts.mount(path, target)

    def is_readable(self, revision: str) -> bool:
        """Return whether readers find the files of a revision: one of plain files, or its image is mounted."""
        return self.image(revision) is None or self.erofs_mounts.is_mounted(self.versions / revision)

    def make_readable(self, revision: str) -> None:
        """Ensure that readers find the files of a revision.

        Raises:
            Unavailable: its image cannot be mounted.
            Unsupported: this node cannot mount images.

        """
        image = self.image(revision)
        if image is not None and not self.is_readable(revision):
            if problem := self.erofs_mounts.why_not():
                hint = f"evict {revision[:12]}, then sync without --pack"
                raise Unsupported(str(image), found=problem, hint=hint)
            self.erofs_mounts.mount(image, self.versions / revision)

    def _packed_files(self, revision: str) -> dict[str, tuple[ModelFile, int]]:
        """Return the files of an image by their paths, each with its offset."""
        if revision not in self._offsets:
            manifest = self.manifest(revision)
            offsets = {each.path: each.offset for each in layout_of(manifest).files}
            self._offsets[revision] = {file.path: (file, offsets[file.path]) for file in manifest.files}
        return self._offsets[revision]

    def publish_image(self, manifest: Manifest, written: Path) -> None:
        """Make an image a revision, replacing none of plain files; readers see all of it or nothing.

        Raises:
            Conflict: a damaged image of the same revision is in use.
            Unsupported: this node cannot mount images.

        """
        revision = manifest.revision
        target = self.versions / revision
        self.versions.mkdir(exist_ok=True)
        image = self.image(revision)
        if image is None or damaged_in_image(image, manifest, ChunkReads()):
            if target.exists():
                self._discard(target)
            written.replace(self._images / f"{revision}.erofs")
        self._note(revision, manifest)
        target.mkdir(mode=0o555, exist_ok=True)
        sync_file_system(self.versions)
        self.erofs_mounts.mount(self._images / f"{revision}.erofs", target)

    def unmount_images(self) -> bool:
        """Unmount all, before the folder is removed; return whether none is left."""
        names = [path.stem for path in self._images.glob("*.erofs")]
        return all(self.erofs_mounts.unmount(self.versions / name) for name in names)

    def damaged(self, revision: str, reads: ChunkReads | None) -> dict[str, str]:
        """Return the damaged files of a revision, by their paths, and note them.

        Without `reads` their sizes alone are compared, and those that were damaged before still are.
        """
        manifest, image = self.manifest(revision), self.image(revision)
        if image is not None:
            found = damaged_in_image(image, manifest, reads)
        else:
            found = damaged_files(self.versions / revision, manifest, reads)
        if reads is None:
            return dict.fromkeys(self.verification(revision).damaged, "damaged when it was verified") | found
        if self._has(revision):  # it may have been evicted meanwhile
            with contextlib.suppress(OSError):  # a disk that cannot be written can be compared
                self._note_verified(revision, Verification(time.time(), tuple(found)))
                for other in self.manifests().keys() - {revision} if found else ():  # they may share the files
                    former = self.verification(other)
                    self._note_verified(other, msgspec.structs.replace(former, at_s=0.0))
        return found

    def verification(self, revision: str) -> Verification:
        """Return the last comparison of a revision with its digests."""
        try:
            return read_verification((self._verified / f"{revision}.json").read_bytes())
        except OSError:
            return Verification()

    def _note_verified(self, revision: str, verification: Verification) -> None:
        self._verified.mkdir(exist_ok=True)
        write_whole(self._verified / f"{revision}.json", write_verification(verification))

    def _has(self, revision: str) -> bool:
        return (self._manifests / f"{revision}.json").exists() and (self.versions / revision).is_dir()

    def take(self, revision: str, path: str, target: Path) -> None:
        """Reuse a file of a revision for another: by a link, or a copy where it is packed or can have no more links."""
        image = self.image(revision)
        if image is not None:
            copy_out(image, *self._packed_files(revision)[path], target)
        else:
            known = self.versions / revision / path
            try:
                os.link(known, target, follow_symlinks=False)
            except OSError as error:
                if error.errno != errno.EMLINK:  # 65,000 links on ext4
                    raise
                shutil.copy2(known, target, follow_symlinks=False)

    def manifests(self) -> dict[str, Manifest]:
        """Return the manifests of the revisions on the disk, the most recently used first, without broken ones."""
        return {name: each for name, each in self._all_manifests().items() if isinstance(each, Manifest)}

    def broken_manifests(self) -> dict[str, InvalidInput]:
        """Return what is wrong with the manifests that cannot be read, by revision."""
        return {name: each for name, each in self._all_manifests().items() if isinstance(each, InvalidInput)}

    def _all_manifests(self) -> dict[str, Manifest | InvalidInput]:
        found: dict[str, Manifest | InvalidInput] = {}
        paths = self._manifests.glob("*.json") if self._manifests.is_dir() else ()
        for path in sorted(paths, key=lambda path: (-path.stat().st_mtime, path.name)):
            if (self.versions / path.stem).is_dir():
                try:
                    found[path.stem] = self.manifest(path.stem)
                except InvalidInput as error:
                    found[path.stem] = error
        return found

    def evict_broken(self) -> None:
        """Remove the revisions whose manifests cannot be read: not the current one, and none that a process uses."""
        broken = self.broken_manifests().keys() - {self.current()}
        for name in broken - revisions_in_use(self.versions).keys() if broken else ():
            self.evict(name)

    def manifest(self, revision: str) -> Manifest:
        """Return a revision's manifest.

        Raises:
            InvalidInput: it is broken, or another revision's.

        """
        path = self._manifests / f"{revision}.json"
        known = _identity(path)
        if known not in self._read:
            manifest = read_manifest(path.read_bytes(), subject=str(path))
            if manifest.revision != revision:
                raise InvalidInput(
                    str(path),
                    found=f"it has the manifest of {manifest.revision}, not of {revision}",
                    hint="remove the revision and sync again",
                )
            self._read[known] = manifest
        return self._read[known]

    def current(self) -> str:
        """Return the current revision; empty where there is none."""
        try:
            name = (self.top / "current").readlink().name
        except OSError:
            return ""
        there = self.versions / name
        return name if there.is_dir() and (self.top / "current").resolve() == there.resolve() else ""

    def revisions(self) -> list[Revision]:
        """Return all revisions, the most recently used first."""
        current, used = self.current(), revisions_in_use(self.versions) if self.versions.is_dir() else {}
        return [
            Revision(
                revision=name,
                source=manifest.source,
                files=len(manifest.files),
                bytes=manifest.size,
                last_used=(self._manifests / f"{name}.json").stat().st_mtime,
                current=name == current,
                pinned=(self._pins / name).exists(),
                in_use=used.get(name, ""),
                unverified_bytes=manifest.unverified_bytes,
                verified=verification.at_s,
                damaged=verification.damaged,
            )
            for name, manifest in self.manifests().items()
            for verification in (self.verification(name),)
        ]

    def find(self, prefix: str) -> str:
        """Return the revision whose name begins so; `current` is the current one.

        Raises:
            InvalidInput: none or several do.

        """
        names = (
            [self.current()] if prefix == "current" else [name for name in self.manifests() if name.startswith(prefix)]
        )
        if len(names) != 1 or not names[0]:
            have = ", ".join(name[:12] for name in self.manifests())
            found = (
                "several revisions begin so" if names[1:] else "no revision begins so" if have else "it has no revision"
            )
            fix = f"choose one of {have}" if have else f"`tessera models sync SRC {self.top}` fetches one"
            raise InvalidInput(f"{self.top}: revision {shown(prefix)}", found=found, hint=fix)
        return names[0]

    def on_disk(self, revisions: list[Revision]) -> list[RevisionOnDisk]:
        """Return what retention decides on."""
        found = []
        for each in revisions:
            own, linked = self._sizes(each.revision)
            found.append(RevisionOnDisk(each.revision, each.last_used, own, each.protected, linked))
        return found

    def _sizes(self, revision: str) -> tuple[int, tuple[LinkedFile, ...]]:
        """Return the bytes of a revision's files that have one name, and the others."""
        if (image := self.image(revision)) is not None:
            return image.lstat().st_blocks * 512, ()
        own, linked = 0, []
        for file in self.manifest(revision).files:
            with contextlib.suppress(OSError):
                status = (self.versions / revision / file.path).lstat()
                if status.st_nlink == 1:
                    own += status.st_blocks * 512
                else:
                    linked.append(LinkedFile((status.st_dev, status.st_ino), status.st_blocks * 512, status.st_nlink))
        return own, tuple(linked)

    def free_bytes(self) -> int:
        """Return the free bytes of its disk."""
        status = os.statvfs(self.top)
        return status.f_bavail * status.f_frsize

    def publish(self, manifest: Manifest, staged: Path) -> None:
        """Make a staged folder a revision; readers see all of it or nothing."""
        self.versions.mkdir(exist_ok=True)
        revision = manifest.revision
        target = self.versions / revision
        if target.exists():  # the same content again: damaged files are replaced, one by one
            for file in manifest.files:
                if (staged / file.path).lstat().st_ino != _inode(target / file.path):
                    (target / file.path).parent.mkdir(parents=True, exist_ok=True)
                    (staged / file.path).replace(target / file.path)
            self._note(revision, manifest)
            return
        sync_file_system(staged)
        self._note(revision, manifest)
        staged.rename(target)
        sync_file_system(self.versions)

    def _note(self, revision: str, manifest: Manifest) -> None:
        path = self._manifests / f"{revision}.json"
        write_whole(path, write_manifest(manifest))
        self._read[_identity(path)] = manifest
        self._note_verified(revision, Verification(time.time()))

    def touch(self, revision: str, *, after_s: float = 0.0) -> None:
        """Make a revision the most recently used one, unless it was in the last `after_s` seconds.

        Raises:
            OSError: it is not there, or the disk cannot be written.

        """
        path = self._manifests / f"{revision}.json"
        if time.time() - path.stat().st_mtime >= after_s:
            os.utime(path)

    def flip(self, revision: str) -> None:
        """Make a revision the current one, atomically; if it was not, it is the most recently used one now."""
        if self.current() == revision:
            return
        self.touch(revision)
        link = self.top / "current"
        if link.exists() and not link.is_symlink():
            raise InvalidInput(str(link), found="it is not the symbolic link that Tessera makes", hint="move it away")
        scratch = self.top / NOTES / "current.new"
        scratch.unlink(missing_ok=True)
        scratch.symlink_to(f"versions/{revision}")
        scratch.replace(link)
        sync_file_system(self.top)

    def pin(self, revision: str, *, pinned: bool) -> None:
        """Pin a revision against eviction, or unpin it."""
        if pinned:
            (self._pins / revision).touch()
        else:
            (self._pins / revision).unlink(missing_ok=True)

    def evict(self, revision: str) -> None:
        """Remove a revision: its name at once, then its files."""
        self._discard(self.versions / revision)
        (self._manifests / f"{revision}.json").unlink()
        (self._verified / f"{revision}.json").unlink(missing_ok=True)
        (self._pins / revision).unlink(missing_ok=True)

    def _discard(self, path: Path) -> None:
        image = self.image(path.name)
        if image is not None and not self.erofs_mounts.unmount(path):
            raise Conflict(
                f"{self.top}: revision {path.name[:12]}",
                found="a process reads its image",
                hint="end the processes that have files of it open",
            )
        target = self._trash / path.name
        path.rename(target)  # before the image goes: an empty folder without one is a revision of plain files
        if image is not None:
            image.unlink()
        shutil.rmtree(target)

    def clear_staging(self, keep: str = "") -> None:
        """Remove what earlier syncs left unfinished, except that of one plan."""
        for path in self.staging.iterdir():
            if path.name != keep:
                shutil.rmtree(path)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    scratch = path.with_suffix(".new")
    with scratch.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)


def _identity(path: Path) -> tuple[str, int, int]:
    """Return what tells a manifest from others: it is never overwritten, but replaced."""
    status = path.stat()
    return path.stem, status.st_ino, status.st_size


def _inode(path: Path) -> int:
    try:
        return path.lstat().st_ino
    except OSError:
        return -1
