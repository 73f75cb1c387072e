"""Plain files as a store's: whatever was there, whatever lies in the way."""

import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.kills import Changes, not_killed
from harness.modelsyncs import FIRST, QUICK, SECOND, contents, run
from tessera.agent.storage.models.chunkreads import ChunkReads
from tessera.agent.storage.models.mirror import sync_mirror
from tessera.agent.storage.models.mirrorfolder import MirrorFolder
from tessera.agent.storage.models.opening import open_folder
from tessera.agent.storage.models.reading import TransferLimits
from tessera.clients.store import MemoryStore
from tessera.core.storage.models.paths import NOTES
from tessera.errors import Conflict, InvalidInput


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


def test_a_link_to_a_folder_with_the_same_files_is_damage_and_refused(tmp_path: Path) -> None:
    top, elsewhere = tmp_path / "top", tmp_path / "elsewhere"
    name = sync_mirror(MemoryStore(FIRST), top, QUICK).revision
    shutil.copytree(top / "weights", elsewhere)
    os.utime(top / NOTES / "mirror.json")
    shutil.rmtree(top / "weights")
    (top / "weights").symlink_to(elsewhere)
    assert MirrorFolder(top).damaged(name, ChunkReads()).keys() == {"weights/0.bin", "weights/1.bin"}
    with pytest.raises(Conflict, match=r"weights: a file or a link, and the source has a folder: move it away"):
        sync_mirror(MemoryStore(FIRST), top, QUICK)
    (top / "weights").unlink()
    sync_mirror(MemoryStore(FIRST), top, QUICK)
    assert contents(top) == FIRST


@pytest.mark.parametrize("place", ["", "weights"])
def test_an_interrupted_install_takes_no_file_from_behind_a_link(place: str, tmp_path: Path) -> None:
    top, elsewhere = tmp_path / "top", tmp_path / "elsewhere"
    sync_mirror(MemoryStore(FIRST), top, QUICK)
    for name in ("1.bin", "weights/1.bin"):
        (elsewhere / name).parent.mkdir(parents=True, exist_ok=True)
        (elsewhere / name).write_bytes(b"precious")
    shutil.copy(top / NOTES / "mirror.json", top / NOTES / "mirror-next.json")
    arriving = top / NOTES / "arriving" / place
    arriving.parent.mkdir(exist_ok=True)
    arriving.symlink_to(elsewhere)
    sync_mirror(MemoryStore(FIRST), top, QUICK)
    assert contents(elsewhere) == {"1.bin": b"precious", "weights/1.bin": b"precious"}
    assert contents(top) == FIRST
    assert sorted(path.name for path in (top / NOTES).iterdir()) == ["lock", "mirror.json", "staging"]


def test_what_a_killed_process_left_of_a_record_is_removed_by_the_next_sync(tmp_path: Path) -> None:
    sync_mirror(MemoryStore(FIRST), tmp_path, QUICK)
    for name in (".mirror-next.json.17", ".mirror.json.18"):
        (tmp_path / NOTES / name).write_bytes(b"{")
    sync_mirror(MemoryStore(FIRST), tmp_path, QUICK)
    assert sorted(path.name for path in (tmp_path / NOTES).iterdir()) == ["lock", "mirror.json", "staging"]


def test_what_arrived_before_a_crash_is_brought_in_by_the_next(tmp_path: Path) -> None:
    store = MemoryStore(FIRST)
    sync_mirror(store, tmp_path, QUICK)
    # All of the new files have arrived; the second of three cannot be placed. So it would be after a kill.
    (tmp_path / "weights/2.bin").mkdir()
    arrived = tmp_path / NOTES / "staging/by-hand/files"
    wanted = tmp_path.with_name("wanted")
    sync_mirror(MemoryStore(SECOND), wanted, QUICK)
    manifest = MirrorFolder(wanted).manifest()
    assert manifest
    (arrived / "weights").mkdir(parents=True)
    for name in ("config.json", "weights/2.bin"):
        shutil.copy(wanted / name, arrived / name)
    with pytest.raises(Conflict, match=r"2\.bin"):
        MirrorFolder(tmp_path).install(manifest, arrived)
    assert contents(tmp_path)["config.json"] == SECOND["config.json"]
    (tmp_path / "weights/2.bin").rmdir()
    with MirrorFolder(tmp_path).locked():
        assert contents(tmp_path) == SECOND
    done = sync_mirror(MemoryStore(SECOND), tmp_path, QUICK)
    assert done.bytes == 0


def test_a_mirror_whose_first_install_was_interrupted_is_a_mirror(tmp_path: Path) -> None:
    top = tmp_path / "top"
    killed_at = 0
    while True:
        killed_at += 1
        shutil.rmtree(top, ignore_errors=True)
        changes = Changes(lambda: None, killed_at)
        with changes.observed():
            sync_mirror(MemoryStore(FIRST), top, QUICK)
        if not changes.is_killed:
            break
        with not_killed():
            arrived = bool({"mirror.json", "mirror-next.json"} & {each.name for each in (top / NOTES).glob("*")})
            assert isinstance(open_folder(top), MirrorFolder) is arrived
            if arrived:
                with pytest.raises(Conflict, match="it is a mirror: use --mirror there"):
                    run(MemoryStore(FIRST), top)
            sync_mirror(MemoryStore(FIRST), top, QUICK)
            assert contents(top) == FIRST
            assert {each.name for each in (top / NOTES).iterdir()} == {"mirror.json", "lock", "staging"}


