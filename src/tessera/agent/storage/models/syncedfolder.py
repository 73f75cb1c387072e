"""A folder that a store is synced to, whatever is in it: its lock, and the files that are being fetched.

.tessera/staging/PLAN/            a sync in progress: files, journal
.tessera/lock                     locked by the process that syncs
"""

import abc
import contextlib
import errno
import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tessera.agent.nodefiles import BROKEN_DISK, entries, has_files_alone, remove_any, remove_folder
from tessera.agent.storage.models.chunkreads import ChunkReads
from tessera.core.storage.models.paths import NOTES
from tessera.errors import Conflict, InvalidInput, Unavailable, shown

__all__ = ["Revision", "SyncedFolder", "refuse_broken_disk"]


def refuse_broken_disk(error: OSError, *, fix: str = "sync to another folder") -> None:
    """Refuse what a broken disk keeps from being read or changed.

    Args:
        error: of the disk.
        fix: what to do beside replacing it.

    Raises:
        Unavailable: it is the error of a broken disk.

    """
    if error.errno in BROKEN_DISK:
        hint = f"{fix}, or replace the disk; the kernel's log names it"
        raise Unavailable(str(error.filename), found=error.strerror or str(error), hint=hint) from error


class Revision(msgspec.Struct, frozen=True):
    """A revision on the disk, with the times of its last use and verification in seconds since 1970, 0 for never."""

    revision: str
    source: str
    files: int
    bytes: int
    last_used_s: float
    current: bool
    pinned: bool
    in_use: str = ""
    unverified_bytes: int = 0
    verified_s: float = 0.0
    damaged: tuple[str, ...] = ()

    @property
    def protected(self) -> str:
        """Why it must stay; empty where it may go."""
        return "current" if self.current else "pinned" if self.pinned else self.in_use


class SyncedFolder(abc.ABC):
    """A folder that a store is synced to; created by the first sync.

    Args:
        top: its path.

    """

    def __init__(self, top: Path) -> None:
        self.top = top
        self.notes = top / NOTES
        self.staging = self.notes / "staging"

    @abc.abstractmethod
    def names(self) -> list[str]:
        """Return the revisions that are there, the most recently used first, without those whose manifest is broken."""

    @abc.abstractmethod
    def current(self) -> str:
        """Return the current revision; empty where there is none."""

    @abc.abstractmethod
    def revisions(self) -> list[Revision]:
        """Return all revisions, the most recently used first."""

    @abc.abstractmethod
    def refuse_broken(self) -> None:
        """Refuse a folder of which not all can be listed or verified.

        Raises:
            InvalidInput: a manifest is broken.
            Unavailable: a revision's manifest cannot be read, because the disk is broken, and evicting it helps.
            OSError: a manifest cannot be read.

        """

    @abc.abstractmethod
    def damaged(self, revision: str, reads: ChunkReads | None) -> dict[str, str]:
        """Return the damaged files of a revision, by their paths; without `reads` sizes alone are compared."""

    @abc.abstractmethod
    def warm(self, revision: str) -> int:
        """Read a revision into the page cache, and return the bytes."""

    @abc.abstractmethod
    def evict(self, revision: str) -> None:
        """Remove a revision.

        Raises:
            Conflict: it must stay.

        """

    @abc.abstractmethod
    def _refuse_other_form(self) -> None:
        """Refuse a folder that has files in another form.

        Raises:
            Conflict: it has.

        """

    @abc.abstractmethod
    def _own_folders(self) -> tuple[Path, ...]:
        """Return the folders, beside that for staging, which a sync needs."""

    @abc.abstractmethod
    def _recover(self) -> None:
        """Clean up after a killed process."""

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder, and clean up after a killed process.

        Raises:
            Conflict: another process has the lock, which the message names, or files are there in another form.
            InvalidInput: one of Tessera's own folders is a symbolic link.

        """
        self._refuse_other_form()
        own = (self.staging, *self._own_folders())
        for folder in (self.notes, *own):
            if folder.is_symlink():
                raise InvalidInput(str(folder), found="it is a symbolic link", hint="name a folder of Tessera's own")
        for folder in own:
            folder.mkdir(parents=True, exist_ok=True)
        number = os.open(self.notes / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                other = re.sub(r"[^0-9]", "", os.pread(number, 20, 0).decode("ascii", "replace")) or "unknown"
                found = f"process {other} has the lock (a sync or an evict is running)"
                raise Conflict(str(self.top), found=found, hint="wait for it to finish") from error
            os.ftruncate(number, 0)
            os.pwrite(number, str(os.getpid()).encode(), 0)
            self._recover()
            yield
        finally:
            os.close(number)

    def all_names(self) -> list[str]:
        """Return the revisions that are there, also those whose manifest cannot be read."""
        return self.names()

    def protected(self) -> dict[str, str]:
        """Return the revisions that must stay, each with the reason, such as `current`."""
        return {each.revision: each.protected for each in self.revisions() if each.protected}

    def find(self, prefix: str, *, unreadable: bool = False) -> str:
        """Return the revision whose name begins so; `current` is the current one.

        Args:
            prefix: the beginning of the name.
            unreadable: whether revisions count whose manifest cannot be read.

        Raises:
            InvalidInput: none or several do.

        """
        there = self.all_names() if unreadable else self.names()
        names = [self.current()] if prefix == "current" else [name for name in there if name.startswith(prefix)]
        if len(names) != 1 or not names[0]:
            have = ", ".join(name[:12] for name in there)
            found = (
                "several revisions begin so" if names[1:] else "no revision begins so" if have else "it has no revision"
            )
            fix = f"choose one of {have}" if have else f"`tessera models sync SRC {self.top}` fetches one"
            raise InvalidInput(f"{self.top}: revision {shown(prefix)}", found=found, hint=fix)
        return names[0]

    def select(self, prefix: str) -> list[str]:
        """Return the revision whose name begins so, or all where nothing is named.

        Raises:
            InvalidInput: none or several do, or there is no revision.

        """
        if prefix:
            return [self.find(prefix)]
        if names := self.names():
            return names
        fix = f"`tessera models sync SRC {self.top}` fetches one"
        raise InvalidInput(str(self.top), found="it has no revision", hint=fix)

    def free_bytes(self) -> int:
        """Return the free bytes of its disk."""
        status = os.statvfs(self.top)
        return status.f_bavail * status.f_frsize

    def clear_staging(self, keep: str = "") -> None:
        """Remove what earlier syncs left unfinished; what one plan left stays, if it is files and folders alone."""
        for path in self.staging.iterdir():
            if path.name != keep or not has_files_alone(path):
                remove_any(path)

    def staged_bytes(self) -> int:
        """Return what the removal of all that earlier syncs left unfinished frees."""
        found = (each.stat(follow_symlinks=False) for each in entries(self.staging))
        return sum(each.st_blocks * 512 for each in found if each.st_nlink == 1)  # others are files of a revision, too

    @contextlib.contextmanager
    def freeing_if_full(self, staged: Path) -> Iterator[None]:
        """Report a full disk, and free the staged files.

        Raises:
            Unavailable: the disk is full.

        """
        try:
            yield
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                raise
            remove_folder(staged)
            raise Unavailable(str(self.top), found="the disk is full", hint="free space, then sync again") from error
