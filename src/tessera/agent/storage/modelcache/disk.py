"""The folder of a node's models: one sub-folder for each, as `ModelFolder` has it, all created by the agent."""

import contextlib
import errno
import os
import time
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from tessera.agent.nodefiles import disk_fix, is_folder, is_regular, is_there, remove_folder
from tessera.agent.storage.models.chunkreads import ChunkReads
from tessera.agent.storage.models.folder import NOT_REMOVED, ModelFolder
from tessera.agent.storage.models.inuse import revisions_in_use
from tessera.agent.storage.models.modelsharing import ModelSharing, NoSharing
from tessera.clients.disks import ErofsMounts, HostErofsMounts
from tessera.core.storage.models.cachedmodels import ModelOnDisk
from tessera.core.storage.models.paths import NOTES
from tessera.core.storage.models.retention import RevisionOnDisk
from tessera.core.storage.models.verifications import ChecksumRule, Verification
from tessera.errors import Conflict, InvalidInput, TesseraError, Unavailable

__all__ = ["ModelDisk", "ObservedDisk", "RevisionFacts"]

_MARK = "kept-by-agent"
"""File among a model's notes that marks it as the agent's: models synced by hand are never removed."""

_REMOVED = ".removed-"
"""Begin of the name of a folder of a model that is removed, which the model's name follows."""


def _is_claimable(top: Path) -> bool:
    """Return whether a folder is empty but for the empty folder of a claim that was interrupted."""
    inside = list(top.iterdir())
    return not inside or (inside == [top / NOTES] and is_folder(top / NOTES) and not any((top / NOTES).iterdir()))


class RevisionFacts(NamedTuple):
    """What a node reports of a revision: bytes, files, and bytes of files for which the store has no checksum."""

    bytes: int = 0
    files: int = 0
    unverified_bytes: int = 0


class ObservedDisk(NamedTuple):
    """The agent's models, and what came of further removals of what the disk refused to remove before."""

    models: dict[str, ModelOnDisk]
    errors: dict[str, OSError]
    """Of models that cannot be read."""
    remaining: dict[str, OSError]
    """Of models of which something remains."""
    removed: set[str]
    """Models of which nothing remains any more."""


