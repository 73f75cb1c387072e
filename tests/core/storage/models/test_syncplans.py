"""What a sync fetches, keeps and refuses."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.storage.models.revisions import CHUNK_BYTES, Manifest, ModelFile, StoredObject, chunk_range
from tessera.core.storage.models.syncplans import (
    MirrorPlan,
    is_packed,
    parents_of,
    plan_mirror,
    plan_sync,
    refuse_empty,
    refuse_unverified,
    spans,
)
from tessera.errors import InvalidInput, Unavailable


def test_unchanged_files_are_kept_by_etag_or_checksum() -> None:
    old = Manifest(
        "s3://m",
        (ModelFile("a", 1, ("0" * 64,), "e1"), ModelFile("b", 2, ("1" * 64,), "e2", "md5:x"), ModelFile("d", 1, ("",))),
    )
    listing = (
        StoredObject("a", 1, "e1"),
        StoredObject("c", 2, "e9", "md5:x"),
        StoredObject("d", 1),
        StoredObject("e", 1, "e1"),
    )
    plan = plan_sync(listing, "s3://m", {"r": old})
    assert {path: (name, file.path, file.etag) for path, (name, file) in plan.reused.items()} == {
        "a": ("r", "a", "e1"),
        "c": ("r", "b", "e9"),
    }
    assert [each.path for each in plan.fetched] == ["d", "e"]
    assert plan.bytes_to_fetch == 2
    assert plan_sync(listing, "s3://other", {"r": old}).reused.keys() == {"c"}
    again = plan_sync(listing, "s3://m", {"r": old}, {("r", "a")})
    assert again.reused.keys() == {"c"}
    assert again.identity != plan.identity


def test_a_sync_resumes_none_that_reuses_other_files() -> None:
    old = Manifest("s3://m", tuple(ModelFile(each, 1, (each * 64,), each) for each in "ab"))
    names = {
        plan_sync(tuple(StoredObject(path, 1, etag) for path, etag in listing), "s3://m", {"r": old}).identity
        for listing in ((("a", "a"),), (("b", "b"),), (("a", "a"), ("b", "b")))
    }
    assert len(names) == 3


def test_a_sync_is_resumed_under_the_name_that_earlier_versions_gave_it() -> None:
    """Otherwise what was fetched before an upgrade would be fetched again."""
    listing = (StoredObject("a", 1, "e1"), StoredObject("b/c", 2, "e2", "md5:x", ranges=False))
    assert plan_sync(listing, "s3://m", {}).identity == "153b365a3008a55e0c6721faa14b1230"


def test_a_crc32c_recognizes_a_file_under_its_own_name_alone() -> None:
    old = Manifest("gs://b", (ModelFile("a", 3, ("0" * 64,), "17", "crc32c:e3069283"),))
    same, other = StoredObject("a", 3, "18", "crc32c:e3069283"), StoredObject("b", 3, "1", "crc32c:e3069283")
    plan = plan_sync((same, other), "gs://b", {"old": old})
    assert (list(plan.reused), plan.fetched) == (["a"], (other,))


def test_of_plain_files_those_stay_that_are_unchanged_under_their_own_name() -> None:
    here = Manifest(
        "s3://m", tuple(ModelFile(path, 1, ("0" * 64,), etag) for path, etag in (("a", "e1"), ("b", "e2"), ("c", "e3")))
    )
    listing = (StoredObject("a", 1, "e1"), StoredObject("b", 1, "e9"), StoredObject("d", 1, "e1"))
    plan = plan_mirror(listing, "s3://m", here)
    assert list(plan.unchanged) == ["a"]
    assert [each.path for each in plan.fetched] == ["b", "d"]
    assert plan.removed == ("c",)
    damaged = plan_mirror(listing, "s3://m", here, {"a"})
    assert (damaged.unchanged, [each.path for each in damaged.fetched]) == ({}, ["a", "b", "d"])
    assert plan_mirror(listing, "s3://m", None) == MirrorPlan({}, listing, ())
    assert plan_mirror(listing, "s3://other", here).unchanged == {}


def test_the_parents_of_a_path_come_from_the_nearest_on() -> None:
    assert parents_of("a/b/c.bin") == ("a/b", "a")
    assert parents_of("c.bin") == ()


OBJECTS = st.builds(
    StoredObject,
    st.sampled_from("abcd"),
    st.integers(0, 2),
    st.sampled_from(["", "e1", "e2"]),
    st.sampled_from(["", "md5:1", "md5:2", "crc32c:1"]),
)
LISTINGS = st.lists(OBJECTS, max_size=4, unique_by=lambda each: each.path).map(tuple)


def as_revision(source: str, listing: tuple[StoredObject, ...]) -> Manifest:
    return Manifest(source, tuple(ModelFile(each.path, each.size, ("",), each.etag, each.checksum) for each in listing))


@given(LISTINGS, st.dictionaries(st.sampled_from("rs"), st.tuples(st.sampled_from(["s3://m", "s3://n"]), LISTINGS)))
def test_each_object_is_either_reused_or_fetched_and_nothing_of_other_content_is_reused(
    listing: tuple[StoredObject, ...], revisions: dict[str, tuple[str, tuple[StoredObject, ...]]]
) -> None:
    manifests = {name: as_revision(*each) for name, each in revisions.items()}
    damaged = {("r", "a")}
    plan = plan_sync(listing, "s3://m", manifests, damaged)
    assert sorted([*plan.reused, *(each.path for each in plan.fetched)]) == sorted(each.path for each in listing)
    assert set(plan.fetched) <= set(listing)
    for each in listing:
        if each.path not in plan.reused:
            continue
        name, renewed = plan.reused[each.path]
        found = {one.path: one for one in manifests[name].files}[renewed.path]
        assert (name, found.path) not in damaged
        assert (found.size, renewed.etag) == (each.size, each.etag)
        assert renewed.checksum == found.checksum, "it was compared with no other"
        by_etag = bool(each.etag) and (manifests[name].source, found.path, found.etag) == (
            "s3://m",
            each.path,
            each.etag,
        )
        by_content = bool(each.checksum) and found.checksum == each.checksum
        assert by_etag or by_content
        assert by_etag or not each.checksum.startswith("crc32c:") or found.path == each.path


def test_an_empty_listing_is_refused() -> None:
    refuse_empty((StoredObject("a", 0),), source="x")
    with pytest.raises(Unavailable, match="no objects"):
        refuse_empty((), source="x")


def test_files_without_a_checksum_are_refused_but_empty_ones() -> None:
    verified = (StoredObject("a", 1, checksum="md5:x"), StoredObject("empty", 0))
    refuse_unverified(verified, source="x")
    for more, want in (
        ([StoredObject("b", 1, "e")], "x: object 'b': the source gives no checksum that verifies it: name a source"),
        ([ModelFile("b", 1, ("",)), ModelFile("c", 1, ("",))], "verifies it, and none of 1 others: name"),
    ):
        with pytest.raises(InvalidInput, match=want):
            refuse_unverified((*verified, *more), source="x")


def test_an_object_without_a_validator_is_one_span() -> None:
    size = 3 * CHUNK_BYTES
    listing = (StoredObject("a", size), StoredObject("b", size, "v1"), StoredObject("c", size, checksum="md5:0"))
    assert [[each.stop - each.first for each in spans((one,))] for one in listing] == [[3], [1, 1, 1], [1, 1, 1]]


@given(st.lists(st.tuples(st.integers(0, 4 * CHUNK_BYTES), st.booleans()), max_size=20))
def test_every_chunk_is_fetched_once_and_in_order(sizes: list[tuple[int, bool]]) -> None:
    listing = tuple(StoredObject(str(index), size, "v1", ranges=ranges) for index, (size, ranges) in enumerate(sizes))
    got: dict[int, list[tuple[int, int]]] = {}
    for span in spans(listing):
        for chunk in range(span.first, span.stop):
            got.setdefault(span.object, []).append(chunk_range(listing[span.object].size, chunk))
    assert got.keys() == set(range(len(listing)))
    for index, ranges in got.items():
        assert ranges[0][0] == 0
        assert ranges[-1][1] == listing[index].size
        assert all(before[1] == after[0] for before, after in itertools.pairwise(ranges))


KIB = 1024
PACKED = {
    "many small files": ([16 * KIB] * 1000, True),
    "few small files": ([16 * KIB] * 999, False),
    "many files, not small on average": ([256 * KIB] * 1000, False),
    "many small files beside a large one": ([KIB] * 1000 + [200 * 1024 * KIB], True),
    "nothing": ([], False),
    "empty files alone": ([0] * 1000, True),
}


@pytest.mark.parametrize("case", PACKED)
def test_many_small_files_are_packed(case: str) -> None:
    sizes, want = PACKED[case]
    assert is_packed(sizes, "Auto") == want


@given(st.lists(st.integers(0, 2**40), max_size=50).map(lambda sizes: sizes * 40))
def test_the_setting_counts_and_a_node_that_mounts_none_packs_none_by_itself(sizes: list[int]) -> None:
    assert is_packed(sizes, "Always", can_mount=False)
    assert not is_packed(sizes, "Never")
    assert not is_packed(sizes, "Auto", can_mount=False)
