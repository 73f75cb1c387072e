"""What is fetched again of wrong objects; `tests/core/storage/models/peers/test_repairs.py` has who is believed."""

import pytest

from harness.sharedfetches import FIRST, SECOND, SharedFetch, part
from tessera.agent.storage.models.chunkfiles import aligned_buffer
from tessera.agent.storage.models.peers.wrongobjects import WrongObjects
from tessera.core.storage.models.peers.provenance import STORE

WRONG = bytes(part(SECOND, 0)[:-1]) + bytes([SECOND[len(part(SECOND, 0)) - 1] ^ 1])


@pytest.fixture
def repairs(fetch: SharedFetch) -> WrongObjects:
    return WrongObjects(fetch.chunks, fetch.sources, fetch.peers)


def test_chunks_of_a_peer_that_was_wrong_before_are_fetched_again(fetch: SharedFetch, repairs: WrongObjects) -> None:
    fetch.peers.ban("bad_peer", "chunk 0 of another")
    fetch.chunks.keep((1, 0), memoryview(WRONG), "bad_peer")
    fetch.chunks.keep((1, 1), part(SECOND, 1), STORE)
    assert repairs.chunks_to_repeat([1], aligned_buffer()) == [(1, 0)]
    assert fetch.chunks.state.files[1].provenance.origins == {1: STORE}


def test_where_no_other_peer_has_it_the_stores_chunk_shows_who_is_wrong(
    fetch: SharedFetch, repairs: WrongObjects
) -> None:
    fetch.chunks.keep((1, 0), memoryview(WRONG), "peer")
    fetch.chunks.keep((1, 1), part(SECOND, 1), "peer")
    assert repairs.chunks_to_repeat([1], aligned_buffer()) == [(1, 1)]
    assert set(fetch.named) == {"peer"}
    assert fetch.chunks.state.files[1].provenance.origins == {0: STORE}, "all else of that peer goes too"


def test_what_the_store_itself_has_wrong_is_repeated_no_more(fetch: SharedFetch, repairs: WrongObjects) -> None:
    for chunk in range(3):
        fetch.chunks.keep((0, chunk), part(FIRST, chunk), STORE)
    fetch.chunks.keep((1, 0), memoryview(WRONG), STORE)
    fetch.chunks.keep((1, 1), part(SECOND, 1), STORE)
    assert fetch.chunks.checksums.wrong_objects(aligned_buffer()) == [1]
    assert repairs.chunks_to_repeat([1], aligned_buffer()) is None
