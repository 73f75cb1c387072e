"""A folder that a store is synced to: who may change it, and how its revisions are named."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.modelsyncs import CONTENTS, FIRST, QUICK, content, contents, run
from tessera.agent.nodefiles import remove_any
from tessera.agent.storage.models.folder import ModelFolder
from tessera.agent.storage.models.mirror import sync_mirror
from tessera.agent.storage.models.opening import open_folder
from tessera.clients.store import MemoryStore, Refused
from tessera.core.storage.models.revisions import StoredObject
from tessera.errors import Conflict, InvalidInput, Unavailable


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


def test_revisions_are_selected_by_the_beginning_of_their_names(tmp_path: Path) -> None:
    store, folder = MemoryStore({"a": b"1"}), ModelFolder(tmp_path)
    with pytest.raises(InvalidInput, match="it has no revision"):
        folder.select("")
    with pytest.raises(InvalidInput, match="it has no revision"):
        folder.select("current")
    first = run(store, tmp_path).revision
    store.contents["a"] = b"2"
    second = run(store, tmp_path).revision
    assert folder.select("") == [second, first]
    assert folder.select(first[:9]) == [first]
    assert folder.select("current") == [second]
    with pytest.raises(InvalidInput, match=f"no revision begins so.*{second[:12]}"):
        folder.select("none")
    with pytest.raises(InvalidInput, match="several revisions begin so"):
        folder.find("")


def test_a_mirror_is_one_revision_by_its_name_alone(tmp_path: Path) -> None:
    name = sync_mirror(MemoryStore(FIRST), tmp_path, QUICK).revision
    mirror = open_folder(tmp_path)
    assert mirror.select("") == mirror.select("current") == mirror.select(name[:5]) == [name]
    with pytest.raises(InvalidInput, match="no revision begins so"):
        mirror.select("none")
    with pytest.raises(Conflict, match="remove the folder"):
        mirror.evict(name)


def test_a_full_disk_is_named_and_what_was_staged_is_freed_other_errors_are_not(tmp_path: Path) -> None:
    folder, staged = ModelFolder(tmp_path), tmp_path / "staged"
    staged.mkdir()
    with pytest.raises(OSError, match="broken"), folder.freeing_if_full(staged):
        raise OSError(5, "broken")
    assert staged.exists()
    with pytest.raises(Unavailable, match="the disk is full"), folder.freeing_if_full(staged):
        raise OSError(28, "No space left on device")
    assert not staged.exists()


@pytest.mark.parametrize("mirror", [False, True], ids=["revisions", "mirror"])
@pytest.mark.parametrize("place", ["", "files", "files/weights", "files/config.json", "journal"])
def test_what_an_earlier_sync_left_is_not_written_to_through_a_link(
    place: str, *, mirror: bool, tmp_path: Path
) -> None:
    """As after a kill: the same is being fetched again."""
    top, elsewhere = tmp_path / "top", tmp_path / "elsewhere"

    class Unreadable(MemoryStore):
        @contextmanager
        def read(self, stored: StoredObject, start: int, stop: int) -> Iterator[Any]:
            if stored.path == "weights/0.bin":
                raise Refused("403 Forbidden")
            with super().read(stored, start, stop) as body:
                yield body

    def fetch(store: MemoryStore) -> None:
        if mirror:
            sync_mirror(store, top, QUICK)
        else:
            run(store, top)

    with pytest.raises(Unavailable, match="403"):
        fetch(Unreadable(FIRST))
    (plan,) = (top / ".tessera/staging").iterdir()
    for name in ("0.bin", "weights/0.bin", "files/weights/0.bin"):
        (elsewhere / name).parent.mkdir(parents=True, exist_ok=True)
        (elsewhere / name).write_bytes(b"precious")
    remove_any(plan / place)
    (plan / place).symlink_to(elsewhere / "0.bin" if place in {"files/config.json", "journal"} else elsewhere)
    fetch(MemoryStore(FIRST))
    assert content(elsewhere) == dict.fromkeys(("0.bin", "weights/0.bin", "files/weights/0.bin"), b"precious")
    assert contents(top if mirror else top / "current") == FIRST


def test_what_a_sync_left_frees_what_no_revision_shares(tmp_path: Path) -> None:
    run(MemoryStore(FIRST), tmp_path)
    folder = ModelFolder(tmp_path)
    files = folder.staging / "plan/files"
    files.mkdir(parents=True)
    assert folder.staged_bytes() == 0
    os.link(tmp_path / "current/weights/0.bin", files / "linked")
    assert folder.staged_bytes() == 0
    (files / "own").write_bytes(os.urandom(8192))
    before = os.lstat(files / "own").st_blocks * 512
    assert folder.staged_bytes() == before >= 8192
