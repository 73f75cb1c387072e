"""The forms in which a revision lies on the disk: plain files, or one image that is mounted for readers."""

import contextlib
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tessera.agent.emptying import empty_folder
from tessera.agent.nodefiles import is_folder, is_regular, is_there, remove_any, remove_folder
from tessera.agent.storage.models.chunkfiles import sync_file_system
from tessera.agent.storage.models.chunkreads import ChunkReads
from tessera.agent.storage.models.packed import copy_out, damaged_in_image, layout_of, read_ahead, write_image
from tessera.agent.storage.models.plain import damaged_files, warm
from tessera.agent.storage.models.records import RevisionRecords
from tessera.clients.disks import ErofsMounts
from tessera.core.storage.models.retention import LinkedFile
from tessera.core.storage.models.revisions import Manifest, ModelFile
from tessera.core.storage.models.syncplans import parents_of
from tessera.errors import Conflict, TesseraError, Unsupported

__all__ = ["PackedRevision", "PlainRevision", "RevisionForm"]


class RevisionForm(Protocol):
    """One revision on the disk, whatever its form."""

    @property
    def has_plain_files(self) -> bool:
        """Whether its files can be linked, and served to peers."""

    @property
    def is_readable(self) -> bool:
        """Whether readers find its files."""

    def make_readable(self) -> None:
        """Ensure that readers find its files.

        Raises:
            Unavailable: its image cannot be mounted.
            Unsupported: this node cannot mount images.

        """

    def damaged(self, manifest: Manifest, reads: ChunkReads | None) -> dict[str, str]:
        """Return its damaged files by path; without `reads` sizes alone are compared."""
        ...

    def reuse(self, manifest: Manifest, path: str, target: Path) -> None:
        """Make one of its files a file of another revision, which must not exist.

        Raises:
            Unavailable: the content differs from what was fetched.

        """

    def sizes(self, manifest: Manifest) -> tuple[int, tuple[LinkedFile, ...]]:
        """Return the bytes of its files that have one name, and the others."""
        ...

    def warm(self, manifest: Manifest) -> int:
        """Read it into the page cache, and return the bytes."""
        ...

    def publish(self, manifest: Manifest, staged: Path, records: RevisionRecords) -> None:
        """Make what is staged in the sub-folder `files` the revision: readers see all of it or nothing.

        Raises:
            Conflict: a damaged image of the same revision is in use.
            Unsupported: this node cannot mount images.

        """

    def remove(self, trash: Path) -> None:
        """Remove it: its name at once, then its files.

        Raises:
            Conflict: a process reads its image.
            Unavailable: its image cannot be unmounted.
            OSError: the disk refuses it; what is left is in the trash.

        """


class PlainRevision:
    """A revision of plain files.

    Args:
        folder: `versions/REVISION`.

    """

    has_plain_files = is_readable = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def make_readable(self) -> None:
        """Do nothing."""

    def damaged(self, manifest: Manifest, reads: ChunkReads | None) -> dict[str, str]:
        """Return its damaged files by path; without `reads` sizes alone are compared."""
        return damaged_files(self._folder, manifest, reads)

    def reuse(self, manifest: Manifest, path: str, target: Path) -> None:  # noqa: ARG002 - of the Protocol
        """Link one of its files, or copy it where it can have no more links."""
        try:
            os.link(self._folder / path, target, follow_symlinks=False)
        except OSError as error:
            if error.errno != errno.EMLINK:  # 65,000 links on ext4
                raise
            shutil.copy2(self._folder / path, target, follow_symlinks=False)

    def sizes(self, manifest: Manifest) -> tuple[int, tuple[LinkedFile, ...]]:
        """Return the bytes of its files that have one name, and the others."""
        own, linked = 0, []
        for file in manifest.files:
            with contextlib.suppress(OSError):
                status = (self._folder / file.path).lstat()
                if status.st_nlink == 1:
                    own += status.st_blocks * 512
                else:
                    linked.append(LinkedFile((status.st_dev, status.st_ino), status.st_blocks * 512, status.st_nlink))
        return own, tuple(linked)

    def warm(self, manifest: Manifest) -> int:
        """Read its files into the page cache, and return their bytes."""
        return warm(self._folder, manifest)

    def publish(self, manifest: Manifest, staged: Path, records: RevisionRecords) -> None:
        """Make what is staged the revision; if it is there, its damaged files are replaced, one by one."""
        files = staged / "files"
        sync_file_system(files)
        if is_folder(self._folder):
            checked = set[str]()
            for file in manifest.files:
                self._make_folders(file.path, checked)
                target = self._folder / file.path
                if (files / file.path).lstat().st_ino != _inode(target):
                    if is_folder(target):
                        remove_folder(target)
                    (files / file.path).replace(target)
            records.write(manifest)
            sync_file_system(self._folder)
            return
        records.write(manifest)
        files.rename(self._folder)
        sync_file_system(self._folder.parent)

    def _make_folders(self, path: str, checked: set[str]) -> None:
        """Make the folders of a file, in place of links and of what else is there."""
        for each in reversed(parents_of(path)):
            if each not in checked:
                checked.add(each)
                if not is_folder(self._folder / each):
                    remove_any(self._folder / each)
                    (self._folder / each).mkdir()

    def remove(self, trash: Path) -> None:
        """Remove it: its name at once, then its files."""
        self._folder.rename(trash / self._folder.name)
        remove_any(trash / self._folder.name)


