"""A mirror end to end: plain files as the store has them, whatever was there, whenever it was killed."""

import contextlib
import shutil
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.flakys3 import FlakyS3
from harness.modelsyncs import CONTENTS, FIRST, QUICK, SECOND, contents, run, s3
from tessera.agent.nodefiles import remove_any
from tessera.agent.storage.models.folder import ModelFolder
from tessera.agent.storage.models.mirror import sync_mirror
from tessera.agent.storage.models.sync import sync
from tessera.clients.store import MemoryStore
from tessera.core.storage.models.paths import NOTES
from tessera.errors import Conflict, InvalidInput, Unavailable


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


def test_folders_named_as_revisions_are_files_like_others(tmp_path: Path) -> None:
    foreign = tmp_path / "versions" / ("cd" * 32) / "mine"
    foreign.parent.mkdir(parents=True)
    foreign.write_bytes(b"mine")
    store = MemoryStore({f"versions/{'ab' * 32}/0.bin": b"theirs"})
    assert sync_mirror(store, tmp_path, QUICK).bytes == 6
    assert sync_mirror(store, tmp_path, QUICK).bytes == 0
    assert contents(tmp_path) == {f"versions/{'ab' * 32}/0.bin": b"theirs", str(foreign.relative_to(tmp_path)): b"mine"}


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


def test_where_checksums_are_required_plain_files_that_none_verified_are_fetched_again(
    tmp_path: Path, server: FlakyS3
) -> None:
    options = msgspec.structs.replace(QUICK, require_checksums=True)
    with contextlib.closing(s3(server)) as store:
        server.encrypted = True
        sync_mirror(store, tmp_path, QUICK)
        with pytest.raises(InvalidInput, match="gives no checksum"):
            sync_mirror(store, tmp_path, options)
        assert contents(tmp_path) == CONTENTS
        server.encrypted = False
        assert sync_mirror(store, tmp_path, options).bytes == sum(map(len, CONTENTS.values()))
        assert sync_mirror(store, tmp_path, options).bytes == 0


def test_a_mirror_beside_revisions_is_refused_with_what_to_remove(tmp_path: Path) -> None:
    mirrored = tmp_path / "mirrored"
    sync_mirror(MemoryStore(FIRST), mirrored, QUICK)
    top = tmp_path / "top"
    revision = run(MemoryStore(FIRST), top).revision
    shutil.copy(mirrored / NOTES / "mirror.json", top / NOTES)
    own = f"{top}/{NOTES}/manifests, {top}/versions, {top}/current"
    fix = f"to keep the revisions remove {top}/{NOTES}/mirror.json; to keep the mirror remove {own}"
    for refused in (run, lambda store, folder: sync_mirror(store, folder, QUICK)):
        with pytest.raises(Conflict, match=f"it has a mirror and revisions: {fix}$"):
            refused(MemoryStore(FIRST), top)
    shutil.copytree(top, tmp_path / "other", symlinks=True)
    (top / NOTES / "mirror.json").unlink()
    assert run(MemoryStore(FIRST), top).revision == revision
    for name in (f"{NOTES}/manifests", "versions", "current"):
        remove_any(tmp_path / "other" / name)
    sync_mirror(MemoryStore(FIRST), tmp_path / "other", QUICK)
    assert contents(tmp_path / "other") == FIRST
