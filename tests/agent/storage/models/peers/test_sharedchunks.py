"""Chunks that arrive: written once, the store's in place of a peer's, and from an earlier attempt."""

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.sharedfetches import FIRST, SECOND, SharedFetch, part, shared_fetch
from tessera.agent.storage.models.chunkfiles import aligned_buffer
from tessera.agent.storage.models.peers.serving import ServedObject
from tessera.clients.store.peers import Pending
from tessera.core.storage.models.peers.provenance import EARLIER, STORE


@contextlib.contextmanager
def no_room() -> Iterator[None]:
    """Let this process write no file, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_chunk_that_could_not_be_written_is_not_there(fetch: SharedFetch) -> None:
    with no_room(), pytest.raises(OSError, match="File too large"):
        fetch.chunks.keep((0, 0), part(FIRST, 0), STORE)
    with pytest.raises(Pending):
        ServedObject(fetch.chunks.state, 0).take(0, 0.0)
    fetch.chunks.keep((0, 0), part(FIRST, 0), STORE)
    assert ServedObject(fetch.chunks.state, 0).take(0, 0.0).size == len(part(FIRST, 0))


def test_the_stores_chunk_replaces_a_peers_that_differs_and_names_the_peer(fetch: SharedFetch) -> None:
    wrong = bytes(part(SECOND, 1)[:-1]) + b"?"
    fetch.chunks.keep((1, 1), memoryview(wrong), "bad_peer")
    fetch.chunks.keep((1, 1), part(SECOND, 1), STORE)
    assert fetch.named == {"bad_peer": "chunk 1 of memory://models: object second.bin"}
    fetch.chunks.keep((1, 1), memoryview(wrong), "bad_peer")
    assert ServedObject(fetch.chunks.state, 1).take(1, 0.0).path.read_bytes().endswith(SECOND[-7:])


def test_a_later_attempt_reuses_what_matches_the_journal(tmp_path: Path, pki: Path) -> None:
    with shared_fetch(tmp_path, pki) as first:
        for chunk in range(3):
            first.chunks.keep((0, chunk), part(FIRST, chunk), STORE)
    with (tmp_path / "files/first.bin").open("r+b") as file:
        file.write(b"?" if FIRST[:1] != b"?" else b"!")
    with shared_fetch(tmp_path, pki) as second:
        resumed = [second.chunks.resume((0, chunk), aligned_buffer()) for chunk in range(3)]
        assert resumed == [False, True, True]
        assert second.chunks.state.files[0].provenance.origins == {1: EARLIER, 2: EARLIER}
        assert (second.reader.progress.fetched, second.reader.progress.done) == (0, len(FIRST) - len(part(FIRST, 0)))


def test_an_object_whose_etag_is_no_checksum_is_fetched_without_peers(fetch: SharedFetch) -> None:
    fetch.chunks.read_without_peers()
    assert [(each.provenance.alone, each.provenance.provable) for each in fetch.chunks.state.files] == [
        (True, False)
    ] * 2
    fetch.chunks.keep((0, 0), part(FIRST, 0), "peer")
    assert (0, 0) in fetch.missing()
    fetch.chunks.keep((0, 0), part(FIRST, 0), STORE)
    assert (0, 0) not in fetch.missing()
