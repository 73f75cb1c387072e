"""A mirror end to end: plain files as the store has them, whatever was there, whenever it was killed."""

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.agent.storage.models.folder import ModelFolder
from tessera.agent.storage.models.mirror import sync_mirror
from tessera.agent.storage.models.plainfiles import PlainFiles
from tessera.agent.storage.models.sync import SyncOptions, sync
from tessera.clients.store import MemoryStore
from tessera.core.storage.models.paths import NOTES
from tessera.core.storage.models.revisions import CHUNK_BYTES
from tessera.errors import Conflict, Unavailable

QUICK = SyncOptions(reserve_bytes=0)
FIRST = {"config.json": b"{}", "empty": b"", "weights/0.bin": os.urandom(CHUNK_BYTES + 99), "weights/1.bin": b"one"}
SECOND = {"config.json": b"{ }", "empty": b"", "weights/1.bin": b"one", "weights/2.bin": b"two"}


def contents(top: Path) -> dict[str, bytes]:
    """Return all files but Tessera's notes."""
    paths = (path for path in top.rglob("*") if path.is_file() and path.relative_to(top).parts[0] != NOTES)
    return {str(path.relative_to(top)): path.read_bytes() for path in paths}


def test_files_become_those_of_the_store(tmp_path: Path) -> None:
    store = MemoryStore(FIRST)
    done = sync_mirror(store, tmp_path, QUICK)
    assert (done.files, done.bytes) == (4, sum(map(len, FIRST.values())))
    assert contents(tmp_path) == FIRST
    store.contents = dict(SECOND)
    again = sync_mirror(store, tmp_path, QUICK)
    assert (again.files, again.bytes) == (4, 6)  # `weights/1.bin` and `empty` are as they were
    assert contents(tmp_path) == SECOND
    assert again.revision != done.revision
    unchanged = sync_mirror(store, tmp_path, QUICK)
    assert (unchanged.revision, unchanged.bytes, unchanged.requests) == (again.revision, 0, store.requests)


def test_a_reader_keeps_the_file_that_it_has_opened(tmp_path: Path) -> None:
    store = MemoryStore(FIRST)
    sync_mirror(store, tmp_path, QUICK)
    with (tmp_path / "config.json").open("rb") as reader:
        store.contents = dict(SECOND)
        sync_mirror(store, tmp_path, QUICK)
        assert reader.read() == FIRST["config.json"]


