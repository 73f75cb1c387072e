"""Nodes that fetch a model together: over real TLS, with peers that leave, lie, are slow or are strangers."""

import contextlib
import hashlib
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from harness.flakys3 import FlakyS3
from harness.peernodes import PATIENCE, LyingShelf, PeerNode, closing_all, peer_tls, synced_together
from tessera.agent.storage.models.reading import TransferLimits
from tessera.agent.storage.models.shelf import OpenPiece, Shelf
from tessera.agent.storage.models.sync import Synced, SyncOptions
from tessera.certificates import asking_context_of, context_of
from tessera.clients.store import Store, Temporary
from tessera.clients.store.peers import Absent, PeerConnections, Pending
from tessera.clients.store.s3 import S3Settings, S3Store, utc_now
from tessera.core.storage.models.multipart import proof_of
from tessera.core.storage.models.peers import Owners, PeerPatience, content_key
from tessera.core.storage.models.retries import Patience
from tessera.core.storage.models.revisions import CHUNK_BYTES
from tessera.errors import Unavailable

LARGE = os.urandom(5 * CHUNK_BYTES + 12_345)
CHUNKS = 6
KEY = content_key(f"md5:{hashlib.md5(LARGE).hexdigest()}", len(LARGE))
CONTENTS = {"config.json": b"{}", "empty": b"", "one.bin": os.urandom(300_000), "weights.bin": LARGE}
SIZE = sum(map(len, CONTENTS.values()))
SMALL = 2
"""Bytes of what is too small for peers."""
QUICK = SyncOptions(
    limits=TransferLimits(Patience(stall_s=30.0, give_up_s=60.0, first_wait_s=0.01, longest_wait_s=0.1)),
    reserve_bytes=0,
)


@pytest.fixture
def server() -> Iterator[FlakyS3]:
    with FlakyS3(CONTENTS) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def s3(server: FlakyS3) -> Callable[[], Store]:
    settings = S3Settings(f"http://127.0.0.1:{server.server_port}", access_key="a", secret_key="b", timeout_s=30.0)
    return lambda: S3Store("models", "m", settings, utc_now)


def content(node: PeerNode) -> dict[str, bytes]:
    top = node.folder.top / "current"
    return {str(each.relative_to(top)): each.read_bytes() for each in top.rglob("*") if each.is_file()}


def from_store(nodes: list[PeerNode]) -> int:
    """Return the bytes that all nodes together read from the store, without small objects."""
    return sum(max(0, node.sharing.bytes_from_stores - SMALL) for node in nodes)


@pytest.mark.parametrize("part_bytes", [0, CHUNK_BYTES, 5 * 2**20], ids=["whole", "chunks", "parts"])
def test_nodes_read_a_model_from_the_store_once(part_bytes: int, tmp_path: Path, pki: Path, server: FlakyS3) -> None:
    server.part_bytes = part_bytes
    with closing_all([PeerNode(tmp_path / str(number), pki) for number in range(4)]) as nodes:
        results = synced_together(nodes, s3(server), QUICK)
        assert all(isinstance(each, Synced) for each in results), results
        assert all(content(node) == CONTENTS for node in nodes)
        assert from_store(nodes) == SIZE - SMALL
        assert sum(node.sharing.bytes_from_peers for node in nodes) == 3 * (SIZE - SMALL)
        assert sum(node.sharing.bytes_given for node in nodes) == 3 * (SIZE - SMALL)
        assert [node.named for node in nodes] == [{}] * 4
        late = PeerNode(tmp_path / "late", pki)
        nodes.append(late)
        synced_together([late], s3(server), QUICK, members=nodes)
        assert (content(late), late.sharing.bytes_from_stores) == (CONTENTS, SMALL)


def test_a_part_of_another_size_than_it_seems_makes_nobody_a_liar_and_no_error(
    tmp_path: Path, pki: Path, server: FlakyS3
) -> None:
    server.part_bytes = CHUNK_BYTES + 1  # six of them, as of 8 MiB
    with closing_all([PeerNode(tmp_path / str(number), pki) for number in range(3)]) as nodes:
        results = synced_together(nodes, s3(server), QUICK)
        assert all(isinstance(each, Synced) for each in results), results
        assert all(content(node) == CONTENTS for node in nodes)
        assert [node.named for node in nodes] == [{}] * 3
        assert all(not each.checksum for each in nodes[0].folder.manifest(nodes[0].folder.current()).files if each.size)


def test_a_node_that_comes_later_reads_nothing_but_small_objects_from_the_store(
    tmp_path: Path, pki: Path, server: FlakyS3
) -> None:
    with closing_all([PeerNode(tmp_path / str(number), pki) for number in range(3)]) as nodes:
        synced_together(nodes[:2], s3(server), QUICK)
        late = nodes[2]
        synced_together([late], s3(server), QUICK, members=nodes)
        assert content(late) == CONTENTS
        assert late.sharing.bytes_from_stores == SMALL


