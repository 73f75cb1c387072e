"""The folder of a model: which revisions stay, who may change it."""

import errno
import os
from pathlib import Path

import pytest

from harness.modelsyncs import CONTENTS, run
from tessera.agent.storage.models.folder import ModelFolder
from tessera.clients.store import MemoryStore
from tessera.errors import Conflict, InvalidInput


def test_unchanged_files_are_linked_and_old_revisions_go(tmp_path: Path) -> None:
    store = MemoryStore(CONTENTS)
    names = []
    for number in range(4):
        store.contents["config.json"] = b"%d" % number
        done = run(store, tmp_path)
        names.append(done.revision)
        assert done.bytes == (1 if number else sum(map(len, CONTENTS.values())) - 1)
    assert {each.name for each in (tmp_path / "versions").iterdir()} == set(names[-2:])
    weights = [tmp_path / "versions" / name / "weights/a b+%.bin" for name in names[-2:]]
    assert weights[0].samefile(weights[1])
    assert list((tmp_path / ".tessera/staging").iterdir()) == list((tmp_path / ".tessera/trash").iterdir()) == []


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


def test_pinned_revisions_stay(tmp_path: Path) -> None:
    store = MemoryStore({"a": b"1"})
    first = run(store, tmp_path).revision
    ModelFolder(tmp_path).pin(first, pinned=True)
    for number in range(2, 5):
        store.contents["a"] = b"%d" % number
        run(store, tmp_path, keep=1)
    assert first in ModelFolder(tmp_path).manifests()


def test_a_current_that_leads_elsewhere_is_set_right(tmp_path: Path) -> None:
    top, store = tmp_path / "model", MemoryStore({"a": b"1"})
    revision = run(store, top).revision
    other = tmp_path / revision
    other.mkdir()
    (top / "current").unlink()
    (top / "current").symlink_to(other)
    assert ModelFolder(top).current() == ""
    run(store, top)
    assert (top / "current/a").read_bytes() == b"1"


def test_one_process_at_a_time(tmp_path: Path) -> None:
    folder = ModelFolder(tmp_path)
    with folder.locked(), pytest.raises(Conflict, match=f"process {os.getpid()}"):
        run(MemoryStore(CONTENTS), tmp_path)


def test_a_link_in_place_of_our_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "dst").mkdir()
    (tmp_path / "dst/versions").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidInput, match="symbolic link"):
        run(MemoryStore(CONTENTS), tmp_path / "dst")


def test_an_unchanged_sync_uses_no_revision_and_notices_that_nothing_changed_whichever_was_used_last(
    tmp_path: Path,
) -> None:
    store = MemoryStore(CONTENTS)
    first = run(store, tmp_path).revision
    store.contents["config.json"] = b"new"
    second = run(store, tmp_path).revision
    folder = ModelFolder(tmp_path)
    manifest = tmp_path / ".tessera/manifests" / f"{second}.json"
    os.utime(manifest, (1000, 1000))
    written = manifest.stat().st_ino
    assert run(store, tmp_path).revision == second
    assert (manifest.stat().st_mtime, manifest.stat().st_ino) == (1000, written)
    assert [each.revision for each in folder.revisions()] == [first, second]
    folder.touch(second, after_s=1e12)
    assert manifest.stat().st_mtime == 1000
    folder.flip(first)
    folder.touch(second)
    folder.flip(second)
    assert [each.revision for each in folder.revisions()] == [second, first]


def test_a_flip_that_fails_at_its_last_step_leaves_current_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is removed before: at no time readers find no `current`."""
    store = MemoryStore(CONTENTS)
    first = run(store, tmp_path).revision
    store.contents["config.json"] = b"new"
    second = run(store, tmp_path).revision
    folder, replace = ModelFolder(tmp_path), Path.replace

    def fail(path: Path, target: Path) -> Path:
        if path.name == "current.new":
            raise OSError(errno.EIO, "Input/output error")
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="Input/output"):
        folder.flip(first)
    assert folder.current() == second
    monkeypatch.undo()
    folder.flip(first)
    assert folder.current() == first
