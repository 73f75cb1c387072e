"""The folder of a node's models, without an agent."""

import errno
from pathlib import Path

import pytest

from harness.modelnode import fail_at
from tessera.agent.storage.modelcache import ModelDisk
from tessera.agent.storage.models.staging import SyncOptions
from tessera.agent.storage.models.sync import sync
from tessera.clients.store import MemoryStore
from tessera.core.storage.models.cachedmodels import ModelOnDisk
from tessera.errors import InvalidInput, Unavailable


@pytest.mark.parametrize(("inside", "is_ours"), [((".tessera/",), True), ((".tessera/x",), False), (("x",), False)])
def test_a_folder_whose_claim_was_interrupted_is_claimed(
    tmp_path: Path, inside: tuple[str, ...], is_ours: bool
) -> None:
    (tmp_path / "file").touch()
    top = tmp_path / "models/llama"
    for each in inside:
        (top / each).parent.mkdir(parents=True, exist_ok=True)
        (top / each).mkdir(exist_ok=True)
    disk = ModelDisk(tmp_path / "models")
    if is_ours:
        disk.claim("llama")
        assert disk.observe() == ({"llama": ModelOnDisk("", ())}, {}, {}, set())
    else:
        with pytest.raises(InvalidInput, match="did not make this folder"):
            disk.claim("llama")


@pytest.mark.parametrize("is_evicted", [True, False])
def test_a_manifest_that_cannot_be_read_is_a_revision_s_only_while_that_has_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_evicted: bool
) -> None:
    (tmp_path / "file").touch()
    disk, store = ModelDisk(tmp_path / "models", most_percent=100), MemoryStore({"a": b"1"})
    folder = disk.claim("llama")
    revisions = [sync(store, folder, SyncOptions()).revision]
    store.contents["a"] = b"22"
    revisions.append(sync(store, folder, SyncOptions()).revision)
    disk.pin("llama", [revisions[0]])
    fail_at(f"manifests/{revisions[0]}.json", errno.EBADMSG, monkeypatch)
    if is_evicted:
        folder.evict(revisions[0])
    found, errors, *_ = disk.observe()
    assert (found["llama"].revisions, errors) == ((revisions[1],), {})
    assert [*found["llama"].unreadable] == ([] if is_evicted else [revisions[0]])
    assert folder.records.is_pinned(revisions[0]) is not is_evicted


def test_below_the_mount_point_of_a_disk_that_was_unmounted_no_model_is_made(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    with pytest.raises(Unavailable, match=r"is empty and nothing is mounted there: run `tessera disks apply`"):
        ModelDisk(tmp_path / "disk" / "models").claim("llama")
    assert list((tmp_path / "disk").iterdir()) == []


def test_what_a_removal_has_left_goes_at_the_next_look_but_not_of_a_model_at_which_a_process_works(
    tmp_path: Path,
) -> None:
    (tmp_path / "not-empty").touch()
    disk = ModelDisk(tmp_path / "models", most_percent=100)
    left = {each: disk.claim(each).top / ".tessera" / "trash" / "1" for each in ("fetched", "locked", "other")}
    for path in (*left.values(), *(disk.folder / each for each in (f".removed-new.{'1' * 32}", ".removed-old"))):
        path.mkdir(parents=True)
        (path / "file").touch()
    with disk.model("locked").locked():
        left["locked"].mkdir()
        found = disk.observe("fetched")
        assert (found.removed, found.remaining, found.errors) == ({"other", "new", "old"}, {}, {})
        assert [each for each, path in left.items() if path.exists()] == ["fetched", "locked"]
    assert disk.observe().removed == {"fetched", "locked"}
    assert sorted(each.name for each in disk.folder.iterdir()) == sorted(left)
