"""What a node answers its peers: chunks to those who show an agent's certificate, and nothing else."""

import contextlib
import ssl
import threading
from pathlib import Path

import pytest

from harness import peersyncs
from harness.flakys3 import FlakyS3
from harness.peernodes import PATIENCE, PeerNode, closing_all, synced_together
from harness.peersyncs import CHUNKS, KEY, LARGE, QUICK, s3, showing
from tessera.clients.store import Temporary
from tessera.clients.store.peers import ChunkAbsent, PeerConnections
from tessera.core.storage.models.revisions import CHUNK_BYTES

CONTENTS = peersyncs.CONTENTS


@pytest.mark.parametrize("certificate", ["", "stranger", "client", "agent-stranger", "agent-expired"])
def test_strangers_are_served_nothing(certificate: str, tmp_path: Path, pki: Path, server: FlakyS3) -> None:
    with closing_all([PeerNode(tmp_path, pki)]) as nodes:
        synced_together(nodes, s3(server), QUICK)
        assert asked(nodes[0], f"chunks/{KEY}/0", CHUNK_BYTES, showing(pki, "agent")) == LARGE[:CHUNK_BYTES]
        with pytest.raises(Temporary):
            asked(nodes[0], f"chunks/{KEY}/0", CHUNK_BYTES, showing(pki, certificate))


def asked(node: PeerNode, target: str, size: int, context: ssl.SSLContext) -> bytes:
    """Return what a node answers to a question."""
    view = memoryview(bytearray(size))
    with contextlib.closing(PeerConnections(context, PATIENCE)) as connections:
        connections.fill(node.address, target, view, lambda: False)
    return bytes(view)


@pytest.mark.parametrize("certificate", ["server", "agent-stranger", "agent-expired"])
def test_nothing_is_requested_of_a_server_that_is_no_agent(certificate: str, tmp_path: Path, pki: Path) -> None:
    node = PeerNode(tmp_path, pki, tls=certificate)
    with closing_all([node]), pytest.raises(Temporary):
        asked(node, "chunks/a/0", 1, showing(pki, "agent"))


WRONG = {
    "a path upwards": "chunks/../../etc/passwd",
    "a path in place of a key": "chunks//etc/passwd/0",
    "a key that is too short": "chunks/abc/0",
    "no number": f"chunks/{'a' * 64}/x",
    "a negative number": f"chunks/{'a' * 64}/-1",
    "another question": "metrics",
    "a long head": f"chunks/{'a' * 64}/0?{'x' * 10_000}",
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_question_ends_the_connection(case: str, tmp_path: Path, pki: Path) -> None:
    node = PeerNode(tmp_path, pki)
    with closing_all([node]), pytest.raises(Temporary):
        asked(node, WRONG[case], 1, showing(pki, "agent"))


def test_content_that_is_not_there_and_chunks_beyond_the_end_are_absent(
    tmp_path: Path, pki: Path, server: FlakyS3
) -> None:
    with closing_all([PeerNode(tmp_path, pki)]) as nodes:
        synced_together(nodes, s3(server), QUICK)
        for target in (f"chunks/{'a' * 64}/0", f"chunks/{KEY}/{CHUNKS}", f"verified/{KEY}/999999999"):
            with pytest.raises(ChunkAbsent):
                asked(nodes[0], target, 1, showing(pki, "agent"))


def test_a_connection_for_which_there_is_no_thread_is_closed_and_the_next_one_is_answered(
    tmp_path: Path, pki: Path, server: FlakyS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the container has as many processes and threads as it may have (`pids.max`)."""

    def exhausted(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with closing_all([PeerNode(tmp_path, pki)]) as nodes:
        synced_together(nodes, s3(server), QUICK)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", exhausted)
            with pytest.raises(Temporary):
                asked(nodes[0], f"chunks/{KEY}/0", CHUNK_BYTES, showing(pki, "agent"))
        assert asked(nodes[0], f"chunks/{KEY}/0", CHUNK_BYTES, showing(pki, "agent")) == LARGE[:CHUNK_BYTES]