class PackedRevision:
    """A revision in one image, mounted at its folder.

    Args:
        folder: `versions/REVISION`.
        image: the file; it may be missing or damaged.
        mounts: mounts it.

    """

    has_plain_files = False

    def __init__(self, folder: Path, image: Path, mounts: ErofsMounts) -> None:
        self._folder = folder
        self._image = image
        self._mounts = mounts
        self._files: dict[str, tuple[ModelFile, int]] = {}
        """Its files by path, each with its offset in the image."""

    @property
    def is_readable(self) -> bool:
        """Whether it is mounted."""
        return self._mounts.is_mounted(self._folder)

    def make_readable(self) -> None:
        """Mount it.

        Raises:
            Unavailable: it cannot be mounted.
            Unsupported: this node cannot mount images.

        """
        if self.is_readable:
            return
        if problem := self._mounts.why_not():
            raise Unsupported(str(self._image), found=problem, hint="do not pack: the next sync makes it plain files")
        self._mounts.mount(self._image, self._folder)

    def damaged(self, manifest: Manifest, reads: ChunkReads | None) -> dict[str, str]:
        """Return its damaged files by path; without `reads` its folders and the size alone are compared."""
        return damaged_in_image(self._image, manifest, reads)

    def reuse(self, manifest: Manifest, path: str, target: Path) -> None:
        """Copy one of its files.

        Raises:
            Unavailable: the content differs from what was fetched.

        """
        if not self._files:
            offsets = {each.path: each.offset for each in layout_of(manifest).files}
            self._files = {file.path: (file, offsets[file.path]) for file in manifest.files}
        copy_out(self._image, *self._files[path], target)

    def sizes(self, manifest: Manifest) -> tuple[int, tuple[LinkedFile, ...]]:  # noqa: ARG002 - of the Protocol
        """Return the bytes of the image."""
        return self._image.lstat().st_blocks * 512, ()

    def warm(self, manifest: Manifest) -> int:
        """Mount the image, if possible, read it into the page cache, and return its bytes."""
        with contextlib.suppress(TesseraError, OSError):  # it is in the page cache when it can be mounted
            self.mount_again(lambda: manifest)
        return read_ahead(self._image)

    def mount_again(self, manifest: Callable[[], Manifest]) -> None:
        """Mount the image, as after a reboot, unless it is damaged; the next sync replaces it.

        Raises:
            TesseraError: the manifest cannot be read, or the image cannot be mounted.

        """
        if not is_folder(self._folder) or self.is_readable:
            return
        if not self.damaged(manifest(), None):
            self._mounts.mount(self._image, self._folder)

    def publish(self, manifest: Manifest, staged: Path, records: RevisionRecords) -> None:
        """Write the image, which takes the place of a damaged one, and mount it.

        Raises:
            Conflict: a damaged image of the same revision is in use.
            Unavailable: a staged file differs from what was fetched, or the image cannot be mounted.

        """
        written = staged / "image"
        write_image(manifest, staged / "files", written)
        if not is_regular(self._image) or self.damaged(manifest, ChunkReads()):
            if is_there(self._folder):
                self.remove(staged)
            written.replace(self._image)
        records.write(manifest)
        self._folder.mkdir(mode=0o555, exist_ok=True)
        sync_file_system(self._folder.parent)
        self._mounts.mount(self._image, self._folder)

    def replace_by_plain(self, manifest: Manifest, staged: Path, records: RevisionRecords) -> None:
        """Put what is staged in the sub-folder `files` in its place, on a node that cannot mount it."""
        empty_folder(self._folder)  # it is a mount point, unless this was interrupted before
        sync_file_system(staged)
        records.write(manifest)
        (staged / "files").rename(self._folder)
        sync_file_system(self._folder.parent)
        self._image.unlink()

    def unmount(self) -> bool:
        """Unmount it; return whether it is unmounted."""
        return self._mounts.unmount(self._folder)

    def remove(self, trash: Path) -> None:
        """Remove its name, then the image.

        Raises:
            Conflict: a process reads it.
            Unavailable: it cannot be unmounted.

        """
        if not self.unmount():
            raise Conflict(
                f"{self._folder.parent.parent}: revision {self._folder.name[:12]}",
                found="a process reads its image",
                hint="end the processes that have files of it open",
            )
        gone = trash / self._folder.name
        self._folder.rename(gone)  # before the image goes: an empty folder without one is a revision of plain files
        with contextlib.suppress(FileNotFoundError):
            self._image.rename(gone / self._image.name)  # what the disk does not remove now is found in the trash
        remove_any(gone)


def _inode(path: Path) -> int:
    try:
        return path.lstat().st_ino
    except OSError:
        return -1
