"""A sync end to end: the folder that readers see, resumed and damaged copies, stores that fail."""

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from harness.flakys3 import FlakyS3
from tessera.agent.storage.models.digests import start_checksum
from tessera.agent.storage.models.folder import ModelFolder
from tessera.agent.storage.models.reading import TransferLimits
from tessera.agent.storage.models.sync import Synced, SyncOptions, sync
from tessera.agent.storage.models.verify import damaged_files
from tessera.clients.store import MemoryStore, Store, open_store
from tessera.clients.store.s3 import S3Settings, S3Store, utc_now
from tessera.core.storage.models.retries import Patience
from tessera.core.storage.models.revisions import CHUNK_BYTES
from tessera.errors import Conflict, InvalidInput, TesseraError, Unavailable

LARGE = os.urandom(2 * CHUNK_BYTES + 12_345)
CONTENTS = {"config.json": b"{}", "empty": b"", "weights/a b+%.bin": LARGE}
MANY = {f"small/{number:03}": os.urandom(999) for number in range(150)}
QUICK = SyncOptions(
    limits=TransferLimits(Patience(stall_s=2.0, give_up_s=5.0, first_wait_s=0.01, longest_wait_s=0.1)), reserve_bytes=0
)


@pytest.fixture
def server() -> Iterator[FlakyS3]:
    with FlakyS3(CONTENTS) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def s3(server: FlakyS3) -> Store:
    address = f"http://127.0.0.1:{server.server_port}"
    return S3Store("models", "m", S3Settings(address, access_key="a", secret_key="b", timeout_s=2.0), utc_now)


def run(store: Store, top: Path, **options: object) -> Synced:
    try:
        return sync(store, ModelFolder(top), msgspec.structs.replace(QUICK, **options))
    finally:
        store.close()


