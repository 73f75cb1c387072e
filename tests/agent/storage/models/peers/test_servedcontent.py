"""What a node serves of what it has."""

from pathlib import Path

from harness.flakys3 import FlakyS3
from harness.peernodes import PeerNode, closing_all, synced_together
from harness.peersyncs import CONTENTS, QUICK, content, s3
from tessera.agent.storage.models.peers.servedcontent import OpenChunk, ServedContent
from tessera.agent.storage.models.sync import Synced
from tessera.clients.store.peers import Pending
from tessera.core.storage.models.revisions import CHUNK_BYTES


def test_a_chunk_that_the_disk_has_damaged_is_not_served_and_its_node_is_not_banned(
    tmp_path: Path, pki: Path, server: FlakyS3
) -> None:
    with closing_all([PeerNode(tmp_path / str(number), pki) for number in range(2)]) as nodes:
        synced_together(nodes[:1], s3(server), QUICK)
        with (nodes[0].folder.top / "current" / "weights.bin").open("r+b") as file:
            file.seek(CHUNK_BYTES + 5)
            file.write(b"damaged")
        (done,) = synced_together(nodes[1:], s3(server), QUICK, members=nodes)
        assert isinstance(done, Synced)
        assert content(nodes[1]) == CONTENTS
        assert nodes[1].named == {}


class PublishingShelf(ServedContent):
    """That of a node which publishes at this moment: what is proven is between two places."""

    def open(self, key: str, chunk: int, wait_s: float | None) -> OpenChunk:
        if wait_s is None:
            raise Pending
        return super().open(key, chunk, wait_s)


def test_a_peer_that_publishes_at_this_moment_ends_no_fetch(tmp_path: Path, pki: Path, server: FlakyS3) -> None:
    busy = PeerNode(tmp_path / "busy", pki, served=PublishingShelf())
    with closing_all([PeerNode(tmp_path / "late", pki), busy]) as nodes:
        synced_together([busy], s3(server), QUICK)
        (done,) = synced_together(nodes[:1], s3(server), QUICK, members=nodes)
        assert isinstance(done, Synced), done
        assert content(nodes[0]) == CONTENTS
        assert nodes[0].named == {}
