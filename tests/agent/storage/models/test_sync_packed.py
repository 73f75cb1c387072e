"""Syncs of packed revisions, on nodes that mount images, mount none any more, or cannot unmount one."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from harness.kills import Changes, not_killed
from harness.modelsyncs import QUICK, content
from tessera.agent.storage.models.folder import ModelFolder
from tessera.agent.storage.models.sync import Synced, sync
from tessera.clients.disks import MemoryErofsMounts
from tessera.clients.store import MemoryStore
from tessera.errors import Unavailable, Unsupported

CONTENTS = {"a": b"1" * 9000, "folder/b": b"2", "empty": b""}
WITHOUT = "the kernel 6.9 has no EROFS"


class HangingMounts(MemoryErofsMounts):
    """Mounts, of which some cannot be unmounted."""

    hanging: Path | None = None

    def unmount(self, folder: Path) -> bool:
        """Forget a mount, if it does not hang."""
        if folder == self.hanging:
            raise Unavailable(f"umount {folder}", found="timed out after 60 s", hint="look for disk errors")
        return super().unmount(folder)


def run(contents: dict[str, bytes], top: Path, mounts: MemoryErofsMounts, **options: object) -> Synced:
    with not_killed():
        return sync(MemoryStore(contents), ModelFolder(top, mounts), msgspec.structs.replace(QUICK, **options))


@pytest.mark.parametrize("is_busy", [True, False], ids=["read", "hanging"])
@pytest.mark.parametrize("manifest", ["whole", "broken", "gone"])
def test_a_former_revision_whose_image_cannot_be_unmounted_keeps_nothing_else(
    manifest: str, is_busy: bool, tmp_path: Path
) -> None:
    mounts = HangingMounts(is_busy=lambda folder: is_busy and folder == former)
    former = tmp_path / "versions" / run({"a": b"1"}, tmp_path, mounts, pack="Always").revision
    mounts.hanging = None if is_busy else former
    for number in range(2, 5):
        last = run({"a": b"%d" % number}, tmp_path, mounts, pack="Always", keep=1).revision
        assert ModelFolder(tmp_path, mounts).current() == last
        assert {each.name for each in former.parent.iterdir()} == {former.name, last}
        path = tmp_path / ".tessera/manifests" / f"{former.name}.json"
        match manifest:
            case "broken":
                path.write_bytes(b"broken")
            case "gone":
                path.unlink(missing_ok=True)


def test_another_revision_makes_room_in_place_of_one_whose_image_cannot_be_unmounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = HangingMounts()
    first, _, third = (
        run({"a": os.urandom(8 << 20)}, tmp_path, mounts, pack="Always", keep=3).revision for _ in range(3)
    )
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=0, f_frsize=4096))
    mounts.hanging = tmp_path / "versions" / first
    last = run({"a": os.urandom(6 << 20)}, tmp_path, mounts, keep=3).revision
    assert {*ModelFolder(tmp_path, mounts).names()} == {first, third, last}
    with pytest.raises(Unavailable, match=rf"{first[:12]} \(cannot be removed: .*timed out after 60 s"):
        run({"a": os.urandom(9 << 20)}, tmp_path, mounts, keep=3)


@pytest.mark.parametrize("pack", ["Auto", "Never"])
def test_where_images_are_mounted_no_more_a_sync_makes_an_image_plain_files_without_fetching(
    pack: str, tmp_path: Path
) -> None:
    packed = run(CONTENTS, tmp_path, MemoryErofsMounts(), pack="Always").revision
    without = MemoryErofsMounts(WITHOUT)
    with pytest.raises(Unsupported, match=rf"{packed}.erofs: {WITHOUT}: do not pack: the next sync makes it plain"):
        run(CONTENTS, tmp_path, without, pack="Always")
    found = run(CONTENTS, tmp_path, without, pack=pack)
    assert (found.revision, found.bytes) == (packed, 0)
    assert content(tmp_path / "current") == CONTENTS
    folder = ModelFolder(tmp_path, without)
    assert (folder.image(packed), folder.form(packed).has_plain_files, folder.damaged(packed, None)) == (None, True, {})


def test_where_images_are_mounted_a_revision_keeps_its_form(tmp_path: Path) -> None:
    mounts = MemoryErofsMounts()
    packed = run(CONTENTS, tmp_path, mounts, pack="Always").revision
    for again in (mounts, MemoryErofsMounts()):  # as it is, and after a reboot
        assert run(CONTENTS, tmp_path, again).revision == packed
        assert ModelFolder(tmp_path, again).image(packed) is not None
    mounts.problem = "only root mounts images"  # it is mounted
    assert run(CONTENTS, tmp_path, mounts).revision == packed
    assert ModelFolder(tmp_path, mounts).image(packed) is not None


def test_of_a_damaged_image_what_is_plain_is_fetched(tmp_path: Path) -> None:
    packed = run(CONTENTS, tmp_path, MemoryErofsMounts(), pack="Always").revision
    without = MemoryErofsMounts(WITHOUT)
    image = ModelFolder(tmp_path, without).image(packed)
    assert image is not None
    image.chmod(0o644)
    damaged = image.read_bytes().replace(b"1" * 9000, b"0" * 9000)
    image.write_bytes(damaged)
    with pytest.raises(Unavailable, match="sync --check"):
        run(CONTENTS, tmp_path, without)
    assert run(CONTENTS, tmp_path, without, check=True).bytes == 9000
    assert content(tmp_path / "current") == CONTENTS


def test_a_process_that_is_killed_while_it_makes_an_image_plain_files_shows_readers_all_or_none(tmp_path: Path) -> None:
    first, top = tmp_path / "first", tmp_path / "model"
    packed = run(CONTENTS, first, MemoryErofsMounts(), pack="Always").revision
    killed_at, ended = 0, False

    def look() -> None:
        folder = ModelFolder(top, MemoryErofsMounts(WITHOUT))
        assert not folder.form(packed).is_readable or content(folder.versions / packed) == CONTENTS

    while not ended:
        killed_at += 1
        shutil.copytree(first, top, symlinks=True)
        changes = Changes(look, killed_at)
        with changes.observed():
            sync(MemoryStore(CONTENTS), ModelFolder(top, MemoryErofsMounts(WITHOUT)), QUICK)
        ended = not changes.is_killed
        assert run(CONTENTS, top, MemoryErofsMounts(WITHOUT)).revision == packed
        assert content(top / "current") == CONTENTS
        assert list((top / ".tessera/images").iterdir()) == []
        shutil.rmtree(top)
    assert killed_at > 10
