"""Packed revisions: images that the kernel mounts, damaged ones, full disks, kills midway, and readers."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from tessera.agent.storage.models.chunkreads import ChunkReads
from tessera.agent.storage.models.folder import ModelFolder
from tessera.agent.storage.models.inuse import revisions_in_use
from tessera.agent.storage.models.packed import damaged_in_image, read_ahead, write_image
from tessera.agent.storage.models.staging import SyncOptions
from tessera.agent.storage.models.sync import Synced, sync
from tessera.clients.disks import ErofsMounts, HostErofsMounts, MemoryErofsMounts
from tessera.clients.store import MemoryStore
from tessera.core.storage.models.erofs import image_layout
from tessera.core.storage.models.revisions import CHUNK_BYTES
from tessera.errors import Conflict, Unavailable, Unsupported

PACKED = SyncOptions(reserve_bytes=0, pack="Always")
FILES = {
    "train/00/a.jpg": b"a" * 5000,
    "train/00/empty": b"",
    "train/01/a.jpg": os.urandom(4096),
    "labels.csv": b"a,b\n",
    "large.bin": os.urandom(CHUNK_BYTES + 17),
    f"train/{'ü' * 120}/{'n' * 255}": b"long",
    "train/a b%+'\"&$(x);\\": b"odd",
    "..a": b"dots",
}
kernel = pytest.mark.skipif(bool(HostErofsMounts().why_not()), reason="root, EROFS and loop devices")


def run(contents: dict[str, bytes], top: Path, images: ErofsMounts, options: SyncOptions = PACKED) -> Synced:
    return sync(MemoryStore(contents), ModelFolder(top, images), options)


def content(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


@pytest.fixture
def top(tmp_path: Path) -> Iterator[Path]:
    """Return a folder whose images are unmounted afterwards."""
    yield tmp_path / "data"
    ModelFolder(tmp_path / "data").unmount_images()


@kernel
def test_the_kernel_reads_what_was_fetched(top: Path) -> None:
    done = run(FILES, top, HostErofsMounts())
    assert content(top / "current") == FILES
    assert done.files == len(FILES)
    with pytest.raises(OSError, match="Read-only file system"):
        (top / "current" / "new").touch()
    plain = run(FILES, top.parent / "plain", MemoryErofsMounts(), msgspec.structs.replace(PACKED, pack="Never"))
    assert plain.revision == done.revision
    image = ModelFolder(top).image(done.revision)
    assert image is not None
    assert read_ahead(image) == image.stat().st_size


@kernel
@pytest.mark.skipif(shutil.which("fsck.erofs") is None, reason="Debian's erofs-utils")
def test_fsck_finds_nothing_wrong(top: Path) -> None:
    many = {f"d{number % 7}/{number:05}": b"x" * (number % 4000) for number in range(3000)}
    done = run({**FILES, **many}, top, HostErofsMounts())
    image = ModelFolder(top).image(done.revision)
    said = subprocess.run(["fsck.erofs", str(image)], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    assert content(top / "current") == {**FILES, **many}


@kernel
def test_an_update_takes_unchanged_files_from_the_image(top: Path) -> None:
    first = run(FILES, top, HostErofsMounts())
    done = run({**FILES, "labels.csv": b"new"}, top, HostErofsMounts())
    assert done.bytes == 3
    assert content(top / "current") == {**FILES, "labels.csv": b"new"}
    assert content(top / "versions" / first.revision) == FILES
    again = run({**FILES, "labels.csv": b"new"}, top, HostErofsMounts())
    assert (again.bytes, again.revision) == (0, done.revision)


@kernel
def test_after_a_reboot_images_are_mounted_again(top: Path) -> None:
    done = run(FILES, top, HostErofsMounts())
    folder = ModelFolder(top)
    assert folder.unmount_images()
    assert not folder.form(done.revision).is_readable
    folder.mount_images()
    assert folder.form(done.revision).is_readable
    assert content(top / "current") == FILES


def test_an_image_that_cannot_be_mounted_is_reported_and_stops_nothing_else(top: Path) -> None:
    images = MemoryErofsMounts()
    first = run({"a": b"1"}, top, images)
    images.refusal = "wrong fs type"
    with pytest.raises(Unavailable, match="wrong fs type"):
        run({"a": b"2"}, top, images)
    folder = ModelFolder(top, images)
    assert folder.current() == first.revision
    (other,) = folder.manifests().keys() - {first.revision}
    with pytest.raises(Unavailable, match="wrong fs type"):
        run({"a": b"2"}, top, images)
    with folder.locked():
        folder.evict(other)
    run({"a": b"2"}, top, images, msgspec.structs.replace(PACKED, pack="Never"))
    assert content(top / "current") == {"a": b"2"}


@kernel
def test_a_folder_may_be_named_from_here(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top.parent.mkdir(exist_ok=True)
    monkeypatch.chdir(top.parent)
    run(FILES, Path(top.name), HostErofsMounts())
    assert content(top / "current") == FILES


@kernel
def test_what_is_read_stays(top: Path) -> None:
    first = run(FILES, top, HostErofsMounts())
    folder = ModelFolder(top)
    with subprocess.Popen(["sleep", "60"], cwd=top / "current" / "train") as reader:
        assert revisions_in_use(folder.versions) == {first.revision: f"in use by process {reader.pid}"}
        with folder.locked(), pytest.raises(Conflict, match="a process reads its image"):
            folder.evict(first.revision)
        assert not folder.unmount_images()
        reader.kill()
    elsewhere = top.parent / "elsewhere"
    elsewhere.mkdir()
    pod = f"mount --bind {top}/versions/{first.revision} {elsewhere}; umount {top}/versions/*; echo; exec sleep 60"
    with subprocess.Popen(["unshare", "--mount", "sh", "-c", pod], stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        reader.stdout.readline()
        assert first.revision in revisions_in_use(folder.versions)
        inside = Path(f"/proc/{reader.pid}/root{elsewhere}/labels.csv")
        with folder.locked():
            folder.evict(first.revision)
        assert inside.read_bytes() == FILES["labels.csv"], "a pod keeps what it has mounted"
        reader.kill()
    assert list(folder.versions.iterdir()) == []


DAMAGE: dict[str, tuple[Callable[[bytes], bytes] | None, int, str]] = {
    "truncated": (lambda data: data[:-4096], 8, "the image is truncated"),
    "its folders changed": (lambda data: data[:4100] + b"\xff" + data[4101:], 8, "the image's folders"),
    "one bit of a file": (lambda data: data.replace(b"a,b\n", b"a,c\n"), 1, "checksum mismatch in bytes 0-3"),
    "gone": (None, 8, "No such file"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_image_is_found_not_mounted_and_replaced(top: Path, case: str) -> None:
    damage, count, words = DAMAGE[case]
    images = MemoryErofsMounts()
    done = run(FILES, top, images)
    folder = ModelFolder(top, images)
    image = folder.image(done.revision)
    assert image is not None
    images.mounts.clear()
    written = image.read_bytes()
    image.unlink()
    if damage is not None:
        image.write_bytes(damage(written))
    found = damaged_in_image(image, folder.records.manifest(done.revision), ChunkReads())
    assert len(found) == count
    assert all(words in problem for problem in found.values())
    folder.mount_images()
    assert bool(images.mounts) == (count == 1)  # a bit of a file is found by --check, as with plain files
    if damage is not None:
        run(FILES, top, images, msgspec.structs.replace(PACKED, check=True))
        assert image.read_bytes() == written
        assert images.is_mounted(folder.versions / done.revision)


def test_a_staged_file_that_changed_is_not_packed(tmp_path: Path) -> None:
    images = MemoryErofsMounts()
    done = run({"a": b"right"}, tmp_path / "data", images)
    manifest = ModelFolder(tmp_path / "data", images).records.manifest(done.revision)
    (tmp_path / "a").write_bytes(b"wrong")
    with pytest.raises(Unavailable, match="checksum mismatch in bytes 0-4"):
        write_image(manifest, tmp_path, tmp_path / "image")
    assert not (tmp_path / "image").exists()


def test_a_kill_midway_leaves_no_image_and_the_next_sync_completes(top: Path) -> None:
    images = MemoryErofsMounts()
    done = run(FILES, top, images)
    folder = ModelFolder(top, images)
    image = folder.image(done.revision)
    assert image is not None
    # Killed after the image was in its place and before it was a revision, or before its manifest was.
    (top / "current").unlink()
    (folder.versions / done.revision).rmdir()
    images.mounts.clear()
    assert folder.manifests() == {}
    with folder.locked():
        assert folder.image(done.revision) is None, "nobody's image is removed"
    assert run(FILES, top, images).revision == done.revision
    assert folder.image(done.revision) is not None


def test_a_node_that_mounts_no_images_reports_it_or_keeps_plain_files(top: Path) -> None:
    images = MemoryErofsMounts("the kernel 5.3 has no EROFS")
    with pytest.raises(Unsupported, match=r"the kernel 5\.3 has no EROFS"):
        run(FILES, top, images)
    many = {f"{number}": b"x" for number in range(1000)}
    done = run(many, top, images, msgspec.structs.replace(PACKED, pack="Auto"))
    assert ModelFolder(top, images).image(done.revision) is None
    assert content(top / "current") == many


def test_layout_is_as_long_as_the_image(top: Path) -> None:
    images = MemoryErofsMounts()
    done = run(FILES, top, images)
    image = ModelFolder(top, images).image(done.revision)
    assert image is not None
    layout = image_layout((path, len(data)) for path, data in FILES.items())
    assert image.stat().st_size == layout.size
    data = image.read_bytes()
    assert {each.path: data[each.offset :][: each.size] for each in layout.files} == FILES
