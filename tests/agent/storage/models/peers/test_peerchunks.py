"""From which peers a node requests chunks, and which it avoids."""

import contextlib
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.flakys3 import FlakyS3
from harness.peernodes import BadPeerContent, PeerNode, closing_all, synced_together
from harness.peersyncs import CHUNKS, CONTENTS, QUICK, SIZE, SMALL, content, from_store, s3
from tessera.agent.storage.models.sync import Synced
from tessera.core.storage.models.peers.multipart import proof_of
from tessera.core.storage.models.peers.owners import ContentChunks, Owners, PeerPatience, content_key
from tessera.core.storage.models.revisions import CHUNK_BYTES


@pytest.mark.parametrize("part_bytes", [0, CHUNK_BYTES], ids=["whole", "parts"])
@pytest.mark.parametrize("wrong", [lambda _chunk: True, lambda chunk: chunk == 3], ids=["always", "once"])
def test_a_bad_peer_is_banned_by_those_that_it_served_and_all_get_what_the_store_has(
    wrong: Callable[[int], bool], part_bytes: int, tmp_path: Path, pki: Path, server: FlakyS3
) -> None:
    server.part_bytes = part_bytes
    contents = [BadPeerContent(tmp_path, lambda _chunk: False) for _ in range(4)]
    made = [PeerNode(tmp_path / str(number), pki, served=served) for number, served in enumerate(contents)]
    with closing_all(made) as nodes:
        with contextlib.closing(s3(server)()) as store:
            listed = {each.path: each for each in store.objects()}
        key, other = (content_key(proof_of(listed[name]), listed[name].size) for name in ("weights.bin", "one.bin"))
        owners = Owners(ContentChunks({key: CHUNKS, other: 1}), [node.address for node in nodes])
        bad_peer = next(number for number, node in enumerate(nodes) if owners.owner(key, 3) == node.address)
        contents[bad_peer].wrong = wrong
        results = synced_together(nodes, s3(server), QUICK)
        assert all(isinstance(each, Synced) for each in results), results
        assert all(content(node) == CONTENTS for node in nodes)
        assert contents[bad_peer].sent_wrong
        honest = [node for number, node in enumerate(nodes) if number != bad_peer]
        named = [node.named for node in honest if node.named]
        assert named, "whoever it lied to knows it"
        assert all(set(each) == {nodes[bad_peer].address} for each in named)
        assert "object " in named[0][nodes[bad_peer].address]
        assert nodes[bad_peer].named == {}


def test_where_all_peers_are_bad_all_comes_from_the_store(tmp_path: Path, pki: Path, server: FlakyS3) -> None:
    bad = [PeerNode(tmp_path / f"bad_peer{number}", pki, served=BadPeerContent(tmp_path)) for number in range(3)]
    with closing_all([PeerNode(tmp_path / "honest", pki), *bad]) as nodes:
        synced_together(bad, s3(server), QUICK, members=bad[:0])  # each alone: they have it
        (done,) = synced_together(nodes[:1], s3(server), QUICK, members=nodes)
        assert isinstance(done, Synced)
        assert content(nodes[0]) == CONTENTS
        assert set(nodes[0].named) == {bad_peer.address for bad_peer in bad}
        assert from_store(nodes[:1]) == SIZE - SMALL


def test_peers_that_are_gone_silent_or_closed_are_done_without(tmp_path: Path, pki: Path, server: FlakyS3) -> None:
    quick = PeerPatience(silent_s=1.0, pending_s=0.5)
    with closing_all([PeerNode(tmp_path / str(number), pki, patience=quick) for number in range(4)]) as nodes:
        nodes[3].close()  # nobody listens there
        with socket.create_server(("127.0.0.1", 0)) as silent:
            gone = f"127.0.0.1:{silent.getsockname()[1]}"
            for node in nodes:
                node.peers.set_peers([*(each.address for each in nodes), gone])
            results = synced_together(nodes[:3], s3(server), QUICK, extra=(nodes[3].address, gone))
        assert all(isinstance(each, Synced) for each in results), results
        assert all(content(node) == CONTENTS for node in nodes[:3])
        assert not any(node.named for node in nodes)


def test_a_peer_that_is_ended_midway_is_done_without(tmp_path: Path, pki: Path, server: FlakyS3) -> None:
    with closing_all([PeerNode(tmp_path / str(number), pki) for number in range(4)]) as nodes:

        def ended_at_the_third(number: int) -> str:
            if number == 3:
                nodes[3].server.close()
            return ""

        server.fault = ended_at_the_third
        results = synced_together(nodes, s3(server), QUICK)
        assert all(isinstance(each, Synced) for each in results), results
        assert all(content(node) == CONTENTS for node in nodes)
        assert from_store(nodes) < 2 * SIZE


@pytest.mark.parametrize(
    "peer", ["[::1", "127.0.0.1:999999", ":1", "127.0.0.1:port", "h\x00st:1", "x" * 300 + ":1", "ü" * 70 + ":1"]
)
def test_a_peer_whose_address_is_none_is_done_without(peer: str, tmp_path: Path, pki: Path, server: FlakyS3) -> None:
    with closing_all([PeerNode(tmp_path, pki)]) as nodes:
        (done,) = synced_together(nodes, s3(server), QUICK, extra=(peer,))
        assert isinstance(done, Synced), done
        assert content(nodes[0]) == CONTENTS