def test_who_fetches_alone_reads_all_from_the_store(tmp_path: Path, pki: Path, server: FlakyS3) -> None:
    with closing_all([PeerNode(tmp_path, pki)]) as nodes:
        (done,) = synced_together(nodes, s3(server), QUICK)
        assert isinstance(done, Synced)
        assert (done.bytes, content(nodes[0])) == (SIZE, CONTENTS)


@pytest.mark.parametrize("part_bytes", [0, CHUNK_BYTES], ids=["whole", "parts"])
@pytest.mark.parametrize("lies", [lambda _chunk: True, lambda chunk: chunk == 3], ids=["always", "once"])
def test_a_peer_that_lies_is_named_by_those_whom_it_lied_to_and_all_get_what_the_store_has(
    lies: Callable[[int], bool], part_bytes: int, tmp_path: Path, pki: Path, server: FlakyS3
) -> None:
    server.part_bytes = part_bytes
    shelves = [LyingShelf(tmp_path, lambda _chunk: False) for _ in range(4)]
    made = [PeerNode(tmp_path / str(number), pki, shelf=shelf) for number, shelf in enumerate(shelves)]
    with closing_all(made) as nodes:
        with contextlib.closing(s3(server)()) as store:
            listed = {each.path: each for each in store.objects()}
        key, other = (content_key(proof_of(listed[name]), listed[name].size) for name in ("weights.bin", "one.bin"))
        owners = Owners({key: CHUNKS, other: 1}, [node.address for node in nodes])
        liar = next(number for number, node in enumerate(nodes) if owners.owner(key, 3) == node.address)
        shelves[liar].lies = lies
        results = synced_together(nodes, s3(server), QUICK)
        assert all(isinstance(each, Synced) for each in results), results
        assert all(content(node) == CONTENTS for node in nodes)
        assert shelves[liar].told
        honest = [node for number, node in enumerate(nodes) if number != liar]
        named = [node.named for node in honest if node.named]
        assert named, "whoever it lied to knows it"
        assert all(set(each) == {nodes[liar].address} for each in named)
        assert "object " in named[0][nodes[liar].address]
        assert nodes[liar].named == {}


def test_where_all_peers_lie_all_comes_from_the_store(tmp_path: Path, pki: Path, server: FlakyS3) -> None:
    liars = [PeerNode(tmp_path / f"liar{number}", pki, shelf=LyingShelf(tmp_path)) for number in range(3)]
    with closing_all([PeerNode(tmp_path / "honest", pki), *liars]) as nodes:
        synced_together(liars, s3(server), QUICK, members=liars[:0])  # each alone: they have it
        (done,) = synced_together(nodes[:1], s3(server), QUICK, members=nodes)
        assert isinstance(done, Synced)
        assert content(nodes[0]) == CONTENTS
        assert set(nodes[0].named) == {liar.address for liar in liars}
        assert from_store(nodes[:1]) == SIZE - SMALL


def test_peers_that_are_gone_silent_or_closed_are_done_without(tmp_path: Path, pki: Path, server: FlakyS3) -> None:
    quick = PeerPatience(silent_s=1.0, held_s=0.5)
    with closing_all([PeerNode(tmp_path / str(number), pki, patience=quick) for number in range(4)]) as nodes:
        nodes[3].close()  # nobody listens there
        with socket.create_server(("127.0.0.1", 0)) as silent:
            gone = f"127.0.0.1:{silent.getsockname()[1]}"
            for node in nodes:
                node.sharing.meet([*(each.address for each in nodes), gone])
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


@pytest.mark.parametrize("certificate", ["", "stranger", "client", "agent-stranger", "agent-expired"])
def test_strangers_are_given_nothing(certificate: str, tmp_path: Path, pki: Path, server: FlakyS3) -> None:
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