class ModelDisk:
    """The folder of a node's models.

    Args:
        folder: its path on the host.
        root: the host's root folder.
        most_percent: how full its disk may get.
        images: mounts the images of packed revisions.
        sharing: how models are shared with peers.

    """

    def __init__(
        self,
        folder: Path,
        *,
        root: Path = Path("/"),
        most_percent: int = 85,
        images: ErofsMounts | None = None,
        sharing: ModelSharing | None = None,
    ) -> None:
        self.folder = folder
        self._root = root
        self._here = root / folder.relative_to("/")
        self._images = HostErofsMounts(root) if images is None else images
        self._most_percent = most_percent
        self._facts: dict[tuple[str, str], tuple[tuple[int, int], RevisionFacts]] = {}
        """The facts of revisions, each with the inode and the time of the manifest that has them."""
        self._unrecorded: dict[tuple[str, str], tuple[Verification, Verification]] = {}
        """The last comparison of each revision, with the record that was on the disk after it."""
        self.sharing: ModelSharing = NoSharing() if sharing is None else sharing
        self._shared: dict[str, tuple[str, ...]] = {}
        """The revisions of each model that are shared with peers."""

    def problem(self) -> str:
        """Return why no models can be kept there; empty where they can."""
        parent, above = self._here.parent, self.folder.parent
        if self._here.is_symlink():
            return f"{self.folder} is a symbolic link"
        if not parent.is_dir():
            return f"there is no {above}: run `tessera disks apply` on the node, or choose another agent.modelFolder"
        if not any(parent.iterdir()) and not parent.is_mount():
            return f"{above} is empty and nothing is mounted there: run `tessera disks apply` on the node"
        return ""

    def read_only(self) -> str:
        """Return why no further models can be kept there, while those that are there are offered; empty if they can."""
        if self._state().f_flag & os.ST_RDONLY:
            error = OSError(errno.EROFS, os.strerror(errno.EROFS), str(self._here))
            return self.reason("", error)
        return ""

    def model(self, name: str) -> ModelFolder:
        """Return the folder of a model."""
        return ModelFolder(self._here / name, self._images)

    def path(self, name: str, revision: str) -> Path:
        """Return the path of a revision on the host."""
        return self.folder / name / "versions" / revision

    def has(self, name: str, revision: str) -> bool:
        """Return whether a revision is complete: with a manifest that can be read, which has files."""
        try:
            return self._is_whole(name, revision)
        except OSError:
            return False

    def _is_whole(self, name: str, revision: str) -> bool:
        folder = self.model(name)
        is_known = self._read_facts(name, revision).files > 0
        return is_known and is_folder(folder.versions / revision) and folder.form(revision).is_readable

    def claim(self, name: str) -> ModelFolder:
        """Return the folder of a model, created if missing.

        Raises:
            InvalidInput: it exists and is not the agent's.
            Unavailable: no models can be kept there any more.
            OSError: the disk cannot be read or written.

        """
        if problem := self.problem():  # a disk that was unmounted since: its mount point is on another
            raise Unavailable(f"model {name}", found=problem, hint="it is fetched once its disk is mounted")
        folder = self.model(name)
        mark = folder.top / NOTES / _MARK
        if folder.top.is_symlink() or (is_there(folder.top) and not is_there(mark) and not _is_claimable(folder.top)):
            raise InvalidInput(
                str(self.folder / name),
                found="the agent did not make this folder",
                hint="move it away, or choose another name for the ModelCache",
            )
        try:
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
        except OSError:
            with contextlib.suppress(OSError):  # what is empty is nobody's, and would stay
                mark.parent.rmdir()
                folder.top.rmdir()
            raise
        self._record_damage(name)
        return folder

    def _record_damage(self, name: str) -> None:
        """Record what comparisons found while the disk could not be written: a sync fetches it again."""
        records = self.model(name).records
        for (model, revision), (before, compared) in tuple(self._unrecorded.items()):  # threads of others add to it
            if model == name and compared.damaged and records.verification(revision) == before:
                records.write_verification(revision, compared)

    def observe(self, fetching: str = "") -> ObservedDisk:
        """Return the agent's models there; what is removed and could not go before is tried again.

        Args:
            fetching: the model that is fetched now.

        Raises:
            OSError: it cannot be read which there are.

        """
        found = ObservedDisk({}, {}, {}, set())
        for path in sorted(self._here.iterdir()) if self._here.is_dir() else ():
            name = path.name.removeprefix(_REMOVED).partition(".")[0]
            try:
                if self._remove_rest(path, fetching):
                    found.removed.add(name)
            except OSError as error:
                found.remaining[name] = error
            try:
                if self._is_model(path):
                    found.models[path.name] = self._observe_model(path.name)
            except FileNotFoundError:  # it was removed just now
                continue
            except OSError as error:
                found.errors[path.name] = error
        self._share(found.models)
        return found

    def _is_model(self, path: Path) -> bool:
        return not path.name.startswith(_REMOVED) and is_folder(path) and is_regular(path / NOTES / _MARK)

    def _remove_rest(self, path: Path, fetching: str) -> bool:
        """Remove what the disk refused to remove before of a model; return whether there was something."""
        if path.name.startswith(_REMOVED):
            remove_folder(path)
            return True
        return path.name != fetching and self._is_model(path) and self.model(path.name).empty_trash()

    def _observe_model(self, name: str) -> ModelOnDisk:
        folder, verifications, unreadable = self.model(name), dict[str, Verification](), dict[str, str]()
        broken = set[str]()
        for revision in sorted({*folder.records.names(), *folder.folder_names()}):
            try:
                if not is_folder(folder.versions / revision):
                    continue
                if problem := self._mount_image(name, revision):
                    unreadable[revision] = problem
                elif self._is_whole(name, revision):
                    verifications[revision] = self.verification(name, revision)
                else:
                    broken.add(revision)
            except OSError as error:
                unreadable[revision] = self.reason(name, error)
        current = folder.current()
        return ModelOnDisk(
            current if current in verifications else "",
            tuple(verifications),
            verifications,
            unverified=frozenset(each for each in verifications if self.facts(name, each).unverified_bytes),
            unreadable=unreadable,
            unreadable_current=current if current in unreadable else "",
            broken=frozenset(broken),
        )

    def reason(self, name: str, error: TesseraError | OSError) -> str:
        """Return what an error says that kept a model from being read or changed, with the fix."""
        if isinstance(error, TesseraError):
            return self._on_host(str(error))
        fix = disk_fix(error, otherwise="correct this path; the agent tries again by itself")
        return self._on_host(f"{error.filename or self._here / name}: {error.strerror or error}: {fix}")

    def _on_host(self, text: str) -> str:
        """Return a text with the paths on the host in place of those in the agent's container."""
        return text if self._root == Path("/") else text.replace(f"{self._root}/", "/")

    def _share(self, on_disk: Mapping[str, ModelOnDisk]) -> None:
        """Share exactly the present revisions with peers."""
        for name in self._shared.keys() | on_disk.keys():
            revisions = on_disk[name].revisions if name in on_disk else ()
            if revisions != self._shared.get(name):
                with contextlib.suppress(TesseraError, OSError):  # they are not there any more
                    self.sharing.serve(self.model(name))
        self._shared = {name: each.revisions for name, each in on_disk.items()}

    def _mount_image(self, name: str, revision: str) -> str:
        """Mount the image of a revision, as after a reboot; return why a whole one is not mounted.

        On a node that cannot mount images it is none that is whole: a fetch makes it plain files, or says why not.
        """
        folder = self.model(name)
        if not self._read_facts(name, revision).files or folder.cannot_mount(revision):
            return ""
        try:
            folder.mount_image(revision)
        except TesseraError as error:
            problem = f"image {folder.image(revision)} is not mounted: {error.cause}: the agent tries again by itself"
            return f"revision {revision[:12]}: {self._on_host(problem)}"
        return ""

    def facts(self, name: str, revision: str) -> RevisionFacts:
        """Return the facts of a revision; zeros for one whose manifest cannot be read."""
        try:
            return self._read_facts(name, revision)
        except OSError:
            return RevisionFacts()

    def _read_facts(self, name: str, revision: str) -> RevisionFacts:
        folder = self.model(name)
        try:
            status = (folder.top / NOTES / "manifests" / f"{revision}.json").stat()
            written = status.st_ino, status.st_mtime_ns  # the same revision may be fetched again, and verified then
            known, facts = self._facts.get((name, revision), (None, RevisionFacts()))
            if known != written:
                manifest = folder.records.manifest(revision)
                facts = RevisionFacts(manifest.size, len(manifest.files), manifest.unverified_bytes)
                self._facts[name, revision] = written, facts
        except (InvalidInput, FileNotFoundError):  # the next sync replaces a broken one
            return RevisionFacts()
        return facts

    def use(self, name: str, revision: str, *, after_s: float = 0.0) -> None:
        """Note that a pod uses a revision, unless that was noted in the last `after_s` seconds."""
        with contextlib.suppress(OSError):  # it is used, whether the disk can be written or not
            self.model(name).records.touch(revision, after_s=after_s)

    def verify(self, name: str, revision: str, reads: ChunkReads) -> dict[str, str]:
        """Compare a revision with its digests, and note the result; return the damaged files by their paths.

        Raises:
            InvalidInput: its manifest is broken.
            OSError: it is not there.

        """
        try:
            damaged = self.model(name).damaged(revision, reads)
        except (InvalidInput, OSError):
            self._note(name, revision)
            raise
        self._note(name, revision, tuple(damaged))
        return damaged

    def _note(self, name: str, revision: str, damaged: tuple[str, ...] = ()) -> None:
        """Note a comparison, which may have no record: it failed, or the disk cannot be written."""
        with contextlib.suppress(OSError):  # without its record the revision is given to nobody
            records = self.model(name).records
            recorded = records.verification(revision)
            self._unrecorded[name, revision] = recorded, Verification(time.time(), damaged or recorded.damaged)
            for other in set(records.names()) - {revision} if damaged else ():  # they may share the files
                recorded = records.verification(other)
                self._unrecorded[name, other] = recorded, msgspec.structs.replace(recorded, at_s=0.0)

    def verification(self, name: str, revision: str) -> Verification:
        """Return the last comparison of a revision, also one that has no record on the disk.

        Raises:
            OSError: the disk or its permissions keep the record from being read.

        """
        recorded = self.model(name).records.verification(revision)
        # A later record, as of a fetch or of damage in another revision, stands alone.
        before, compared = self._unrecorded.get((name, revision), (recorded, recorded))
        return compared if before == recorded else recorded

    def revisions(self, name: str) -> tuple[RevisionOnDisk, ...]:
        """Return the revisions of a model with what they free, protected where a process reads them; none if broken."""
        folder = self.model(name)
        with contextlib.suppress(TesseraError, OSError):  # they are not there any more
            revisions = folder.revisions()
            readers = {each.revision: each.in_use for each in revisions}
            return tuple(
                msgspec.structs.replace(each, protected=readers[each.revision]) for each in folder.on_disk(revisions)
            )
        return ()

    def staged_bytes(self, name: str) -> int:
        """Return what the removal of all that was not fetched completely of a model frees; 0 if it is being removed."""
        with contextlib.suppress(OSError):
            return self.model(name).staged_bytes()
        return 0

    def pin(self, name: str, revisions: Collection[str], *, unreadable: Collection[str] = ()) -> None:
        """Pin exactly these revisions of a model, which are present; of unreadable ones the pins stay."""
        self.model(name).records.pin_exactly(revisions, unreadable=unreadable)

    def choose(self, name: str, revision: str, rule: ChecksumRule) -> bool:
        """Make a present revision the current one; return whether it is present, and new pods may get it.

        Raises:
            Conflict: another process works there.
            OSError: the disk cannot be read or written.

        """
        folder = self.model(name)
        if not self._is_whole(name, revision) or self.verification(name, revision).damaged:
            return False
        if rule == "Required" and self.facts(name, revision).unverified_bytes:
            return False
        with folder.locked():
            folder.flip(revision)
        return True

    def remove_superseded(self, name: str, keep: int) -> str:
        """Remove revisions of a model beyond those to keep; return why one cannot be removed.

        While another process works there none is removed, and the text is empty.
        """
        folder = self.model(name)
        try:
            with contextlib.suppress(Conflict), folder.locked():
                folder.evict_superseded(keep)
        except NOT_REMOVED as error:
            return f"model {name}: {self.reason(name, error)}"
        return ""

    def remove_staged(self, name: str) -> bool:
        """Remove what was not fetched completely of a model; return whether it is gone."""
        folder = self.model(name)
        try:
            with folder.locked():
                folder.clear_staging()
        except Conflict:
            return False
        return True

    def evict(self, name: str, revision: str) -> bool:
        """Remove a revision, even the current one, unless it is read; return whether it is gone."""
        folder = self.model(name)
        try:
            with folder.locked():
                if revision not in revisions_in_use(folder.versions):
                    folder.evict(revision)
                    return True
        except Conflict:
            pass
        return False

    def remove(self, name: str) -> bool:
        """Remove a model, unless it is read; return whether it is gone."""
        folder = self.model(name)
        try:
            with folder.locked():
                if is_folder(folder.versions) and revisions_in_use(folder.versions):
                    return False
                if not folder.unmount_images():
                    return False
                # What the disk does not remove now is tried when the folder is read next.
                gone = self._here / f"{_REMOVED}{name}.{uuid.uuid4().hex}"
                folder.top.rename(gone)
                remove_folder(gone)
        except Conflict:
            return False
        for key in [each for each in (*self._facts, *self._unrecorded) if each[0] == name]:
            self._facts.pop(key, None)
            self._unrecorded.pop(key, None)
        return True

    def _state(self) -> os.statvfs_result:
        """Return the state of its disk: the folder may be a mount point of its own, and comes with the first model."""
        try:
            return os.statvfs(self._here)
        except FileNotFoundError:
            return os.statvfs(self._here.parent)

    @property
    def reserve_bytes(self) -> int:
        """Bytes of the disk that stay free."""
        status = self._state()
        return status.f_blocks * status.f_frsize * (100 - self._most_percent) // 100

    def free_bytes(self) -> int:
        """Return the free bytes above that; negative where some of these are used."""
        status = self._state()
        return status.f_bavail * status.f_frsize - self.reserve_bytes
