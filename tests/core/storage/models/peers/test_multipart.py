"""How large the parts of an upload are, and what proves an object."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tessera.core.storage.models.peers.multipart import is_assumed, part_bytes, proof_of
from tessera.core.storage.models.revisions import ModelFile, StoredObject

MIB = 2**20
DIGEST = "0" * 32


@given(st.integers(1, 5 * 2**40), st.integers(1, 5120))
@example(104_856_551_425, 1)  # 100,000 parts, of which S3 takes a tenth
def test_parts_of_whole_mib_are_recognized_or_nothing_is_reported(size: int, mib: int) -> None:
    count = -(-size // (mib * MIB))
    found = part_bytes(size, f"{DIGEST}-{count}")
    assert not found or -(-size // found) == count
    if max(2048, mib) < count < 100_000:
        assert found == mib * MIB


@pytest.mark.parametrize(
    ("size", "count", "want"),
    [
        (5 * 2**30 + 1, 641, 8),  # aws s3 cp
        (300 * MIB, 2, 0),  # of 150 to 299 MiB: 200 or 256
        (400 * MIB, 8, 50),  # s5cmd
        (100 * MIB, 2, 0),  # of 50 or 64
        (256 * MIB, 52, 5),  # rclone
        (17 * MIB, 2, 0),  # of 9 to 16 MiB: 10, 15 or 16
    ],
)
def test_what_programs_upload(size: int, count: int, want: int) -> None:
    assert part_bytes(size, f"{DIGEST}-{count}") == want * MIB


@pytest.mark.parametrize("etag", ["", DIGEST, f"{DIGEST}-0", f"{DIGEST}-x", f"{DIGEST}-9", f'"{DIGEST}-1"'])
def test_what_has_no_such_parts(etag: str) -> None:
    assert part_bytes(10 * MIB, etag) == 0


def test_a_single_part_is_all_of_it() -> None:
    assert part_bytes(7, f"{DIGEST}-1") == 7
    assert part_bytes(0, f"{DIGEST}-1") == 0


def test_the_stores_own_checksum_proves_and_else_the_parts() -> None:
    etag = f"{DIGEST}-9"
    assert proof_of(StoredObject("a", 41 * MIB, etag, "sha256:x")) == "sha256:x"
    assert proof_of(ModelFile("a", 41 * MIB, (), etag)) == f"md5-{5 * MIB}:{etag}"
    assert proof_of(StoredObject("a", 10 * MIB, "x")) == ""
    assert [is_assumed(each) for each in ("md5-5:x", "md5:x", "")] == [True, False, False]
