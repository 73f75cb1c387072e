"""Where a chunk comes from when no peer answers; with peers it is fetched in `test_shared.py`, `test_peerchunks.py`."""

import time
from pathlib import Path

import pytest

from harness.sharedfetches import FIRST, SECOND, SharedFetch, part, shared_fetch
from tessera.agent.storage.models.chunkfiles import aligned_buffer
from tessera.core.storage.models.peers.provenance import EARLIER, STORE
from tessera.errors import TesseraError

GONE = "127.0.0.1:9"


def test_without_peers_a_node_owns_all_and_reads_it_from_the_store_once(fetch: SharedFetch) -> None:
    requests = fetch.store.requests
    for _ in range(2):
        assert fetch.sources.owner((0, 1)) == fetch.peers.me
        fetch.sources.fetch_own((0, 1), aligned_buffer())
    assert fetch.store.requests == requests + 1
    assert fetch.peers.bytes_from_stores == len(part(FIRST, 1))
    assert fetch.chunks.state.files[0].provenance.origins == {1: STORE}


def test_a_chunk_whose_peers_are_gone_comes_from_the_store(fetch: SharedFetch) -> None:
    fetch.peers.set_peers([GONE])
    task = next(each for each in sorted(fetch.missing()) if fetch.sources.owner(each) == GONE)
    assert fetch.sources.fetch_others(task, 0.0, aligned_buffer()) is None
    assert fetch.chunks.state.files[task[0]].provenance.origins == {task[1]: STORE}
    assert task not in fetch.missing()


def test_an_object_without_peers_has_the_store_as_owner(fetch: SharedFetch) -> None:
    fetch.peers.set_peers([GONE])
    fetch.chunks.state.files[1].provenance.alone = True
    assert {fetch.sources.owner((1, chunk)) for chunk in range(2)} == {STORE}
    fetch.sources.fetch_own((1, 0), aligned_buffer())
    assert fetch.chunks.state.files[1].provenance.origins == {0: STORE}


def test_an_earlier_attempts_chunk_is_fetched_from_nobody(tmp_path: Path, pki: Path) -> None:
    with shared_fetch(tmp_path, pki) as first:
        for chunk in range(2):
            first.sources.from_store((1, chunk), aligned_buffer())
    with shared_fetch(tmp_path, pki) as second:
        requests = second.store.requests
        second.sources.fetch_own((1, 0), aligned_buffer())
        assert second.sources.fetch_others((1, 1), time.monotonic(), aligned_buffer()) is None
        assert second.store.requests == requests
        assert second.chunks.state.files[1].provenance.origins == {0: EARLIER, 1: EARLIER}


def test_another_version_of_a_chunk_comes_from_no_peer_when_all_are_gone(fetch: SharedFetch) -> None:
    fetch.peers.set_peers([GONE])
    assert fetch.sources.from_another((1, 0), {"other"}, memoryview(bytearray(len(part(SECOND, 0))))) == ""


def test_what_the_store_refuses_is_an_error_and_is_still_missing(fetch: SharedFetch) -> None:
    del fetch.store.contents["first.bin"]
    with pytest.raises(TesseraError, match=r"first\.bin"):
        fetch.sources.from_store((0, 0), aligned_buffer())
    assert (0, 0) in fetch.missing()
    assert not fetch.chunks.state.reading
