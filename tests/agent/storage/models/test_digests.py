"""Checksums of stores, against the programs that people check them with."""

import hashlib
import subprocess

import google_crc32c
import pytest

from tessera.agent.storage.models.digests import chunk_digest, start_checksum, start_chunk

CONTENT = b"some content\n" * 999


@pytest.mark.parametrize("kind", ["md5", "sha1", "sha256"])
def test_a_stores_checksum_in_pieces(kind: str) -> None:
    digest = start_checksum(f"{kind}:x", len(CONTENT))
    assert digest is not None
    digest.update(memoryview(CONTENT)[:1000])
    digest.update(memoryview(CONTENT)[1000:])
    assert digest.hexdigest() == hashlib.new(kind, CONTENT, usedforsecurity=False).hexdigest()


def test_gits_id_is_that_of_git() -> None:
    digest = start_checksum("git:x", len(CONTENT))
    assert digest is not None
    digest.update(memoryview(CONTENT))
    want = subprocess.run(["git", "hash-object", "--stdin"], input=CONTENT, capture_output=True, check=True).stdout
    assert digest.hexdigest() == want.decode().strip()


def test_a_crc32c_is_that_of_rfc_3720_and_of_a_buffer_that_is_copied_in_pieces() -> None:
    digest, large = start_checksum("crc32c:x", 9), start_checksum("crc32c:x", 640_000)
    assert digest is not None
    assert large is not None
    digest.update(memoryview(b"1234"))
    digest.update(memoryview(bytearray(b"56789")))
    assert digest.hexdigest() == "e3069283"
    large.update(memoryview(bytes(32) * 20_000))
    assert large.hexdigest() == f"{google_crc32c.value(bytes(640_000)):08x}"


@pytest.mark.parametrize("checksum", ["", "crc32:x", "etag"])
def test_kinds_that_are_not_known_are_not_computed(checksum: str) -> None:
    assert start_checksum(checksum, 1) is None


def test_a_chunk_in_pieces_has_the_digest_of_the_whole() -> None:
    pieces = start_chunk()
    pieces.update(memoryview(CONTENT)[:7])
    pieces.update(memoryview(CONTENT)[7:])
    assert pieces.hexdigest() == chunk_digest(CONTENT) != chunk_digest(CONTENT[1:])
