"""Objects whose checksum is the store's, or not."""

from harness.sharedfetches import FIRST, SECOND, SharedFetch, part
from tessera.agent.storage.models.chunkfiles import aligned_buffer
from tessera.core.storage.models.peers.provenance import STORE


def test_an_object_is_wrong_whose_checksum_is_not_the_stores_until_its_chunk_is_replaced(fetch: SharedFetch) -> None:
    wrong = bytes(part(SECOND, 0)[:-1]) + b"?"
    for chunk in range(3):
        fetch.chunks.keep((0, chunk), part(FIRST, chunk), STORE)
    fetch.chunks.keep((1, 0), memoryview(wrong), "peer")
    fetch.chunks.keep((1, 1), part(SECOND, 1), "peer")
    assert fetch.missing() == set()
    assert fetch.chunks.checksums.wrong_objects(aligned_buffer()) == [1]
    fetch.chunks.keep((1, 0), part(SECOND, 0), STORE)
    fetch.chunks.checksums.restart([fetch.chunks.state.files[1]])
    assert fetch.chunks.checksums.wrong_objects(aligned_buffer()) == []
