"""A folder that mirrors a store as plain files at its top: of `tessera models sync --mirror`.

.tessera/mirror.json       the manifest of the files
.tessera/mirror-next.json  the manifest of an install in progress: all files have arrived, not all are in place
.tessera/arriving/         files not yet in place
"""

import contextlib
import os
from collections.abc import Collection, Iterable
from pathlib import Path

from tessera.agent.nodefiles import has_files_alone, is_folder, is_there, remove_any, write_through
from tessera.agent.storage.models.chunkfiles import sync_file_system
from tessera.agent.storage.models.chunkreads import ChunkReads
from tessera.agent.storage.models.plain import damaged_files, warm
from tessera.agent.storage.models.records import read_own_manifest
from tessera.agent.storage.models.syncedfolder import Revision, SyncedFolder
from tessera.api.tessera.storage.modelmanifests import write_manifest
from tessera.core.storage.models.revisions import Manifest
from tessera.core.storage.models.syncplans import parents_of
from tessera.errors import Conflict

__all__ = ["MirrorFolder"]

_COMPARISONS = 3
"""More are of no use where files are replaced all the time."""


class MirrorFolder(SyncedFolder):
    """The files of a mirror, which are its one revision; other files in its folder are left alone.

    Args:
        top: the folder.

    """

    def __init__(self, top: Path) -> None:
        super().__init__(top)
        self._stored = self.notes / "mirror.json"
        self._next = self.notes / "mirror-next.json"
        self._incoming = self.notes / "arriving"

    def _refuse_other_form(self) -> None:
        if self._has_revisions:
            self.refuse_both()
            raise Conflict(str(self.top), found="it is a folder of revisions", hint="leave out --mirror")

    def refuse_both(self) -> None:
        """Refuse a folder with a mirror beside revisions, which no sync makes.

        Raises:
            Conflict: it is one.

        """
        if self._has_revisions and self.exists:
            revisions = f"{self.notes}/manifests, {self.top}/versions, {self.top}/current"
            fix = f"to keep the revisions remove {self._stored}; to keep the mirror remove {revisions}"
            raise Conflict(str(self.top), found="it has a mirror and revisions", hint=fix)

    def _own_folders(self) -> tuple[Path, ...]:
        return ()

    def _recover(self) -> None:
        """Finish an install that was interrupted, after a process was killed, and remove what it left.

        Raises:
            Conflict: something is in the way.

        """
        desired = _read(self._next)
        if desired is not None and has_files_alone(self._incoming):
            self._place(desired)
            sync_file_system(self.top)
            self._next.replace(self._stored)
            os.utime(self._stored)  # files written to from now on are checked
        for path in (self._next, self._incoming, *self.notes.glob(".mirror*.json.*")):
            remove_any(path)

    @property
    def exists(self) -> bool:
        """Whether it is a mirror, also one whose first install was interrupted."""
        return is_there(self._stored) or (is_there(self._next) and not self._has_revisions)

    @property
    def _has_revisions(self) -> bool:
        manifests = self.notes / "manifests"
        return is_folder(manifests) and any(path.suffix == ".json" for path in manifests.iterdir())

    def manifest(self) -> Manifest | None:
        """Return the manifest; None where this is not a mirror yet.

        Raises:
            InvalidInput: it is broken.

        """
        return _read(self._stored)

    def names(self) -> list[str]:
        """Return the mirror's revision, if there is one."""
        manifest = self.manifest()
        return [manifest.revision] if manifest is not None else []

    def current(self) -> str:
        """Return the mirror's revision; empty where there is none."""
        return next(iter(self.names()), "")

    def revisions(self) -> list[Revision]:
        """Return the mirror as one revision."""
        manifest = self.manifest()
        if manifest is None:
            return []
        one = Revision(
            revision=manifest.revision,
            source=manifest.source,
            files=len(manifest.files),
            bytes=manifest.size,
            last_used_s=self._stored.stat().st_mtime,
            current=True,
            pinned=False,
        )
        return [one]

    def refuse_broken(self) -> None:
        """Refuse a mirror whose manifest is broken.

        Raises:
            InvalidInput: it is.

        """
        self.manifest()

    def damaged(self, revision: str, reads: ChunkReads | None) -> dict[str, str]:  # noqa: ARG002 - it has one
        """Return the damaged files by path; without `reads` those written to since are read, too.

        Raises:
            Conflict: files are being replaced.

        """
        for _ in range(_COMPARISONS):
            installed = self._installed()
            manifest = self.manifest()
            if manifest is None:
                return {}
            since_ns = 0 if reads is not None else self._stored.stat().st_mtime_ns
            found = damaged_files(self.top, manifest, reads or ChunkReads(), since_ns=since_ns)
            # An install writes its manifest before it replaces files, and makes it the mirror's after the last one:
            # one that ends between these two looks is seen by the second.
            if not found or (not is_there(self._next) and self._installed() == installed):
                return found
        found_now = "a sync is replacing files, or was killed"
        raise Conflict(str(self.top), found=found_now, hint="wait for it, or sync again")

    def _installed(self) -> tuple[int, int]:
        """Return what is different after each install."""
        try:
            status = self._stored.lstat()
        except FileNotFoundError:
            return 0, 0
        return status.st_ino, status.st_mtime_ns

    def warm(self, revision: str) -> int:  # noqa: ARG002 - it has one
        """Read all files into the page cache, and return their bytes."""
        manifest = self.manifest()
        return warm(self.top, manifest) if manifest is not None else 0

    def evict(self, revision: str) -> None:
        """Refuse to remove the only revision.

        Raises:
            Conflict: always.

        """
        found = f"{revision[:12]} is all that a mirror has"
        raise Conflict(str(self.top), found=found, hint="remove the folder")

    def refuse_obstacles(self, paths: Iterable[str], removed: Collection[str]) -> None:
        """Refuse paths where no file can be: a folder is there, or a parent is a file or a link.

        Raises:
            Conflict: the first of them; files to be `removed` block nothing.

        """
        gone = set(removed)
        folders = {folder for path in removed for folder in parents_of(path)}
        checked = set[str]()
        for path in paths:
            for folder in parents_of(path):
                at = self.top / folder
                if folder not in checked and folder not in gone and is_there(at) and not is_folder(at):
                    raise _in_the_way(self.top / folder, "a file or a link", "a folder")
                checked.add(folder)
            if path not in folders and is_folder(self.top / path):
                raise _in_the_way(self.top / path, "a folder", "a file")

    def install(self, manifest: Manifest, staged: Path) -> None:
        """Move staged files into place, one by one, each atomically; then remove files that are no longer desired.

        Args:
            manifest: of all desired files.
            staged: the folder with the new ones; it is moved away.

        Raises:
            Conflict: something is in the way; the next sync finishes the install when it is gone.

        """
        sync_file_system(staged)
        write_through(self._next, write_manifest(manifest))
        staged.rename(self._incoming)
        self._recover()

    def write_manifest(self, manifest: Manifest) -> None:
        """Store a manifest of the same files."""
        write_through(self._stored, write_manifest(manifest))

    def _place(self, desired: Manifest) -> None:
        before = self.manifest()
        paths = {file.path for file in desired.files}
        removed = {file.path for file in before.files} - paths if before else set[str]()
        # 1. Remove files that are folders now, and the other way round.
        folders = {folder for path in paths for folder in parents_of(path)}
        first = {path for path in removed if path in folders or not paths.isdisjoint(parents_of(path))}
        self._remove(first)
        # 2. Replace each file atomically: open readers read the former one to its end.
        created = set[str]()
        for path in sorted(paths):
            if is_there(self._incoming / path):
                self._make_folders(path, created)
                self._replace(path)
        # 3. Remove the rest, which the manifest does not have.
        self._remove(removed - first)

    def _make_folders(self, path: str, created: set[str]) -> None:
        for folder in reversed(parents_of(path)):
            if folder not in created:
                created.add(folder)
                with contextlib.suppress(FileExistsError):
                    (self.top / folder).mkdir()
                if not is_folder(self.top / folder):
                    raise _in_the_way(self.top / folder, "a file or a link", "a folder")

    def _replace(self, path: str) -> None:
        try:
            (self._incoming / path).replace(self.top / path)
        except IsADirectoryError as error:
            raise _in_the_way(self.top / path, "a folder", "a file") from error

    def _remove(self, paths: Collection[str]) -> None:
        for path in sorted(paths):
            if not all(is_folder(self.top / folder) for folder in parents_of(path)):
                continue
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                (self.top / path).unlink()
            for folder in parents_of(path):
                with contextlib.suppress(OSError):  # not empty
                    (self.top / folder).rmdir()


def _read(path: Path) -> Manifest | None:
    try:
        return read_own_manifest(path, fix="remove it, then sync again")
    except FileNotFoundError:
        return None


def _in_the_way(path: Path, found: str, expected: str) -> Conflict:
    return Conflict(str(path), found=f"{found}, and the source has {expected}", hint="move it away")
