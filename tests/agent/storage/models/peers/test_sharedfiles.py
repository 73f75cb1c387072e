"""What is known of an object that comes from a store and from peers: who served what, and whether it is right."""

import hashlib
from pathlib import Path

import pytest

from tessera.agent.storage.models.digests import chunk_digest
from tessera.agent.storage.models.peers.sharedfiles import SharedFile
from tessera.core.storage.models.peers.provenance import EARLIER, STORE
from tessera.core.storage.models.revisions import CHUNK_BYTES, StoredObject

CONTENT = bytes(CHUNK_BYTES) + b"x" * CHUNK_BYTES + b"end"
PARTS = [CONTENT[:CHUNK_BYTES], CONTENT[CHUNK_BYTES : 2 * CHUNK_BYTES], CONTENT[2 * CHUNK_BYTES :]]
SUM = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


@pytest.fixture
def file(tmp_path: Path) -> SharedFile:
    return SharedFile(0, StoredObject("w.bin", len(CONTENT), "etag", SUM), str(tmp_path / "w.bin"))


def take(file: SharedFile, chunk: int, origin: str, content: bytes | None = None) -> None:
    """Let a chunk have come, and be in the checksum."""
    content = PARTS[chunk] if content is None else content
    file.provenance.origins[chunk], file.provenance.digests[chunk] = origin, chunk_digest(content)
    assert file.checksum
    file.checksum.update(memoryview(content))
    file.provenance.summed += 1


def test_it_is_right_when_all_of_it_has_the_stores_checksum(file: SharedFile) -> None:
    found = []
    for chunk, origin in enumerate(("a", STORE, EARLIER)):
        take(file, chunk, origin)
        found.append(file.is_right)
    assert found == [False, False, True]
    assert file.provenance.unproven == {0: "a", 2: EARLIER}
    assert file.as_model_file().checksum == SUM


def test_a_wrong_chunk_is_discarded_with_all_of_its_peer_and_only_a_wrong_one_counts(file: SharedFile) -> None:
    take(file, 0, "a", b"wrong")
    take(file, 1, "a")
    take(file, 2, "b")
    found = [file.is_right]
    assert file.provenance.drop("a") == [0, 1]
    assert file.provenance.unproven == {2: "b"}
    file.restart()
    for chunk in (0, 1, 2):
        take(file, chunk, STORE if chunk < 2 else "b")
    assert [*found, file.is_right] == [False, True]
    assert file.provenance.wrong_peers == {"a": 0}, "what it served of the second chunk is right"


def test_where_the_store_has_no_checksum_only_what_came_from_it_is_right(file: SharedFile) -> None:
    file.provenance.provable = False
    for chunk in range(3):
        take(file, chunk, STORE)
    found = [file.is_right]
    assert file.as_model_file().checksum == ""
    file.provenance.origins[1] = "a"
    assert [*found, file.is_right] == [True, False]


@pytest.mark.parametrize("size", [CHUNK_BYTES, 2 * CHUNK_BYTES])
def test_what_the_store_sent_counts_as_verified_if_its_parts_are_of_the_assumed_size(size: int, tmp_path: Path) -> None:
    whole = hashlib.md5(b"".join(hashlib.md5(each).digest() for each in PARTS)).hexdigest()
    checksum = f"md5-{size}:{whole}-3"
    file = SharedFile(0, StoredObject("w.bin", len(CONTENT), f"{whole}-3", checksum), str(tmp_path / "w.bin"))
    for chunk in range(3):
        take(file, chunk, STORE)
    assert (file.is_right, file.as_model_file().checksum) == (True, checksum if size == CHUNK_BYTES else "")


def test_what_was_replaced_since_it_was_summed_proves_nothing(file: SharedFile) -> None:
    for chunk in range(3):
        take(file, chunk, STORE)
    file.provenance.stale = True
    assert (file.is_right, file.provenance.is_summed) == (False, True)
