"""Revisions, plans, names: what a sync decides."""

from hypothesis import given
from hypothesis import strategies as st

from tessera.core.storage.models.revisions import (
    CHUNK_BYTES,
    Manifest,
    ModelFile,
    StoredObject,
    chunk_count,
    chunk_range,
)
from tessera.core.storage.models.syncplans import spans


def test_a_revision_is_named_by_paths_sizes_and_content_alone() -> None:
    file = ModelFile("a", 1, ("0" * 64,), etag="x")
    same = Manifest("s3://a", (file,)), Manifest("s3://b", (ModelFile("a", 1, ("0" * 64,)),))
    assert len({each.revision for each in same}) == 1
    others = (ModelFile("b", 1, ("0" * 64,)), ModelFile("a", 2, ("0" * 64,)), ModelFile("a", 1, ("1" * 64,)))
    assert len({Manifest("s3://a", (each,)).revision for each in (file, *others)}) == 4
    assert same[0].size == 1


def test_what_the_store_has_no_checksum_for_is_counted() -> None:
    files = (
        ModelFile("a", 3, ("0" * 64,), "e", "md5:x"),
        ModelFile("b", 5, ("1" * 64,)),
        ModelFile("c", 0, ("2" * 64,)),
    )
    assert Manifest("https://models.example/a/", files).unverified_bytes == 5


LIMITS = [0, CHUNK_BYTES, 10_000 * CHUNK_BYTES, 2**31, 2**32, 5 * 2**40, 2**53, 2**63 - 2]
"""Bytes: a chunk, as many parts as S3 takes, 31 and 32 bits, S3's largest object, a float's integers, 63 bits."""


@given(st.sampled_from(LIMITS), st.integers(-1, 1), st.data())
def test_chunks_follow_each_other_and_end_with_the_file_however_large_it_is(
    limit: int, beside: int, data: st.DataObject
) -> None:
    size = max(0, limit + beside)
    count = chunk_count(size)
    assert (chunk_range(size, 0)[0], chunk_range(size, count - 1)[1]) == (0, size)
    index = data.draw(st.integers(0, count - 1))
    first, last = chunk_range(size, index)
    if index < count - 1:
        assert (last - first, chunk_range(size, index + 1)[0]) == (CHUNK_BYTES, last)
    else:
        assert 0 < last - first <= CHUNK_BYTES or size == 0


def test_an_object_of_more_chunks_than_s3_takes_parts_is_fetched_chunk_by_chunk() -> None:
    size = 10_001 * CHUNK_BYTES - 1
    found = list(spans((StoredObject("a", size, "v1"), StoredObject("b", 1))))
    large = [each for each in found if each.object == 0]
    assert [each.stop for each in large] == list(range(1, 10_002))
    assert chunk_range(size, large[-1].first) == (10_000 * CHUNK_BYTES, size)
