"""Chunks that arrive: written once, verified with their object, and served when they may be."""

import errno
from pathlib import Path

import pytest

from harness.sharedfetches import FIRST, SECOND, SharedFetch, part, shared_fetch
from tessera.agent.storage.models.chunkfiles import ChunkFile, aligned_buffer
from tessera.clients.store.peers import ChunkAbsent, Pending
from tessera.core.storage.models.peers.provenance import EARLIER, STORE
from tessera.errors import Unavailable


def test_a_peers_chunk_is_served_once_the_whole_object_is_verified(fetch: SharedFetch) -> None:
    chunks = fetch.chunks
    chunks.keep((0, 0), part(FIRST, 0), "peer")
    with pytest.raises(ChunkAbsent):
        chunks.take((0, 0), None)
    with pytest.raises(Pending):
        chunks.take((0, 0), 0.0)
    for chunk in (1, 2):
        chunks.keep((0, chunk), part(FIRST, chunk), STORE)
    for chunk in (0, 1):
        chunks.keep((1, chunk), part(SECOND, chunk), STORE)
    assert chunks.wrong_objects(aligned_buffer()) == []
    piece = chunks.take((0, 0), None)
    assert piece.path.read_bytes()[piece.offset :][: piece.size] == part(FIRST, 0)


def test_the_stores_chunk_is_served_at_once_to_those_who_wait_for_it(fetch: SharedFetch) -> None:
    fetch.chunks.keep((0, 1), part(FIRST, 1), STORE)
    assert fetch.chunks.take((0, 1), 0.0).size == len(part(FIRST, 1))
    assert not fetch.chunks._wanted


def test_a_requested_chunk_is_read_next_and_one_past_the_end_is_absent(fetch: SharedFetch) -> None:
    with pytest.raises(Pending):
        fetch.chunks.take((1, 1), 0.0)
    assert list(fetch.chunks._wanted) == [(1, 1)]
    with pytest.raises(ChunkAbsent):
        fetch.chunks.take((1, 2), 0.0)


@pytest.mark.parametrize("how", ["ended", "failed"])
def test_who_waits_for_a_chunk_of_a_fetch_that_is_over_is_reported_that_it_is_absent(
    how: str, fetch: SharedFetch
) -> None:
    if how == "ended":
        fetch.chunks.end()
    else:
        fetch.chunks.fail(Unavailable("a", found="b", hint="c"))
    with pytest.raises(ChunkAbsent):
        fetch.chunks.take((0, 0), 60.0)


def test_a_chunk_that_could_not_be_written_is_not_there(fetch: SharedFetch, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ChunkFile, "write", full)
    with pytest.raises(OSError, match="No space left"):
        fetch.chunks.keep((0, 0), part(FIRST, 0), STORE)
    with pytest.raises(Pending):
        fetch.chunks.take((0, 0), 0.0)
    monkeypatch.undo()
    fetch.chunks.keep((0, 0), part(FIRST, 0), STORE)
    assert fetch.chunks.take((0, 0), 0.0).size == len(part(FIRST, 0))


def test_the_first_failure_stays(fetch: SharedFetch) -> None:
    first, second = Unavailable("a", found="b", hint="c"), Unavailable("d", found="e", hint="f")
    fetch.chunks.fail(first)
    fetch.chunks.fail(second)
    assert fetch.chunks._failure is first


def test_the_stores_chunk_replaces_a_peers_that_differs_and_names_the_peer(fetch: SharedFetch) -> None:
    wrong = bytes(part(SECOND, 1)[:-1]) + b"?"
    fetch.chunks.keep((1, 1), memoryview(wrong), "bad_peer")
    fetch.chunks.keep((1, 1), part(SECOND, 1), STORE)
    assert fetch.named == {"bad_peer": "chunk 1 of memory://models: object second.bin"}
    fetch.chunks.keep((1, 1), memoryview(wrong), "bad_peer")
    assert fetch.chunks.take((1, 1), 0.0).path.read_bytes().endswith(SECOND[-7:])


def test_an_object_is_wrong_whose_checksum_is_not_the_stores_until_its_chunk_is_replaced(fetch: SharedFetch) -> None:
    wrong = bytes(part(SECOND, 0)[:-1]) + b"?"
    for chunk in range(3):
        fetch.chunks.keep((0, chunk), part(FIRST, chunk), STORE)
    fetch.chunks.keep((1, 0), memoryview(wrong), "peer")
    fetch.chunks.keep((1, 1), part(SECOND, 1), "peer")
    assert fetch.missing() == set()
    assert fetch.chunks.wrong_objects(aligned_buffer()) == [1]
    fetch.chunks.keep((1, 0), part(SECOND, 0), STORE)
    fetch.chunks.sum_again([fetch.chunks.files[1]])
    assert fetch.chunks.wrong_objects(aligned_buffer()) == []


def test_a_later_attempt_reuses_what_matches_the_journal(tmp_path: Path, pki: Path) -> None:
    with shared_fetch(tmp_path, pki) as first:
        for chunk in range(3):
            first.chunks.keep((0, chunk), part(FIRST, chunk), STORE)
    with (tmp_path / "files/first.bin").open("r+b") as file:
        file.write(b"?" if FIRST[:1] != b"?" else b"!")
    with shared_fetch(tmp_path, pki) as second:
        resumed = [second.chunks.resume((0, chunk), aligned_buffer()) for chunk in range(3)]
        assert resumed == [False, True, True]
        assert second.chunks.files[0].origins == {1: EARLIER, 2: EARLIER}
        assert (second.reader.progress.fetched, second.reader.progress.done) == (0, len(FIRST) - len(part(FIRST, 0)))


def test_an_object_whose_etag_is_no_checksum_is_fetched_without_peers(fetch: SharedFetch) -> None:
    fetch.chunks.trust_no_etag()
    assert [(each.alone, each.provable) for each in fetch.chunks.files] == [(True, False)] * 2
    fetch.chunks.keep((0, 0), part(FIRST, 0), "peer")
    assert (0, 0) in fetch.missing()
    fetch.chunks.keep((0, 0), part(FIRST, 0), STORE)
    assert (0, 0) not in fetch.missing()