def test_files_of_others_stay_or_are_taken_over(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights/0.bin").write_bytes(FIRST["weights/0.bin"])  # another program has copied it
    (tmp_path / "weights/1.bin").write_bytes(b"own")
    (tmp_path / "notes.txt").write_bytes(b"mine")
    done = sync_mirror(MemoryStore(FIRST), tmp_path, QUICK)
    assert done.bytes == 2 + 3
    assert contents(tmp_path) == {**FIRST, "notes.txt": b"mine"}
    sync_mirror(MemoryStore({"config.json": b"{}"}), tmp_path, QUICK)
    assert contents(tmp_path) == {"config.json": b"{}", "notes.txt": b"mine"}
    assert not (tmp_path / "weights").exists()


def test_what_was_written_to_is_fetched_again(tmp_path: Path) -> None:
    sync_mirror(MemoryStore(FIRST), tmp_path, QUICK)
    (tmp_path / "weights/1.bin").write_bytes(b"eno")  # as many bytes
    (tmp_path / "empty").unlink()
    sync_mirror(MemoryStore(FIRST), tmp_path, QUICK)
    assert contents(tmp_path) == FIRST


def test_a_file_becomes_a_folder_and_the_other_way_round(tmp_path: Path) -> None:
    before, after = {"a": b"1", "b/c": b"2", "b/d/e": b"3"}, {"a/x": b"4", "b": b"5"}
    for wanted in (before, after, before):
        sync_mirror(MemoryStore(wanted), tmp_path, QUICK)
        assert contents(tmp_path) == wanted


def test_nothing_is_written_through_a_link_or_over_a_folder(tmp_path: Path) -> None:
    top, elsewhere = tmp_path / "top", tmp_path / "elsewhere"
    elsewhere.mkdir()
    top.mkdir()
    (top / "weights").symlink_to(elsewhere)
    with pytest.raises(Conflict, match=r"weights.*a file or a link"):
        sync_mirror(MemoryStore(FIRST), top, QUICK)
    assert (list(elsewhere.iterdir()), contents(top)) == ([], {})
    (top / "weights").unlink()
    (top / "config.json").mkdir()
    with pytest.raises(Conflict, match=r"config\.json.*a folder"):
        sync_mirror(MemoryStore(FIRST), top, QUICK)
    assert contents(top) == {}
    (top / "config.json").rmdir()
    (top / "config.json").symlink_to(elsewhere / "victim")  # the link itself is replaced
    (elsewhere / "victim").write_bytes(b"{}")
    sync_mirror(MemoryStore(FIRST), top, QUICK)
    assert contents(top) == FIRST
    assert not (top / "config.json").is_symlink()


def test_a_link_where_a_folder_was_saves_what_lies_behind_it(tmp_path: Path) -> None:
    top, elsewhere = tmp_path / "top", tmp_path / "elsewhere"
    sync_mirror(MemoryStore(FIRST), top, QUICK)
    shutil.move(top / "weights", elsewhere)
    (top / "weights").symlink_to(elsewhere)
    sync_mirror(MemoryStore({"config.json": b"{}"}), top, QUICK)
    assert {path.name for path in elsewhere.iterdir()} == {"0.bin", "1.bin"}


def test_a_mirror_and_revisions_do_not_mix(tmp_path: Path) -> None:
    sync_mirror(MemoryStore(FIRST), tmp_path / "plain", QUICK)
    with pytest.raises(Conflict, match="use --mirror"):
        sync(MemoryStore(FIRST), ModelFolder(tmp_path / "plain"), QUICK)
    sync(MemoryStore(FIRST), ModelFolder(tmp_path / "revisions"), QUICK)
    with pytest.raises(Conflict, match="leave out --mirror"):
        sync_mirror(MemoryStore(FIRST), tmp_path / "revisions", QUICK)


def test_an_empty_listing_removes_nothing(tmp_path: Path) -> None:
    sync_mirror(MemoryStore(FIRST), tmp_path, QUICK)
    with pytest.raises(Unavailable):
        sync_mirror(MemoryStore({}), tmp_path, QUICK)
    assert contents(tmp_path) == FIRST


def test_what_arrived_before_a_crash_is_brought_in_by_the_next(tmp_path: Path) -> None:
    store = MemoryStore(FIRST)
    sync_mirror(store, tmp_path, QUICK)
    # All of the new files have arrived; the second of three cannot be placed. So it would be after a kill.
    (tmp_path / "weights/2.bin").mkdir()
    arrived = tmp_path / NOTES / "staging/by-hand/files"
    wanted = tmp_path.with_name("wanted")
    sync_mirror(MemoryStore(SECOND), wanted, QUICK)
    manifest = PlainFiles(wanted).manifest()
    assert manifest
    (arrived / "weights").mkdir(parents=True)
    for name in ("config.json", "weights/2.bin"):
        shutil.copy(wanted / name, arrived / name)
    with pytest.raises(Conflict, match=r"2\.bin"):
        PlainFiles(tmp_path).bring(manifest, arrived)
    assert contents(tmp_path)["config.json"] == SECOND["config.json"]
    (tmp_path / "weights/2.bin").rmdir()
    PlainFiles(tmp_path).finish()
    assert contents(tmp_path) == SECOND
    done = sync_mirror(MemoryStore(SECOND), tmp_path, QUICK)
    assert done.bytes == 0


NAMES = st.sampled_from(["a", "a/b", "a/b/c", "d", "d/e", "f"])
FILES = st.dictionaries(NAMES, st.sampled_from([b"", b"1", b"22"]), min_size=1).map(
    lambda found: {k: v for k, v in found.items() if not any(other.startswith(f"{k}/") for other in found)}
)


@given(st.lists(FILES, min_size=1, max_size=4))
def test_whatever_was_there_the_files_are_the_stores(tmp_path_factory: pytest.TempPathFactory, states: object) -> None:
    top = tmp_path_factory.mktemp("top")
    assert isinstance(states, list)
    for state in states:
        sync_mirror(MemoryStore(state), top, QUICK)
        assert contents(top) == state
        assert {path.name for path in (top / NOTES).iterdir()}.isdisjoint({"arriving", "mirror-next.json"})