def test_revisions_beside_what_an_interrupted_mirror_left_are_revisions(tmp_path: Path) -> None:
    revision = run(MemoryStore(FIRST), tmp_path).revision
    (tmp_path / NOTES / "mirror-next.json").write_bytes(b"{}")
    assert open_folder(tmp_path).names() == [revision]
    assert run(MemoryStore(FIRST), tmp_path).revision == revision


class SyncingReads(ChunkReads):
    """Reads beside syncs: before each of the first files that it reads, the mirror becomes another."""

    def __init__(self, top: Path, syncs: int) -> None:
        super().__init__()
        self.top, self.syncs = top, syncs

    def open(self, path: str) -> int:
        if self.syncs:
            self.syncs -= 1
            sync_mirror(MemoryStore(SECOND if self.syncs % 2 == 0 else FIRST), self.top, QUICK)
        return super().open(path)


def test_files_that_a_sync_replaces_meanwhile_are_not_called_damaged(tmp_path: Path) -> None:
    name = sync_mirror(MemoryStore(FIRST), tmp_path, QUICK).revision
    assert MirrorFolder(tmp_path).damaged(name, SyncingReads(tmp_path, 1)) == {}
    with pytest.raises(Conflict, match="a sync is replacing files, or was killed: wait for it, or sync again"):
        MirrorFolder(tmp_path).damaged(name, SyncingReads(tmp_path, 1000))
    (tmp_path / "config.json").write_bytes(b"wrong")
    assert MirrorFolder(tmp_path).damaged(name, ChunkReads()).keys() == {"config.json"}
    shutil.copy(tmp_path / NOTES / "mirror.json", tmp_path / NOTES / "mirror-next.json")  # as while it installs
    with pytest.raises(Conflict, match="a sync is replacing files"):
        MirrorFolder(tmp_path).damaged(name, ChunkReads())


def test_an_install_that_ends_while_its_signs_are_looked_for_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = sync_mirror(MemoryStore(FIRST), tmp_path, QUICK).revision
    coming = tmp_path / NOTES / "mirror-next.json"
    shutil.copy(tmp_path / NOTES / "mirror.json", coming)
    (tmp_path / "config.json").write_bytes(SECOND["config.json"])  # one file is in place
    lstat = os.lstat

    def looked(path: str | Path, *more: Any, **others: Any) -> os.stat_result:
        if path == coming:
            monkeypatch.undo()
            sync_mirror(MemoryStore(SECOND), tmp_path, QUICK)
        return lstat(path, *more, **others)

    monkeypatch.setattr(os, "lstat", looked)
    assert MirrorFolder(tmp_path).damaged(name, ChunkReads()) == {}
    assert contents(tmp_path) == SECOND


@pytest.mark.parametrize("what", ["a pipe", "a link to nothing", "a folder"])
def test_what_is_no_manifest_of_a_mirror_is_named_and_not_waited_for(what: str, tmp_path: Path) -> None:
    sync_mirror(MemoryStore(FIRST), tmp_path, QUICK)
    path = tmp_path / NOTES / "mirror.json"
    path.unlink()
    {"a pipe": os.mkfifo, "a link to nothing": lambda path: path.symlink_to("x"), "a folder": Path.mkdir}[what](path)
    folder = open_folder(tmp_path)
    with pytest.raises(InvalidInput, match=r"it is not a regular file: remove it, then sync again"):
        folder.revisions()
    path.rmdir() if what == "a folder" else path.unlink()
    assert sync_mirror(MemoryStore(FIRST), tmp_path, QUICK).bytes == 0


def test_a_mirror_killed_at_each_change_has_whole_files_of_one_state_or_the_other(tmp_path: Path) -> None:
    before = {"same": b"1", "changes": b"2", "folder/goes": b"3", "becomes/folder": b"4"}
    after = {"same": b"1", "changes": b"new", "comes/in": b"5", "becomes": b"6"}
    limits = TransferLimits(threads=1)
    options = msgspec.structs.replace(QUICK, limits=limits)
    killed_at, ended = 0, False
    while not ended:
        killed_at += 1
        top = tmp_path / str(killed_at)
        with not_killed():
            sync_mirror(MemoryStore(before), top, options)

        def look(top: Path = top) -> None:
            for path, data in contents(top).items():
                assert data in {before.get(path), after.get(path)}

        changes = Changes(look, killed_at)
        with changes.observed():
            sync_mirror(MemoryStore(after), top, options)
        ended = not changes.is_killed
        with not_killed():
            sync_mirror(MemoryStore(after), top, options)
        assert contents(top) == after
        assert {each.name for each in (top / NOTES).iterdir()} == {"mirror.json", "lock", "staging"}
    assert killed_at > 20
