"""What Tessera knows of the revisions in a folder, as files: manifests, verifications, pins."""

import contextlib
import os
import re
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from tessera.agent.nodefiles import (
    NOTHING_THERE,
    NotRegular,
    TooLarge,
    is_folder,
    is_there,
    read_regular,
    remove_any,
    write_through,
)
from tessera.api.tessera.storage.modelmanifests import (
    read_manifest,
    read_verification,
    write_manifest,
    write_verification,
)
from tessera.core.storage.models.revisions import Manifest
from tessera.core.storage.models.verifications import Verification
from tessera.errors import InvalidInput

__all__ = ["RevisionRecords", "read_own_manifest"]

_NAME = re.compile(r"[0-9a-f]{64}")


_FIX = "sync again, which replaces it"
"""What to do about a broken manifest of a revision."""


def read_own_manifest(path: Path, *, fix: str) -> Manifest:
    """Return the manifest in a file of a folder's metadata.

    Args:
        path: the file.
        fix: what to do about one that is broken.

    Raises:
        InvalidInput: it is broken, or no regular file, or too large.
        OSError: there is none, or the disk or its permissions keep it from being read, now or always.

    """
    try:
        content = read_regular(path)
    except NotRegular as error:
        raise InvalidInput(str(path), found="it is not a regular file", hint=fix) from error
    except TooLarge as error:
        raise InvalidInput(str(path), found="it has more than a GiB", hint=fix) from error
    return read_manifest(content, subject=str(path), fix=fix)


class RevisionRecords:
    """The records of a folder's revisions.

    Args:
        notes: the folder of Tessera's metadata.

    """

    def __init__(self, notes: Path) -> None:
        self._manifests = notes / "manifests"
        self._verified = notes / "verified"
        self._pins = notes / "pins"
        self._read: dict[tuple[str, int, int], Manifest] = {}

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders of these files."""
        return self._manifests, self._verified, self._pins

    def names(self) -> list[str]:
        """Return the revisions that have a manifest, the most recently used first; of unknown times, last.

        Raises:
            OSError: it cannot be read which there are.

        """
        found = []
        for path in self._manifests.iterdir() if is_folder(self._manifests) else ():
            if path.suffix == ".json" and _NAME.fullmatch(path.stem):
                try:
                    found.append((-path.lstat().st_mtime, path.stem))
                except FileNotFoundError:  # it was evicted just now
                    continue
                except OSError:
                    found.append((0.0, path.stem))
        return [name for _, name in sorted(found)]

    def has(self, revision: str) -> bool:
        """Return whether a revision has a manifest."""
        return is_there(self._manifest(revision))

    def lacks(self, revision: str) -> bool:
        """Return whether a revision has no manifest for certain."""
        try:
            return not self.has(revision)
        except OSError:
            return False

    def manifest(self, revision: str) -> Manifest:
        """Return a revision's manifest.

        Raises:
            InvalidInput: it is broken, or another revision's.
            OSError: as of `read_own_manifest`.

        """
        path = self._manifest(revision)
        known = _identity(path)
        if known not in self._read:
            manifest = read_own_manifest(path, fix=_FIX)
            if manifest.revision != revision:
                raise InvalidInput(
                    str(path),
                    found=f"it has the manifest of {manifest.revision}, not of {revision}",
                    hint=_FIX,
                )
            self._read[known] = manifest
        return self._read[known]

    def write(self, manifest: Manifest) -> None:
        """Write the manifest of a revision that was fetched, and so verified, just now."""
        path = self._manifest(manifest.revision)
        _replace(path, write_manifest(manifest))
        self._read[_identity(path)] = manifest
        self.write_verification(manifest.revision, Verification(time.time()))

    def verification(self, revision: str) -> Verification:
        """Return the last comparison of a revision with its digests.

        Raises:
            OSError: the disk or its permissions keep the record from being read.

        """
        try:
            return read_verification(read_regular(self._verified / f"{revision}.json"))
        except OSError as error:
            if error.errno not in NOTHING_THERE and not isinstance(error, NotRegular | TooLarge):
                raise
            return Verification()

    def write_verification(self, revision: str, verification: Verification) -> None:
        """Write the last comparison of a revision with its digests."""
        _replace(self._verified / f"{revision}.json", write_verification(verification))

    def last_used_s(self, revision: str) -> float:
        """Return when a revision was used last, in seconds since 1970."""
        return self._manifest(revision).stat().st_mtime

    def touch(self, revision: str, *, after_s: float = 0.0) -> None:
        """Make a revision the most recently used one, unless it was in the last `after_s` seconds.

        Raises:
            OSError: it is not there, or the disk cannot be written.

        """
        path = self._manifest(revision)
        if time.time() - path.stat().st_mtime >= after_s:
            os.utime(path)

    def is_pinned(self, revision: str) -> bool:
        """Return whether a revision is pinned against eviction."""
        return is_there(self._pins / revision)

    def pin(self, revision: str, *, pinned: bool) -> None:
        """Pin a revision against eviction, or unpin it."""
        if pinned:
            (self._pins / revision).touch()
        else:
            (self._pins / revision).unlink(missing_ok=True)

    def pin_exactly(self, revisions: Collection[str], *, unreadable: Collection[str] = ()) -> None:
        """Pin these revisions, which are present, and no others; of unreadable ones the pins stay."""
        if is_folder(self._pins):
            there = {each.name for each in self._pins.iterdir() if _NAME.fullmatch(each.name)}
            for revision in there.symmetric_difference(revisions).difference(unreadable):
                self.pin(revision, pinned=revision in revisions)

    def remove(self, revision: str) -> None:
        """Remove the records of a revision that is gone; one that cannot be removed stays, and is no revision's."""
        for path in (self._manifest(revision), self._verified / f"{revision}.json", self._pins / revision):
            with contextlib.suppress(OSError):
                remove_any(path)

    def leftovers(self) -> Iterator[Path]:
        """Yield what a killed process left beside the records."""
        yield from (
            path for path in self._manifests.iterdir() if not _NAME.fullmatch(path.stem) or path.suffix != ".json"
        )
        yield from (path for path in self._verified.iterdir() if self.lacks(path.stem))

    def _manifest(self, revision: str) -> Path:
        return self._manifests / f"{revision}.json"


def _replace(path: Path, content: bytes) -> None:
    """Write a record in place of the former one, or of what else is there."""
    if not path.is_file():
        remove_any(path)
    write_through(path, content)


def _identity(path: Path) -> tuple[str, int, int]:
    """Return the identity of a manifest's file; it changes whenever the manifest is replaced."""
    status = path.lstat()
    return path.stem, status.st_ino, status.st_size
