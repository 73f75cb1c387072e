"""Revisions, plans, names: what a sync decides."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.storage.models.paths import checked_objects, selected
from tessera.core.storage.models.retention import Kept, make_room, superseded
from tessera.core.storage.models.retries import Attempts, Patience, RateLimit
from tessera.core.storage.models.revisions import CHUNK_BYTES, Manifest, ModelFile, StoredObject, chunk_range
from tessera.core.storage.models.syncplans import plan_sync, refuse_empty, spans
from tessera.errors import InvalidInput, Unavailable


def objects(*paths: str) -> list[StoredObject]:
    return [StoredObject(path, 1) for path in paths]


def test_a_revision_is_named_by_paths_sizes_and_content_alone() -> None:
    file = ModelFile("a", 1, ("0" * 64,), etag="x")
    same = Manifest("s3://a", (file,)), Manifest("s3://b", (ModelFile("a", 1, ("0" * 64,)),))
    assert len({each.revision for each in same}) == 1
    others = (ModelFile("b", 1, ("0" * 64,)), ModelFile("a", 2, ("0" * 64,)), ModelFile("a", 1, ("1" * 64,)))
    assert len({Manifest("s3://a", (each,)).revision for each in (file, *others)}) == 4
    assert same[0].size == 1


@pytest.mark.parametrize(
    ("path", "want"),
    [
        ("/etc/passwd", "leads out"),
        ("a/../../b", "leads out"),
        ("a//b", "empty"),
        ("./a", "empty"),
        ("a\nb", "control"),
        ("a\x00", "control"),
        ("\ud800", "UTF-8"),
        ("a" * 256, "too long"),
        (".Tessera/lock", "own notes"),
    ],
)
def test_a_name_that_cannot_be_a_file_is_refused(path: str, want: str) -> None:
    with pytest.raises(InvalidInput, match=want):
        checked_objects(objects(path), source="s3://models")


@pytest.mark.parametrize(
    ("paths", "want"),
    [(("A/x", "a/X"), "upper and lower"), (("é", "e\u0301"), "upper and lower"), (("a", "a/b/c"), "folder and a file")],
)
def test_two_names_of_one_file_are_refused(paths: tuple[str, ...], want: str) -> None:
    with pytest.raises(InvalidInput, match=want):
        checked_objects(objects(*paths), source="s3://models")


def test_markers_of_folders_are_no_files_and_empty_files_are() -> None:
    listing = [StoredObject("b/", 0), StoredObject("b/c", 0), StoredObject("a", 1)]
    assert [each.path for each in checked_objects(listing, source="x")] == ["a", "b/c"]


def test_patterns_select() -> None:
    found = tuple(objects("a.bin", "o/a.bin", "o/x.txt"))
    assert [each.path for each in selected(found, ("*.bin",), ("o/*",))] == ["a.bin"]
    assert selected(found, (), ()) == found


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
    assert {path: (name, file.path, file.etag) for path, (name, file) in plan.kept.items()} == {
        "a": ("r", "a", "e1"),
        "c": ("r", "b", "e9"),
    }
    assert [each.path for each in plan.fetched] == ["d", "e"]
    assert plan.bytes_to_fetch == 2
    assert plan_sync(listing, "s3://other", {"r": old}).kept.keys() == {"c"}
    again = plan_sync(listing, "s3://m", {"r": old}, {("r", "a")})
    assert again.kept.keys() == {"c"}
    assert again.identity != plan.identity


def test_an_empty_listing_is_refused() -> None:
    refuse_empty((StoredObject("a", 0),), source="x")
    with pytest.raises(Unavailable, match="no objects"):
        refuse_empty((), source="x")


@given(st.lists(st.tuples(st.integers(0, 4 * CHUNK_BYTES), st.booleans()), max_size=20))
def test_every_chunk_is_fetched_once_and_in_order(sizes: list[tuple[int, bool]]) -> None:
    listing = tuple(StoredObject(str(index), size, ranges=ranges) for index, (size, ranges) in enumerate(sizes))
    got: dict[int, list[tuple[int, int]]] = {}
    for span in spans(listing):
        for chunk in range(span.first, span.stop):
            got.setdefault(span.object, []).append(chunk_range(listing[span.object].size, chunk))
    assert got.keys() == set(range(len(listing)))
    for index, ranges in got.items():
        assert ranges[0][0] == 0
        assert ranges[-1][1] == listing[index].size
        assert all(before[1] == after[0] for before, after in itertools.pairwise(ranges))


REVISIONS = st.lists(
    st.builds(Kept, st.uuids().map(str), st.floats(0, 9), st.integers(0, 99), st.sampled_from(["", "pinned"])),
    unique_by=lambda each: each.revision,
)


@given(REVISIONS, st.integers(1, 4))
def test_retention_keeps_what_is_protected_and_the_most_recent(kept: list[Kept], keep: int) -> None:
    gone = superseded(kept, keep)
    by_name = {each.revision: each for each in kept}
    assert not any(by_name[name].protected for name in gone)
    stay = [each for each in kept if each.revision not in gone]
    assert len(stay) == max(min(keep, len(kept)), len([each for each in kept if each.protected]))
    newest = [each.last_used for each in stay if not each.protected]
    assert all(by_name[name].last_used <= time for name in gone for time in newest)


@given(REVISIONS, st.integers(0, 300), st.integers(0, 200), st.integers(0, 50))
def test_room_is_made_or_nothing_goes(kept: list[Kept], needed: int, free: int, reserve: int) -> None:
    possible = free + sum(each.freed_bytes for each in kept if not each.protected) >= needed + reserve
    by_name = {each.revision: each for each in kept}
    try:
        gone = make_room(kept, needed_bytes=needed, free_bytes=free, reserve_bytes=reserve, subject="/m")
    except Unavailable:
        assert not possible
        return
    assert possible
    freed = [by_name[name].freed_bytes for name in gone]
    assert not any(by_name[name].protected for name in gone)
    assert free + sum(freed) >= needed + reserve
    assert not gone or free + sum(freed[:-1]) < needed + reserve


def test_retries_wait_longer_each_time_and_end() -> None:
    attempts = Attempts(Patience(), 0.0)
    now, waits = 0.0, []
    while (wait := attempts.wait_after_failure(now, 1.0)) is not None:
        waits.append(wait)
        now += wait
    assert waits[:4] == [0.1, 0.2, 0.4, 0.8]
    assert max(waits) == 5.0
    assert 35 < now < 45


def test_a_trickle_is_a_stall_and_a_pause_of_ours_is_none() -> None:
    attempts = Attempts(Patience(), 0.0)
    attempts.progress(9.0, 100)
    assert not attempts.has_stalled(9.9)
    assert attempts.has_stalled(10.0)
    attempts.pause(5.0)
    assert not attempts.has_stalled(14.9)
    attempts.start(15.0)
    assert not attempts.has_stalled(24.9)
    attempts.progress(30.0, 65536)
    assert attempts.wait_after_failure(74.0, 0.0) == 0.05
    assert attempts.wait_after_failure(74.0, 0.0, asked_s=2.0) is None


def test_the_bandwidth_is_limited() -> None:
    limit = RateLimit(100.0, 0.0)
    assert limit.delay(0.25, 25) == 0.0
    assert limit.delay(0.25, 100) == 1.0
    assert limit.delay(9.0, 25) == 0.0
