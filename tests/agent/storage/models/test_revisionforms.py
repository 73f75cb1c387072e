"""The two forms of a revision: both are read, compared, reused, measured and removed alike."""

import errno
import os
from pathlib import Path

import msgspec
import pytest

from harness.modelsyncs import QUICK, run
from tessera.agent.storage.models.chunkreads import ChunkReads
from tessera.agent.storage.models.folder import ModelFolder
from tessera.agent.storage.models.revisionforms import PackedRevision, PlainRevision
from tessera.agent.storage.models.sync import sync
from tessera.clients.disks import MemoryErofsMounts
from tessera.clients.store import MemoryStore
from tessera.core.storage.models.syncplans import Pack

FILES = {"a": b"1" * 5000, "folder/empty": b"", "folder/b": b"2"}


def synced(contents: dict[str, bytes], folder: ModelFolder, pack: Pack) -> str:
    options = msgspec.structs.replace(QUICK, pack=pack, keep=3)
    return sync(MemoryStore(contents), folder, options).revision


@pytest.mark.parametrize(("pack", "form"), [("Never", PlainRevision), ("Always", PackedRevision)])
def test_what_was_fetched_is_readable_whole_reused_and_removed(tmp_path: Path, pack: Pack, form: type) -> None:
    folder = ModelFolder(tmp_path, MemoryErofsMounts())
    revision = synced(FILES, folder, pack)
    found, manifest = folder.form(revision), folder.records.manifest(revision)
    assert isinstance(found, form)
    assert (found.is_readable, found.damaged(manifest, ChunkReads())) == (True, {})
    assert found.warm(manifest) >= sum(map(len, FILES.values()))
    own, linked = found.sizes(manifest)
    assert own >= sum(map(len, FILES.values()))
    assert linked == ()
    reused = tmp_path / "reused"
    found.reuse(manifest, "folder/b", reused)
    assert reused.read_bytes() == b"2"
    assert bool(found.sizes(manifest)[1]) == found.has_plain_files
    with folder.locked():
        folder.evict(revision)
    assert (list(folder.versions.iterdir()), folder.image(revision), folder.manifests()) == ([], None, {})


def test_a_revision_keeps_its_form(tmp_path: Path) -> None:
    """Readers of plain files are not disturbed by a change of mind, nor those of an image."""
    folder = ModelFolder(tmp_path, MemoryErofsMounts())
    one, two = {"a": b"1"}, {"b": b"1", "a": b"1"}
    plain, packed = synced(one, folder, "Never"), synced(two, folder, "Always")
    assert (synced(one, folder, "Always"), synced(two, folder, "Never")) == (plain, packed)
    assert (tmp_path / "versions" / plain / "a").read_bytes() == b"1"
    assert [folder.form(each).has_plain_files for each in (plain, packed)] == [True, False]


def test_a_file_that_can_have_no_more_links_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of ext4 has 65,000 links at most, and a data set may have more files of one content."""
    link = os.link

    def linked(source: Path, target: Path, **more: bool) -> None:
        if source.stat().st_nlink >= 3:
            raise OSError(errno.EMLINK, "Too many links")
        link(source, target, **more)

    monkeypatch.setattr(os, "link", linked)
    store = MemoryStore({f"{number}.txt": b"label" for number in range(6)})
    run(store, tmp_path)
    store.source = "memory://another"
    run(store, tmp_path)
    files = [tmp_path / "current" / f"{number}.txt" for number in range(6)]
    assert {each.read_bytes() for each in files} == {b"label"}
    assert sorted(each.stat().st_nlink for each in files) == [1, 1, 1, 1, 2, 2]
