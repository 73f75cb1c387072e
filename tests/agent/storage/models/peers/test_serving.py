"""Chunks of a fetch that peers request: when they are served, read for them, or absent."""

import pytest

from harness.sharedfetches import FIRST, SECOND, SharedFetch, part
from tessera.agent.storage.models.chunkfiles import aligned_buffer
from tessera.agent.storage.models.peers.serving import ServedObject, next_requested
from tessera.clients.store.peers import ChunkAbsent, Pending
from tessera.core.storage.models.peers.provenance import STORE
from tessera.errors import Unavailable


def test_a_peers_chunk_is_served_once_the_whole_object_is_verified(fetch: SharedFetch) -> None:
    chunks = fetch.chunks
    chunks.keep((0, 0), part(FIRST, 0), "peer")
    with pytest.raises(ChunkAbsent):
        ServedObject(fetch.chunks.state, 0).take(0, None)
    with pytest.raises(Pending):
        ServedObject(fetch.chunks.state, 0).take(0, 0.0)
    for chunk in (1, 2):
        chunks.keep((0, chunk), part(FIRST, chunk), STORE)
    for chunk in (0, 1):
        chunks.keep((1, chunk), part(SECOND, chunk), STORE)
    assert chunks.checksums.wrong_objects(aligned_buffer()) == []
    piece = ServedObject(fetch.chunks.state, 0).take(0, None)
    assert piece.path.read_bytes()[piece.offset :][: piece.size] == part(FIRST, 0)


def test_the_stores_chunk_is_served_at_once_to_a_request_that_is_pending(fetch: SharedFetch) -> None:
    fetch.chunks.keep((0, 1), part(FIRST, 1), STORE)
    assert ServedObject(fetch.chunks.state, 0).take(1, 0.0).size == len(part(FIRST, 1))
    assert not fetch.chunks.state.requested


def test_a_requested_chunk_is_read_next_and_one_past_the_end_is_absent(fetch: SharedFetch) -> None:
    with pytest.raises(Pending):
        ServedObject(fetch.chunks.state, 1).take(1, 0.0)
    assert next_requested(fetch.chunks.state) == (1, 1)
    with pytest.raises(ChunkAbsent):
        ServedObject(fetch.chunks.state, 1).take(2, 0.0)


@pytest.mark.parametrize("how", ["ended", "failed"])
def test_a_chunk_of_a_fetch_that_is_over_is_absent(how: str, fetch: SharedFetch) -> None:
    if how == "ended":
        fetch.chunks.state.end()
    else:
        fetch.chunks.state.fail(Unavailable("a", found="b", hint="c"))
    with pytest.raises(ChunkAbsent):
        ServedObject(fetch.chunks.state, 0).take(0, 60.0)
    assert next_requested(fetch.chunks.state) is None
