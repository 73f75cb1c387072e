"""Files compared with their manifest."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.modelsyncs import CONTENTS, LARGE, content, run
from tessera.agent.storage.models.chunkreads import ChunkReads
from tessera.agent.storage.models.digests import start_checksum
from tessera.agent.storage.models.folder import ModelFolder
from tessera.agent.storage.models.plain import damaged_files
from tessera.clients.store import MemoryStore
from tessera.core.storage.models.revisions import CHUNK_BYTES
from tessera.core.storage.models.verifications import Verification
from tessera.errors import Unavailable


def test_damage_is_found_and_mended(tmp_path: Path) -> None:
    store = MemoryStore(CONTENTS)
    revision = run(store, tmp_path).revision
    folder = ModelFolder(tmp_path)
    with (tmp_path / "current/weights/a b+%.bin").open("r+b") as file:
        file.seek(CHUNK_BYTES)
        file.write(bytes([LARGE[CHUNK_BYTES] ^ 1]))
    (tmp_path / "current/config.json").unlink()
    found = damaged_files(folder.versions / revision, folder.records.manifest(revision), ChunkReads())
    assert found.keys() == {"config.json", "weights/a b+%.bin"}
    assert run(store, tmp_path, check=True).revision == revision
    assert content(tmp_path / "current") == CONTENTS


def test_known_damage_is_mended_by_the_next_sync_and_never_linked_to(tmp_path: Path) -> None:
    store, folder = MemoryStore(CONTENTS), ModelFolder(tmp_path)
    first = run(store, tmp_path).revision
    assert folder.records.verification(first).at_s > 0, "what was fetched is verified"
    store.contents["config.json"] = b"second"
    second = run(store, tmp_path).revision
    with (tmp_path / "current/weights/a b+%.bin").open("r+b") as file:  # the same file in both
        file.write(bytes([LARGE[0] ^ 1]))
    assert run(store, tmp_path).bytes == 0, "an ordinary sync reads nothing that is there"
    assert folder.damaged(first, ChunkReads()).keys() == {"weights/a b+%.bin"}
    assert folder.records.verification(first).damaged == ("weights/a b+%.bin",)
    assert folder.records.verification(second).at_s == 0.0, "it may share the file"
    assert folder.damaged(first, None).keys() == {"weights/a b+%.bin"}
    assert folder.damaged(second, ChunkReads()).keys() == {"weights/a b+%.bin"}
    done = run(store, tmp_path)
    assert (done.revision, done.bytes) == (second, len(LARGE))
    assert content(tmp_path / "current")["weights/a b+%.bin"] == LARGE
    assert (folder.records.verification(second).damaged, folder.damaged(second, ChunkReads())) == ((), {})
    store.contents["config.json"] = b"third"
    assert run(store, tmp_path, keep=3).bytes == len(b"third")
    assert content(tmp_path / "current")["weights/a b+%.bin"] == LARGE
    assert {each.revision: each.damaged for each in folder.revisions()}[first] == ("weights/a b+%.bin",)
    folder.evict(first)
    assert folder.records.verification(first) == Verification()


def test_what_is_removed_while_it_is_read_is_not_damaged(tmp_path: Path) -> None:
    store, folder = MemoryStore(CONTENTS), ModelFolder(tmp_path)
    first = run(store, tmp_path).revision
    store.contents["config.json"] = b"second"
    run(store, tmp_path)

    class Evicting(ChunkReads):
        def open(self, path: str) -> int:
            if (folder.versions / first).exists():
                folder.evict(first)
            return super().open(path)

    with pytest.raises(FileNotFoundError, match="evicted meanwhile"):
        folder.damaged(first, Evicting())
    assert not (tmp_path / ".tessera/verified" / f"{first}.json").exists()


def test_gits_own_ids_of_files_are_verified(tmp_path: Path) -> None:
    for data in (b"", b"content", LARGE):
        (tmp_path / "file").write_bytes(data)
        said = subprocess.run(("git", "hash-object", tmp_path / "file"), check=True, capture_output=True, text=True)
        checksum = start_checksum("git:", len(data))
        assert checksum
        checksum.update(memoryview(data))
        assert checksum.hexdigest() == said.stdout.strip()


OTHERS: dict[str, Callable[[Path], None]] = {
    "a pipe": os.mkfifo,
    "a link to a device without end": lambda path: path.symlink_to("/dev/zero"),
    "a folder": Path.mkdir,
}


@pytest.mark.parametrize("other", OTHERS)
def test_what_is_no_regular_file_is_damaged_not_waited_for_and_mended(other: str, tmp_path: Path) -> None:
    store = MemoryStore(CONTENTS)
    revision = run(store, tmp_path).revision
    folder, path = ModelFolder(tmp_path), tmp_path / "current/config.json"
    path.unlink()
    OTHERS[other](path)
    with pytest.raises(Unavailable, match=r"config\.json: not a regular file: sync again"):
        folder.warm(revision)
    assert folder.damaged(revision, ChunkReads()).keys() == {"config.json"}
    run(store, tmp_path)
    assert (content(tmp_path / "current"), folder.damaged(revision, ChunkReads())) == (CONTENTS, {})
    assert folder.warm(revision) == sum(map(len, CONTENTS.values()))


def a_link(path: Path, elsewhere: Path) -> None:
    path.symlink_to(elsewhere)


def a_file(path: Path, _elsewhere: Path) -> None:
    path.write_bytes(b"")


def a_pipe(path: Path, _elsewhere: Path) -> None:
    os.mkfifo(path)


DEEP = {"config.json": b"{}", "sub/deep/x": b"weights", "sub/y": b"more"}


@pytest.mark.parametrize("other", [a_link, a_file, a_pipe])
@pytest.mark.parametrize("folder", ["", "sub", "sub/deep"])
@pytest.mark.parametrize("update", [False, True], ids=["same", "update"])
def test_what_is_in_place_of_a_folder_is_damage_and_replaced_and_nothing_is_written_through_it(
    folder: str, other: Callable[[Path, Path], None], *, update: bool, tmp_path: Path
) -> None:
    top, elsewhere, store = tmp_path / "top", tmp_path / "elsewhere", MemoryStore(DEEP)
    revision = run(store, top).revision
    opened, replaced = ModelFolder(top), top / "versions" / revision / folder
    shutil.copytree(replaced, elsewhere)  # of the same sizes: nothing but the link shows
    for name in ("x", "y"):
        for parent in (elsewhere, elsewhere / "deep"):
            if not (parent / name).exists():
                (parent / name / "precious").mkdir(parents=True)

    def outside() -> tuple[dict[str, bytes], dict[Path, int]]:
        return content(elsewhere), {path: path.stat().st_ino for path in elsewhere.rglob("*")}

    before = outside()
    shutil.rmtree(replaced)
    other(replaced, elsewhere)
    assert opened.select("") == [revision]
    inside = {path for path in DEEP if path.startswith(folder)}
    assert opened.damaged(revision, ChunkReads()).keys() == opened.damaged(revision, None).keys() == inside
    wanted = {**DEEP, "config.json": b"new"} if update else DEEP
    done = run(MemoryStore(wanted), top)
    assert (content(top / "current"), opened.damaged(done.revision, ChunkReads())) == (wanted, {})
    assert outside() == before
    assert all(path.stat().st_nlink == 1 for path in elsewhere.rglob("*") if path.is_file()), "none is reused"
    run(MemoryStore(DEEP), top)
    assert (content(top / "current"), opened.damaged(revision, ChunkReads())) == (DEEP, {})
    assert not any(path.is_symlink() for path in (top / "versions").rglob("*"))


def test_a_link_to_the_same_folder_of_another_revision_is_replaced_too(tmp_path: Path) -> None:
    store = MemoryStore(DEEP)
    first = run(store, tmp_path).revision
    store.contents["config.json"] = b"new"
    second = run(store, tmp_path).revision
    folder = ModelFolder(tmp_path)
    shutil.rmtree(folder.versions / second / "sub")
    (folder.versions / second / "sub").symlink_to(folder.versions / first / "sub")
    assert folder.damaged(second, None).keys() == {"sub/deep/x", "sub/y"}
    run(store, tmp_path)
    assert folder.damaged(second, ChunkReads()) == folder.damaged(first, ChunkReads()) == {}
