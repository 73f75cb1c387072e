"""What is known of revisions: manifests, verifications, pins."""

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.modelsyncs import run
from tessera.agent.nodefiles import read_regular
from tessera.agent.storage.models import records as models_records
from tessera.agent.storage.models.folder import ModelFolder
from tessera.clients.store import MemoryStore
from tessera.core.storage.models.verifications import Verification
from tessera.errors import InvalidInput, Unavailable


def test_pinned_revisions_stay(tmp_path: Path) -> None:
    store = MemoryStore({"a": b"1"})
    first = run(store, tmp_path).revision
    ModelFolder(tmp_path).records.pin(first, pinned=True)
    for number in range(2, 5):
        store.contents["a"] = b"%d" % number
        run(store, tmp_path, keep=1)
    assert first in ModelFolder(tmp_path).manifests()


def test_exactly_the_named_revisions_are_pinned(tmp_path: Path) -> None:
    records, (a, b, c) = ModelFolder(tmp_path).records, (each * 64 for each in "abc")
    records.pin_exactly([a])  # before the first sync there is nothing to pin
    run(MemoryStore({"a": b"1"}), tmp_path)
    (tmp_path / ".tessera" / "pins" / "lost+found").mkdir()  # of somebody else
    for names in ([a, b], [b, c], [c]):
        records.pin_exactly(names)
        assert [each for each in (a, b, c) if records.is_pinned(each)] == names
    records.pin_exactly([a], unreadable=[b, c])
    assert [records.is_pinned(each) for each in (a, b, c)] == [True, False, True], "of the unreadable the pins stay"


def test_a_manifest_of_another_revision_is_refused_and_the_records_go_with_the_revision(tmp_path: Path) -> None:
    store, folder = MemoryStore({"a": b"1"}), ModelFolder(tmp_path)
    first = run(store, tmp_path).revision
    store.contents["a"] = b"2"
    second = run(store, tmp_path).revision
    manifests = tmp_path / ".tessera" / "manifests"
    os.utime(manifests / f"{first}.json", (4e9, 4e9))  # the clock of files is coarse
    assert folder.records.names() == [first, second]
    (manifests / f"{first}.json").write_bytes((manifests / f"{second}.json").read_bytes())
    with pytest.raises(InvalidInput, match=f"it has the manifest of {second}, not of {first}"):
        folder.records.manifest(first)
    with pytest.raises(InvalidInput, match="it has the manifest of"):
        folder.refuse_broken()
    assert folder.names() == [second]
    folder.records.remove(first)
    assert (folder.records.has(first), folder.records.verification(first)) == (False, Verification())


def test_what_a_kill_left_beside_the_records_is_removed_by_the_next_that_locks_the_folder(tmp_path: Path) -> None:
    revision = run(MemoryStore({"a": b"1"}), tmp_path).revision
    notes = tmp_path / ".tessera"
    left = [notes / "manifests" / f".{revision}.json.17", notes / "verified" / f".{revision}.json.17"]
    left += [notes / "manifests" / f"{revision}.new", notes / "verified" / f"{'0' * 64}.json"]
    for path in left:
        path.touch()
    with ModelFolder(tmp_path).locked():
        assert [path for path in left if path.exists()] == []
    assert ModelFolder(tmp_path).names() == [revision]


def _make_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's path has at most 107 bytes
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.chdir(here)


def _make_large(path: Path) -> None:
    path.touch()
    os.truncate(path, (1 << 30) + 1)


NO_MANIFESTS: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a link to a device without end": lambda path: path.symlink_to("/dev/zero"),
    "a folder": lambda path: (path / "x").mkdir(parents=True),
    "a socket": _make_socket,
    "a file of more than a GiB": _make_large,
}


@pytest.mark.parametrize("current", [True, False], ids=["current", "former"])
@pytest.mark.parametrize("other", NO_MANIFESTS)
def test_what_is_no_manifest_is_named_not_waited_for_and_replaced_by_the_next_sync(
    other: str, current: bool, tmp_path: Path
) -> None:
    store, folder = MemoryStore({"a": b"1"}), ModelFolder(tmp_path)
    first = run(store, tmp_path).revision
    store.contents["a"] = b"2"
    second = run(store, tmp_path).revision
    broken, whole = (second, first) if current else (first, second)
    for kind in ("manifests", "verified"):
        path = tmp_path / ".tessera" / kind / f"{broken}.json"
        path.unlink()
        NO_MANIFESTS[other](path)
    with pytest.raises(
        InvalidInput, match=r"it (is not a regular file|has more than a GiB): sync again, which replaces it"
    ):
        folder.refuse_broken()
    assert [each.revision for each in folder.revisions()] == [whole]
    assert folder.records.verification(broken) == Verification()
    assert run(store, tmp_path).revision == second
    folder.refuse_broken()
    assert (folder.current(), set(folder.names())) == (second, {first, second} if current else {second})


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOMEM, errno.EACCES, errno.EMFILE])
@pytest.mark.parametrize("which", [0, 1], ids=["former", "current"])
def test_a_manifest_that_the_disk_does_not_give_costs_no_revision_and_stops_the_sync_if_it_is_the_current_one(
    which: int, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore({"a": b"1"})
    first = run(store, tmp_path).revision
    store.contents["a"] = b"2"
    second = run(store, tmp_path).revision
    ModelFolder(tmp_path).records.pin(first, pinned=True)

    def fail(path: Path) -> bytes:
        if (first, second)[which] in path.name:
            raise OSError(number, os.strerror(number), str(path))
        return read_regular(path)

    store.contents["a"] = b"3"
    with monkeypatch.context() as failing:
        failing.setattr(models_records, "read_regular", fail)
        with pytest.raises((OSError, Unavailable), match=os.strerror(number)):
            ModelFolder(tmp_path).refuse_broken()
        if which == 1:
            with pytest.raises(OSError, match=os.strerror(number)):
                run(store, tmp_path)
        else:
            assert ModelFolder(tmp_path).current() != run(store, tmp_path, keep=2).revision
    assert {first, second} <= set(ModelFolder(tmp_path).names())


def test_what_somebody_else_put_among_the_records_stops_no_sync(tmp_path: Path) -> None:
    store = MemoryStore({"a": b"1"})
    revision = run(store, tmp_path).revision
    notes = tmp_path / ".tessera"
    for kind in ("manifests", "verified", "images"):
        (notes / kind / "foreign" / "x").mkdir(parents=True)
    (notes / "staging" / "foreign").touch()
    assert run(store, tmp_path).revision == revision
    assert list(notes.rglob("foreign")) == []
