"""The folder of a model: which revisions stay, and what readers see, wherever the process is killed."""

import errno
import os
import shutil
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from harness.kills import Changes, not_killed
from harness.modelsyncs import CONTENTS, QUICK, content, run
from tessera.agent.storage.models.chunkreads import ChunkReads
from tessera.agent.storage.models.folder import ModelFolder
from tessera.agent.storage.models.reading import TransferLimits
from tessera.agent.storage.models.sync import sync
from tessera.clients.store import MemoryStore
from tessera.core.storage.models.paths import NOTES


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
    folder.records.touch(second, after_s=1e12)
    assert manifest.stat().st_mtime == 1000
    folder.flip(first)
    folder.records.touch(second)
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


ONE_THREAD = msgspec.structs.replace(QUICK, limits=TransferLimits(threads=1))
STATES = st.dictionaries(st.sampled_from(["a", "b", "c/d", "c/e"]), st.sampled_from([b"", b"1", b"22"]), min_size=1)
STOPS = st.integers(1, 50)
"""A sync of four files makes about as many changes of the disk."""


def current(top: Path) -> dict[str, bytes] | None:
    """Return what a reader finds; None for no current revision."""
    return content(top / "current") if (top / "current").exists() else None


class KilledFolder(RuleBasedStateMachine):
    """Syncs, evictions and flips, perhaps killed at any change of the disk, with a reader that looks after each."""

    def __init__(self) -> None:
        super().__init__()
        self.top = Path(tempfile.mkdtemp()) / "model"
        self.store = MemoryStore({"a": b"0"})
        self.readable: list[dict[str, bytes] | None] = [None]
        """What `current` is, or the two of which it is one."""

    def look(self) -> None:
        found = current(self.top)
        assert found in self.readable
        if found == self.readable[-1]:  # it never becomes the former one again
            self.readable = [found]

    def sync(self, killed_at: int) -> None:
        self.readable.append(dict(self.store.contents))
        changes = Changes(self.look, killed_at)
        with changes.observed():
            sync(self.store, ModelFolder(self.top), ONE_THREAD)
        assert changes.is_killed or current(self.top) == self.store.contents
        assert changes.is_killed or "revision" not in changes.unsynced
        self.readable = [current(self.top)]

    @rule(state=STATES)
    def change(self, state: dict[str, bytes]) -> None:
        self.store.contents = dict(state)

    @rule(killed_at=STOPS)
    def sync_killed(self, killed_at: int) -> None:
        self.sync(killed_at)

    @rule()
    def sync_to_the_end(self) -> None:
        self.sync(-1)

    @precondition(lambda self: len(ModelFolder(self.top).names()) > 1)
    @rule(killed_at=st.integers(1, 30))
    def evict(self, killed_at: int) -> None:
        folder = ModelFolder(self.top)
        other = next(each for each in folder.names() if each != folder.current())
        with Changes(self.look, killed_at).observed(), folder.locked():
            folder.evict(other)

    @precondition(lambda self: len(ModelFolder(self.top).names()) > 1)
    @rule(killed_at=st.integers(1, 12))
    def flip(self, killed_at: int) -> None:
        folder = ModelFolder(self.top)
        other = next(each for each in folder.names() if each != folder.current())
        self.readable.append(content(folder.versions / other))
        with Changes(self.look, killed_at).observed(), folder.locked():
            folder.flip(other)
        self.readable = [current(self.top)]

    @invariant()
    def all_revisions_are_whole(self) -> None:
        folder = ModelFolder(self.top)
        assert [folder.damaged(name, ChunkReads()) for name in folder.names()] == [{}] * len(folder.names())

    def teardown(self) -> None:
        self.sync(-1)
        folder = ModelFolder(self.top)
        assert {path.name for path in folder.versions.iterdir()} == set(folder.names())
        assert len(folder.names()) <= ONE_THREAD.keep
        assert [*folder.staging.iterdir(), *(self.top / NOTES / "trash").iterdir()] == []
        shutil.rmtree(self.top.parent)


def test_wherever_the_process_is_killed_readers_find_all_of_one_revision_and_the_next_sync_ends_well() -> None:
    run_state_machine_as_test(KilledFolder, settings=settings(max_examples=15, stateful_step_count=12))


def test_a_sync_publishes_nothing_that_another_one_has_staged_from_older_revisions(tmp_path: Path) -> None:
    """Neither fetches anything, and the first one is killed."""
    with not_killed():
        run(MemoryStore({"a": b"1", "b": b"22"}), tmp_path / "first")
    killed_at, ended = 0, False
    while not ended:
        killed_at += 1
        top = tmp_path / "model"
        shutil.copytree(tmp_path / "first", top, symlinks=True)
        changes = Changes(lambda: None, killed_at)
        with changes.observed():
            sync(MemoryStore({"c": b"22"}), ModelFolder(top), ONE_THREAD)
        ended = not changes.is_killed
        with not_killed():
            run(MemoryStore({"d": b"1"}), top)
        assert current(top) == {"d": b"1"}, killed_at
        shutil.rmtree(top)
    assert killed_at > 10


def test_an_update_killed_at_each_of_its_changes_leaves_one_of_two_states_and_nothing_behind(tmp_path: Path) -> None:
    before = {"same": b"1", "changes": b"2", "goes/away": b"3"}
    after = {"same": b"1", "changes": b"new", "comes/in": b"4"}
    with not_killed():
        for contents in (before, {**before, "more": b"5"}, before):
            run(MemoryStore(contents), tmp_path / "first")
    killed_at, ended = 0, False
    while not ended:
        killed_at += 1
        top = tmp_path / "model"
        shutil.copytree(tmp_path / "first", top, symlinks=True)
        changes = Changes(lambda: None, killed_at)
        with changes.observed():
            sync(MemoryStore(after), ModelFolder(top), ONE_THREAD)
        ended = not changes.is_killed
        assert current(top) in ((after,) if ended else (before, after))
        with not_killed():
            run(MemoryStore(after), top)
        assert current(top) == after
        assert len(list((top / "versions").iterdir())) == 2
        assert list((top / NOTES / "staging").iterdir()) == []
        shutil.rmtree(top)
    assert killed_at > 30
