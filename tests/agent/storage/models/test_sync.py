"""A sync end to end: the folder that readers see, resumed and damaged copies, stores that fail."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from harness.flakys3 import FlakyS3
from harness.modelsyncs import CONTENTS, QUICK, content, run, s3
from tessera.agent.storage.models.cancellation import Canceled, Cancellation
from tessera.agent.storage.models.folder import ModelFolder
from tessera.agent.storage.models.revisionforms import PlainRevision
from tessera.agent.storage.models.sync import sync
from tessera.clients.store import MemoryStore
from tessera.clients.store.folders import FolderStore
from tessera.core.storage.models.revisions import Manifest, StoredObject
from tessera.errors import Conflict, InvalidInput, Unavailable


def test_a_revision_is_fetched_once(tmp_path: Path, server: FlakyS3) -> None:
    first = run(s3(server), tmp_path)
    assert content(tmp_path / "current") == CONTENTS
    assert (first.files, first.bytes) == (3, sum(map(len, CONTENTS.values())))
    assert first.requests == 6 - 1  # a listing, three chunks, a small file; nothing is asked for an empty one
    again = run(s3(server), tmp_path)
    assert (again.revision, again.bytes, again.requests) == (first.revision, 0, 1)


def test_an_empty_listing_replaces_nothing(tmp_path: Path) -> None:
    store = MemoryStore({"a": b"1"})
    run(store, tmp_path)
    store.contents.clear()
    with pytest.raises(Unavailable, match="no objects"):
        run(store, tmp_path)
    assert content(tmp_path / "current") == {"a": b"1"}


def test_a_disk_without_room_is_found_before_anything_is_fetched(tmp_path: Path) -> None:
    store = MemoryStore(CONTENTS)
    with pytest.raises(Unavailable, match="too little"):
        run(store, tmp_path, reserve_bytes=2**60)
    assert store.requests == 1


def test_two_superseded_revisions_with_the_same_weights_make_room_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = os.urandom(8 << 20)
    for contents in ({"weights": weights, "config": b"1"}, {"weights": weights, "config": b"2"}, {"a": b"current"}):
        run(MemoryStore(contents), tmp_path, keep=3)
    assert len(ModelFolder(tmp_path).revisions()) == 3
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=0, f_frsize=4096))
    run(MemoryStore({"a": os.urandom(6 << 20)}), tmp_path, keep=3)
    assert [each.files for each in ModelFolder(tmp_path).revisions()] == [1, 1]


def keep_folder(revision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the disk refuse to move a revision away."""
    real = os.rename

    def rename(path: Path, *more: object, **others: object) -> None:
        if str(path).endswith(f"versions/{revision}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        real(path, *more, **others)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "rename", rename)


@pytest.mark.parametrize("manifest", [b"broken", None], ids=["broken", "whole"])
def test_a_former_revision_that_cannot_be_removed_keeps_nothing_else(
    manifest: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _, third = (run(MemoryStore({"a": b"%d" % each}), tmp_path, keep=9).revision for each in range(3))
    if manifest is not None:
        (tmp_path / ".tessera" / "manifests" / f"{first}.json").write_bytes(manifest)
    with monkeypatch.context() as patched:
        keep_folder(first, patched)
        for number in (5, 6):
            last = run(MemoryStore({"a": b"%d" % number}), tmp_path, keep=1).revision
            assert content(tmp_path / "current") == {"a": b"%d" % number}
            assert {each.name for each in (tmp_path / "versions").iterdir()} == {first, last}
        with pytest.raises(OSError, match="Input/output error"):
            ModelFolder(tmp_path).evict(first)
    assert run(MemoryStore({"a": b"2"}), tmp_path, keep=1).revision == third
    assert [each.name for each in (tmp_path / "versions").iterdir()] == [third]


def test_another_revision_makes_room_in_place_of_one_that_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _, third = (run(MemoryStore({"a": os.urandom(8 << 20)}), tmp_path, keep=3).revision for _ in range(3))
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=0, f_frsize=4096))
    keep_folder(first, monkeypatch)
    last = run(MemoryStore({"a": os.urandom(6 << 20)}), tmp_path, keep=3).revision
    assert {*ModelFolder(tmp_path).names()} == {first, third, last}
    with pytest.raises(Unavailable, match=rf"{first[:12]} \(cannot be removed: .*Input/output error"):
        run(MemoryStore({"a": os.urandom(9 << 20)}), tmp_path, keep=3)


