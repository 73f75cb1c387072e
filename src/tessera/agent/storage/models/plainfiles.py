"""Plain files at the top of a folder that mirror a store: of `tessera models sync --mirror`.

.tessera/mirror.json       the manifest of the files
.tessera/mirror-next.json  the manifest of arriving files, from the moment all have arrived until all are in place
.tessera/arriving/         files not yet in place
"""

import contextlib
import os
import shutil
import stat
from collections.abc import Collection, Iterable
from pathlib import Path

from tessera.agent.storage.models.chunkfiles import sync_file_system
from tessera.agent.storage.models.chunkreads import ChunkReads
from tessera.agent.storage.models.folder import Revision, write_whole
from tessera.agent.storage.models.verify import damaged_files
from tessera.api.tessera.storage.modelmanifests import read_manifest, write_manifest
from tessera.core.storage.models.paths import NOTES
from tessera.core.storage.models.revisions import Manifest
from tessera.core.storage.models.syncplans import parents_of
from tessera.errors import Conflict

__all__ = ["PlainFiles"]


class PlainFiles:
    """The files of a mirror; other files in its folder are left alone.

    Args:
        top: the folder.

    """

    def __init__(self, top: Path) -> None:
        self.top = top
        self._stored = top / NOTES / "mirror.json"
        self._next = top / NOTES / "mirror-next.json"
        self._arriving = top / NOTES / "arriving"

    def manifest(self) -> Manifest | None:
        """Return the manifest; None where this is not a mirror."""
        return _read(self._stored)

    def revisions(self) -> list[Revision]:
        """Return the mirror as one revision; none where this is not a mirror."""
        manifest = self.manifest()
        if manifest is None:
            return []
        brought_s = self._stored.stat().st_mtime
        found = Revision(
            revision=manifest.revision,
            source=manifest.source,
            files=len(manifest.files),
            bytes=manifest.size,
            last_used=brought_s,
            current=True,
            pinned=False,
        )
        return [found]

    def damaged(self, *, content: bool) -> frozenset[str]:
        """Return the paths of files that differ from the mirrored ones; files written to since are read."""
        manifest = self.manifest()
        if manifest is None:
            return frozenset()
        since_ns = 0 if content else self._stored.stat().st_mtime_ns
        return frozenset(damaged_files(self.top, manifest, ChunkReads(), since_ns=since_ns))

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
                if folder not in checked and folder not in gone and not _is_folder(self.top / folder, missing=True):
                    raise _in_the_way(self.top / folder, "a file or a link", "a folder")
                checked.add(folder)
            if path not in folders and _is_folder(self.top / path):
                raise _in_the_way(self.top / path, "a folder", "a file")

    def bring(self, manifest: Manifest, arrived: Path) -> None:
        """Move arrived files into place, one by one, each atomically; then remove files that are no longer desired.

        Args:
            manifest: of all desired files.
            arrived: the folder with the new ones; it is moved away.

        Raises:
            Conflict: something is in the way. Call `finish` when it is gone.

        """
        sync_file_system(arrived)
        write_whole(self._next, write_manifest(manifest))
        arrived.rename(self._arriving)
        self.finish()

    def finish(self) -> None:
        """Finish an interrupted `bring`, after a process was killed."""
        desired = _read(self._next)
        if desired is not None and self._arriving.is_dir():
            self._place(desired)
            sync_file_system(self.top)
            self._next.replace(self._stored)
            os.utime(self._stored)  # files written to from now on are checked
        self._next.unlink(missing_ok=True)
        if self._arriving.is_dir():
            shutil.rmtree(self._arriving)

    def note(self, manifest: Manifest) -> None:
        """Store a manifest of the same files."""
        write_whole(self._stored, write_manifest(manifest))

    def _place(self, desired: Manifest) -> None:
        before = self.manifest()
        paths = {file.path for file in desired.files}
        removed = {file.path for file in before.files} - paths if before else set[str]()
        # 1. Remove files that are folders now, and the other way round.
        folders = {folder for path in paths for folder in parents_of(path)}
        first = {path for path in removed if path in folders or not paths.isdisjoint(parents_of(path))}
        self._remove(first)
        # 2. Replace each file atomically: open readers read the former one to its end.
        made = set[str]()
        for path in sorted(paths):
            if os.path.lexists(self._arriving / path):
                self._make_folders(path, made)
                self._replace(path)
        # 3. Remove the rest, which the manifest does not have.
        self._remove(removed - first)

    def _make_folders(self, path: str, made: set[str]) -> None:
        for folder in reversed(parents_of(path)):
            if folder not in made:
                made.add(folder)
                with contextlib.suppress(FileExistsError):
                    (self.top / folder).mkdir()
                if not _is_folder(self.top / folder):
                    raise _in_the_way(self.top / folder, "a file or a link", "a folder")

    def _replace(self, path: str) -> None:
        try:
            (self._arriving / path).replace(self.top / path)
        except IsADirectoryError as error:
            raise _in_the_way(self.top / path, "a folder", "a file") from error

    def _remove(self, paths: Collection[str]) -> None:
        for path in sorted(paths):
            if not all(_is_folder(self.top / folder) for folder in parents_of(path)):
                continue
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                (self.top / path).unlink()
            for folder in parents_of(path):
                with contextlib.suppress(OSError):  # not empty
                    (self.top / folder).rmdir()


def _read(path: Path) -> Manifest | None:
    return read_manifest(path.read_bytes(), subject=str(path)) if path.exists() else None


def _is_folder(path: Path, *, missing: bool = False) -> bool:
    """Return whether the path is a folder, and not a link to one; `missing` where nothing is there."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except FileNotFoundError:
        return missing
    except NotADirectoryError:  # the parent is checked separately
        return missing


def _in_the_way(path: Path, found: str, expected: str) -> Conflict:
    return Conflict(str(path), found=f"{found}, and the source has {expected}", hint="move it away")