def showing(pki: Path, certificate: str) -> ssl.SSLContext:
    if certificate:
        return asking_context_of(peer_tls(pki, certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(pki / "ca.crt")
    return context


@pytest.mark.parametrize("certificate", ["server", "agent-stranger", "agent-expired"])
def test_nothing_is_asked_of_a_server_that_is_no_agent(certificate: str, tmp_path: Path, pki: Path) -> None:
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
        for target in (f"chunks/{'a' * 64}/0", f"chunks/{KEY}/{CHUNKS}", f"held/{KEY}/999999999"):
            with pytest.raises(Absent):
                asked(nodes[0], target, 1, showing(pki, "agent"))


def test_a_chunk_that_the_disk_has_damaged_is_not_given_and_its_node_is_not_called_a_liar(
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


def test_an_object_that_the_store_itself_has_wrong_is_an_error_and_nobody_is_named(
    tmp_path: Path, pki: Path, server: FlakyS3
) -> None:
    server.flipped = "weights.bin"
    with closing_all([PeerNode(tmp_path / str(number), pki) for number in range(2)]) as nodes:
        results = synced_together(nodes, s3(server), QUICK)
        assert all(isinstance(each, Unavailable) for each in results), results
        assert [node.named for node in nodes] == [{}, {}]
        server.flipped = ""
        synced_together(nodes, s3(server), QUICK)
        assert all(content(node) == CONTENTS for node in nodes)


def test_a_fetch_goes_on_where_it_was_cut_off(tmp_path: Path, pki: Path, server: FlakyS3) -> None:
    server.fault = lambda number: "503" if number > 6 else ""
    impatient = msgspec.structs.replace(QUICK, limits=TransferLimits(Patience(give_up_s=1.0, first_wait_s=0.1)))
    with closing_all([PeerNode(tmp_path / str(number), pki) for number in range(2)]) as nodes:
        results = synced_together(nodes, s3(server), impatient)
        assert any(isinstance(each, Unavailable) for each in results), results
        first = from_store(nodes)
        server.fault = lambda _number: ""
        results = synced_together(nodes, s3(server), QUICK)
        assert all(isinstance(each, Synced) for each in results), results
        assert all(content(node) == CONTENTS for node in nodes)
        assert from_store(nodes) - first < SIZE


@pytest.mark.parametrize("part_bytes", [0, CHUNK_BYTES], ids=["whole", "parts"])
def test_where_the_stores_checksums_prove_nothing_each_node_reads_all_of_it_and_nobody_is_named(
    part_bytes: int, tmp_path: Path, pki: Path, server: FlakyS3
) -> None:
    server.encrypted, server.part_bytes = True, part_bytes
    with closing_all([PeerNode(tmp_path / str(number), pki) for number in range(2)]) as nodes:
        results = synced_together(nodes, s3(server), QUICK)
        assert all(isinstance(each, Synced) for each in results), results
        assert all(content(node) == CONTENTS for node in nodes)
        assert all(node.sharing.bytes_from_stores >= SIZE - SMALL for node in nodes)
        assert [node.named for node in nodes] == [{}, {}]
        assert all(not file.checksum for file in nodes[0].folder.manifest(nodes[0].folder.current()).files if file.size)


class PublishingShelf(Shelf):
    """That of a node which publishes at this moment: what is proven is between two places."""

    def open(self, key: str, chunk: int, wait_s: float | None) -> OpenPiece:
        if wait_s is None:
            raise Pending
        return super().open(key, chunk, wait_s)


def test_a_peer_that_publishes_at_this_moment_ends_no_fetch(tmp_path: Path, pki: Path, server: FlakyS3) -> None:
    busy = PeerNode(tmp_path / "busy", pki, shelf=PublishingShelf())
    with closing_all([PeerNode(tmp_path / "late", pki), busy]) as nodes:
        synced_together([busy], s3(server), QUICK)
        (done,) = synced_together(nodes[:1], s3(server), QUICK, members=nodes)
        assert isinstance(done, Synced), done
        assert content(nodes[0]) == CONTENTS
        assert nodes[0].named == {}


@pytest.mark.parametrize("answer", [b"HTTP/1.1 200 OK", b"HTTP/1.1 404 Not Found\r\nContent-Length: 60000\r\n\r\n"])
def test_a_peer_whose_answer_comes_byte_by_byte_is_given_up_after_the_time_of_a_chunk(answer: bytes, pki: Path) -> None:
    ended = threading.Event()

    def drip(listener: socket.socket) -> None:
        connection = listener.accept()[0]
        made = context_of(peer_tls(pki)).wrap_socket(connection, server_side=True)
        with made as tls, contextlib.suppress(OSError):
            tls.sendall(answer)
            while not ended.wait(0.02):
                tls.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,), daemon=True)
        thread.start()
        peer = f"127.0.0.1:{listener.getsockname()[1]}"
        connections = PeerConnections(showing(pki, "agent"), PeerPatience(silent_s=30.0, chunk_s=0.5))
        try:
            with pytest.raises(Temporary, match="too slowly"):
                connections.fill(peer, f"chunks/{KEY}/0", memoryview(bytearray(10)), lambda: False)
        finally:
            ended.set()
            thread.join()
            connections.close()


@pytest.mark.parametrize(
    "peer", ["[::1", "127.0.0.1:999999", ":1", "127.0.0.1:port", "h\x00st:1", "x" * 300 + ":1", "ü" * 70 + ":1"]
)
def test_a_peer_whose_address_is_none_is_done_without(peer: str, tmp_path: Path, pki: Path, server: FlakyS3) -> None:
    with closing_all([PeerNode(tmp_path, pki)]) as nodes:
        (done,) = synced_together(nodes, s3(server), QUICK, extra=(peer,))
        assert isinstance(done, Synced), done
        assert content(nodes[0]) == CONTENTS


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