def test_a_sync_for_a_named_revision_shows_readers_no_other(tmp_path: Path) -> None:
    first = run(MemoryStore({"a": b"1"}), tmp_path)
    with pytest.raises(Conflict, match=f"and spec.revision is {'f' * 12}"):
        run(MemoryStore({"a": b"2"}), tmp_path, revision="f" * 64)
    assert ModelFolder(tmp_path).current() == first.revision
    store = MemoryStore({"a": b"2"})
    other = next(each for each in ModelFolder(tmp_path).manifests() if each != first.revision)
    assert run(store, tmp_path, revision=other).revision == ModelFolder(tmp_path).current() == other


@pytest.mark.parametrize("part_bytes", [0, 5 << 20], ids=["whole", "parts"])
def test_where_checksums_are_required_what_was_fetched_without_is_fetched_again_and_verified(
    part_bytes: int, tmp_path: Path, server: FlakyS3
) -> None:
    server.encrypted, server.part_bytes = True, part_bytes
    first = run(s3(server), tmp_path)
    folder = ModelFolder(tmp_path)
    assert folder.records.manifest(first.revision).unverified_bytes == sum(map(len, CONTENTS.values()))
    with pytest.raises(InvalidInput, match="gives no checksum that verifies it, and none of 1 others"):
        run(s3(server), tmp_path, require_checksums=True)
    assert content(tmp_path / "current") == CONTENTS
    server.encrypted = False
    again = run(s3(server), tmp_path, require_checksums=True)
    assert (again.revision, again.bytes) == (first.revision, first.bytes)
    assert ModelFolder(tmp_path).records.manifest(first.revision).unverified_bytes == 0
    assert run(s3(server), tmp_path, require_checksums=True).bytes == 0


def test_where_checksums_are_required_parts_of_another_size_and_flipped_bits_are_refused(
    tmp_path: Path, server: FlakyS3
) -> None:
    server.part_bytes = 8 << 20
    server.flipped = "weights/a b+%.bin"
    with pytest.raises(Unavailable, match="in transit, or was uploaded in parts of another size"):
        run(s3(server), tmp_path, require_checksums=True)
    server.flipped = ""
    assert run(s3(server), tmp_path, require_checksums=True).files == len(CONTENTS)


def test_where_checksums_are_required_a_listing_without_any_is_refused_before_anything_is_fetched(
    tmp_path: Path,
) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a").write_bytes(b"1")
    store = FolderStore(tmp_path / "source")
    with pytest.raises(InvalidInput, match="object 'a': the source gives no checksum"):
        run(store, tmp_path / "dst", require_checksums=True)
    assert (store.requests, ModelFolder(tmp_path / "dst").current()) == (1, "")


class CancelingStore(MemoryStore):
    """A store during whose listing the sync is canceled."""

    cancellation = Cancellation()

    def objects(self, *_: object) -> tuple[StoredObject, ...]:
        self.cancellation.cancel()
        return super().objects()


def test_a_sync_that_is_canceled_compares_no_further_files(tmp_path: Path) -> None:
    first = run(MemoryStore(CONTENTS), tmp_path)
    store, options = CancelingStore(CONTENTS), msgspec.structs.replace(QUICK, check=True)
    with pytest.raises(Canceled):  # nothing is to be fetched, so the comparison alone can end it
        sync(store, ModelFolder(tmp_path), options, cancellation=store.cancellation)
    assert ModelFolder(tmp_path).current() == first.revision


def test_a_sync_that_is_canceled_reuses_no_further_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(MemoryStore({"a": b"1", "b": b"2", "c": b"3"}), tmp_path)
    cancellation, reused = Cancellation(), list[str]()
    reuse = PlainRevision.reuse

    def cancel(self: PlainRevision, manifest: Manifest, path: str, target: Path) -> None:
        reused.append(path)
        cancellation.cancel()
        reuse(self, manifest, path, target)

    with monkeypatch.context() as patched:
        patched.setattr(PlainRevision, "reuse", cancel)
        with pytest.raises(Canceled):
            sync(MemoryStore({"a": b"1", "b": b"2"}), ModelFolder(tmp_path), QUICK, cancellation=cancellation)
    assert (reused, ModelFolder(tmp_path).current()) == (["a"], first.revision)
    run(MemoryStore({"a": b"1", "b": b"2"}), tmp_path)
    assert content(tmp_path / "current") == {"a": b"1", "b": b"2"}