def content(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


def test_a_revision_is_fetched_once(tmp_path: Path, server: FlakyS3) -> None:
    first = run(s3(server), tmp_path)
    assert content(tmp_path / "current") == CONTENTS
    assert (first.files, first.bytes) == (3, sum(map(len, CONTENTS.values())))
    assert first.requests == 6 - 1  # a listing, three chunks, a small file; nothing is asked for an empty one
    again = run(s3(server), tmp_path)
    assert (again.revision, again.bytes, again.requests) == (first.revision, 0, 1)


@pytest.mark.parametrize("fault", ["503", "cut", "stall"])
def test_faults_that_pass_are_outlasted(fault: str, tmp_path: Path, server: FlakyS3) -> None:
    server.fault = lambda number: fault if number <= 3 else ""
    run(s3(server), tmp_path)
    assert content(tmp_path / "current") == CONTENTS


@pytest.mark.parametrize(
    ("fault", "want"),
    [("503", "status 503"), ("flip", "checksum"), ("length", "bytes where"), ("stall", "nothing came|too early")],
)
def test_faults_that_stay_leave_the_former_revision(fault: str, want: str, tmp_path: Path, server: FlakyS3) -> None:
    run(s3(server), tmp_path)
    server.contents = {"config.json": b"new", "more": LARGE[:-1]}
    server.fault = lambda _number: fault
    with pytest.raises(TesseraError, match=want) as caught:
        run(s3(server), tmp_path)
    assert "config.json" in caught.value.subject or "more" in caught.value.subject
    assert content(tmp_path / "current") == CONTENTS
    server.fault = lambda _number: ""
    run(s3(server), tmp_path)
    assert content(tmp_path / "current") == server.contents


@pytest.mark.parametrize("fault", ["503", "cut", "stall", "length"])
def test_faults_are_outlasted_where_many_small_objects_are_asked_for_ahead(
    fault: str, tmp_path: Path, server: FlakyS3
) -> None:
    server.contents = {**MANY, **CONTENTS}
    server.fault = lambda number: fault if number in {1, 3, 77} else ""
    if fault == "length":  # another length is another object
        with pytest.raises(Conflict, match="bytes where"):
            run(s3(server), tmp_path)
        server.fault = lambda _number: ""
    run(s3(server), tmp_path)
    assert content(tmp_path / "current") == server.contents


def test_many_small_objects_are_each_asked_for_once_and_go_on_where_they_were_cut_off(
    tmp_path: Path, server: FlakyS3
) -> None:
    server.contents = dict(MANY)
    server.fault = lambda number: "503" if number > 60 else ""
    with pytest.raises(Unavailable, match="503"):
        run(s3(server), tmp_path, limits=TransferLimits(Patience(give_up_s=0.5, first_wait_s=0.1)))
    assert not (tmp_path / "current").exists()
    server.fault = lambda _number: ""
    server.gets = 0
    done = run(s3(server), tmp_path)
    assert done.requests == server.gets + 1 == done.bytes // len(MANY["small/000"]) + 1  # the listing
    assert 0 < server.gets < len(MANY)
    assert content(tmp_path / "current") == MANY


def test_an_empty_object_of_a_store_whose_etags_are_no_checksums_is_no_error(tmp_path: Path, server: FlakyS3) -> None:
    server.encrypted = True
    run(s3(server), tmp_path)
    assert content(tmp_path / "current") == CONTENTS


def test_one_damaged_object_of_many_leaves_no_revision(tmp_path: Path, server: FlakyS3) -> None:
    server.contents = dict(MANY)
    server.fault = lambda number: "flip" if number == 77 else ""
    with pytest.raises(Unavailable, match="checksum"):
        run(s3(server), tmp_path)
    assert not (tmp_path / "current").exists()
    run(s3(server), tmp_path)
    assert content(tmp_path / "current") == MANY


def test_an_object_that_changes_meanwhile_is_noticed(tmp_path: Path, server: FlakyS3) -> None:
    def change(number: int) -> str:
        if number == 2:
            server.contents = dict.fromkeys(CONTENTS, LARGE[1:])
        return ""

    server.fault = change
    with pytest.raises(Conflict, match="changed while"):
        run(s3(server), tmp_path, limits=TransferLimits(QUICK.limits.patience, threads=1))
    assert not (tmp_path / "current").exists()


def test_a_sync_goes_on_where_it_was_cut_off(tmp_path: Path, server: FlakyS3) -> None:
    server.fault = lambda number: "503" if number > 2 else ""
    with pytest.raises(Unavailable):
        run(s3(server), tmp_path, limits=TransferLimits(QUICK.limits.patience, threads=1))
    server.fault = lambda _number: ""
    server.gets = 0
    done = run(s3(server), tmp_path)
    assert done.bytes == sum(map(len, CONTENTS.values())) - CHUNK_BYTES - len(CONTENTS["config.json"])
    assert content(tmp_path / "current") == CONTENTS


def test_a_dead_endpoint_is_named(tmp_path: Path) -> None:
    store = open_store("s3://models/m", {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"})
    with pytest.raises(Unavailable, match=r"s3://models/m: 127\.0\.0\.1:1"):
        run(store, tmp_path)


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


def test_pinned_revisions_stay(tmp_path: Path) -> None:
    store = MemoryStore({"a": b"1"})
    first = run(store, tmp_path).revision
    ModelFolder(tmp_path).pin(first, pinned=True)
    for number in range(2, 5):
        store.contents["a"] = b"%d" % number
        run(store, tmp_path, keep=1)
    assert first in ModelFolder(tmp_path).manifests()


def test_an_empty_listing_replaces_nothing(tmp_path: Path) -> None:
    store = MemoryStore({"a": b"1"})
    run(store, tmp_path)
    store.contents.clear()
    with pytest.raises(Unavailable, match="no objects"):
        run(store, tmp_path)
    assert content(tmp_path / "current") == {"a": b"1"}


def test_a_disk_without_room_is_found_before_anything_is_fetched(tmp_path: Path) -> None:
    store = MemoryStore(CONTENTS)
    with pytest.raises(Unavailable, match="too little"):
        run(store, tmp_path, reserve_bytes=2**60)
    assert store.requests == 1


def test_damage_is_found_and_mended(tmp_path: Path) -> None:
    store = MemoryStore(CONTENTS)
    revision = run(store, tmp_path).revision
    folder = ModelFolder(tmp_path)
    with (tmp_path / "current/weights/a b+%.bin").open("r+b") as file:
        file.seek(CHUNK_BYTES)
        file.write(bytes([LARGE[CHUNK_BYTES] ^ 1]))
    (tmp_path / "current/config.json").unlink()
    found = damaged_files(folder.versions / revision, folder.manifest(revision), content=True)
    assert found.keys() == {"config.json", "weights/a b+%.bin"}
    assert run(store, tmp_path, check=True).revision == revision
    assert content(tmp_path / "current") == CONTENTS


def test_a_bandwidth_limit_holds_in_each_second(tmp_path: Path) -> None:
    rate = 400 * 1024
    limits = TransferLimits(QUICK.limits.patience, bytes_per_second=rate)
    done = run(MemoryStore({"a": LARGE[: rate * 3 // 2]}), tmp_path, limits=limits)
    assert done.seconds > 1
    assert rate / 2 < done.peak_bytes_per_second <= rate * 1.4  # a quarter of a second's may come ahead


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


def test_gits_own_ids_of_files_are_verified(tmp_path: Path) -> None:
    for data in (b"", b"content", LARGE):
        (tmp_path / "file").write_bytes(data)
        said = subprocess.run(("git", "hash-object", tmp_path / "file"), check=True, capture_output=True, text=True)
        checksum = start_checksum("git:", len(data))
        assert checksum
        checksum.update(memoryview(data))
        assert checksum.hexdigest() == said.stdout.strip()


def test_after_a_flipped_bit_only_that_file_is_fetched_again(tmp_path: Path, server: FlakyS3) -> None:
    server.flipped = "config.json"
    with pytest.raises(Unavailable, match="content whose checksum is"):
        run(s3(server), tmp_path)
    server.flipped = ""
    assert run(s3(server), tmp_path).bytes == len(CONTENTS["config.json"])
    assert content(tmp_path / "current") == CONTENTS


def test_a_bit_that_flipped_in_an_attempt_that_was_cut_off_is_no_failure_of_the_next(
    tmp_path: Path, server: FlakyS3
) -> None:
    """The first attempt ends before it could compare; its journal says that what it has is what came."""
    several = {f"{number}.bin": os.urandom(200_000) for number in range(30)}
    server.contents = several
    server.flipped = "0.bin"
    server.fault = lambda number: "404" if number == len(several) else ""
    with pytest.raises(Unavailable, match="404"):
        run(s3(server), tmp_path)
    server.flipped, server.fault = "", lambda _number: ""
    told = list[tuple[int, int]]()
    store = s3(server)
    done = sync(store, ModelFolder(tmp_path), QUICK, lambda bytes_done, total: told.append((bytes_done, total)))
    store.close()
    assert content(tmp_path / "current") == several
    assert 2 * 200_000 <= done.bytes < 30 * 200_000  # what was not there yet, and what was wrong
    assert told[-1][0] == told[-1][1]


def test_what_the_journal_knows_and_somebody_removed_is_fetched_again(tmp_path: Path, server: FlakyS3) -> None:
    several = {f"{number}.bin": os.urandom(1_000) for number in range(30)}
    server.contents = several
    server.fault = lambda number: "404" if number == len(several) else ""
    with pytest.raises(Unavailable, match="404"):
        run(s3(server), tmp_path)
    (staged,) = (tmp_path / ".tessera/staging").iterdir()
    for path in (staged / "files").iterdir():
        path.unlink()
    server.fault = lambda _number: ""
    assert run(s3(server), tmp_path).bytes == 30_000
    assert content(tmp_path / "current") == several
