"""What a comparison has found stands, whether the disk keeps a record of it or not, until the next one or a fetch."""

import errno
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from harness.kills import not_killed
from harness.modelnode import small_disk
from harness.modelsyncs import run
from tessera.agent.storage.modelcache.disk import ModelDisk
from tessera.agent.storage.models.chunkreads import ChunkReads
from tessera.clients.store import MemoryStore
from tessera.core.storage.models.verifications import Verification

A_WEEK_S = 7 * 86400


def cached(disk: ModelDisk, *contents: bytes) -> list[str]:
    """Fetch revisions of model `m`; return them."""
    with not_killed():
        folder = disk.claim("m")
        return [run(MemoryStore({"a": each}), folder.top, keep=9).revision for each in contents]


def verification(disk: ModelDisk, revision: str) -> Verification:
    """Return what a pass observes."""
    found = disk.observe()
    assert (found.errors, found.remaining) == ({}, {})
    return found.models["m"].verification(revision)


@pytest.fixture
def disk(tmp_path: Path) -> ModelDisk:
    (tmp_path / "not-empty").touch()
    return ModelDisk(tmp_path / "models", most_percent=100)


def test_a_model_that_was_deleted_while_it_was_compared_is_compared_as_any_other_once_it_is_back(
    disk: ModelDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Deleting(ChunkReads):
        def read(self, *arguments: Any) -> memoryview:
            found = super().read(*arguments)
            disk.remove("m")
            return found

    (revision,) = cached(disk, b"right")
    with pytest.raises(FileNotFoundError):
        disk.verify("m", revision, Deleting())
    assert cached(disk, b"right") == [revision]
    now_s = time.time() + A_WEEK_S
    monkeypatch.setattr(time, "time", lambda: now_s)
    assert disk.verify("m", revision, ChunkReads()) == {}
    assert verification(disk, revision) == Verification(now_s)
    disk.model("m").versions.joinpath(revision, "a").write_bytes(b"wrong")
    disk.verify("m", revision, ChunkReads())
    assert verification(disk, revision) == Verification(now_s, ("a",))


def test_a_model_is_removed_also_where_what_was_removed_before_under_its_name_stays(
    disk: ModelDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.unlink

    def unlink(path: Any, *more: Any, **others: Any) -> None:
        if str(path).endswith("a"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        real(path, *more, **others)

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", unlink)
        for _ in range(3):
            cached(disk, b"1")
            with pytest.raises(OSError, match="Input/output error"):
                disk.remove("m")
            found = disk.observe()
            assert (list(found.models), list(found.errors), list(found.remaining)) == ([], [], ["m"])
    disk.observe()
    assert not list(disk.folder.iterdir())


def failing_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next call that opens a path fail."""
    real, failed = os.open, list[str]()

    def opened(name: Any, *more: Any, **others: Any) -> int:
        if str(name) == str(path) and not failed:
            failed.append(str(name))
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(name))
        return real(name, *more, **others)

    monkeypatch.setattr(os, "open", opened)


def test_a_revision_that_could_not_be_compared_waits_for_its_next_turn_unless_another_is_damaged(
    disk: ModelDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = cached(disk, b"1", b"2")
    fetched_s = verification(disk, first).at_s
    now_s = fetched_s + A_WEEK_S
    monkeypatch.setattr(time, "time", lambda: now_s)
    failing_once(disk.model("m").top / ".tessera" / "manifests" / f"{first}.json", monkeypatch)
    with pytest.raises(OSError, match="Input/output error"):
        disk.verify("m", first, ChunkReads())
    assert [verification(disk, each).at_s for each in (first, second)] == [now_s, pytest.approx(fetched_s, abs=60)]
    # What another process, as `tessera models verify`, has found meanwhile counts, too.
    disk.model("m").records.write_verification(first, Verification(fetched_s, ("a",)))
    with monkeypatch.context() as patched:
        failing_once(disk.model("m").top / ".tessera" / "manifests" / f"{first}.json", patched)
        with pytest.raises(OSError, match="Input/output error"):
            disk.verify("m", first, ChunkReads())
    assert verification(disk, first) == Verification(now_s, ("a",))
    disk.model("m").records.write_verification(first, Verification(fetched_s))
    disk.model("m").versions.joinpath(second, "a").write_bytes(b"3")
    assert disk.verify("m", second, ChunkReads()).keys() == {"a"}
    assert verification(disk, first) == Verification(), "they may share the disk's damage"


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mount") is None, reason="root, which mounts")
@pytest.mark.parametrize("ahead_s", [-3600, 3600, 8 * 86400])
def test_damage_that_a_read_only_disk_cannot_record_is_known_and_mended_once_it_can(
    ahead_s: int, tmp_path: Path
) -> None:
    """Whatever the clock showed when the revision was compared before."""
    with small_disk(tmp_path) as remount:
        disk = ModelDisk(tmp_path / "models", most_percent=100)
        other, revision = cached(disk, b"other", b"right")
        folder = disk.model("m")
        folder.records.write_verification(revision, Verification(time.time() + ahead_s))
        path = folder.versions / revision / "a"
        path.write_bytes(b"wrong")
        remount("ro")
        assert disk.verify("m", revision, ChunkReads()).keys() == {"a"}
        found = verification(disk, revision)
        assert found.damaged == ("a",)
        assert found.at_s == pytest.approx(time.time(), abs=60)
        assert not disk.choose("m", revision, "IfGiven")
        assert verification(disk, other) == Verification(), "they may share the damage, so it is due"
        remount("rw")
        assert cached(disk, b"right") == [revision]
        assert (path.read_bytes(), verification(disk, revision).damaged) == (b"right", ())
