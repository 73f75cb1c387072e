"""Nodes that fetch a model together: over real TLS, with peers that leave, are bad, slow or strangers."""

import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.flakys3 import FlakyS3
from harness.peernodes import BegunContent, PeerNode, closing_all, peer_tls, synced_together
from harness.peersyncs import CONTENTS, KEY, QUICK, SIZE, SMALL, content, from_store, s3, showing
from tessera.agent.storage.models.cancellation import Canceled, Cancellation
from tessera.agent.storage.models.chunkreads import ChunkReads
from tessera.agent.storage.models.modelsharing import NoSharing
from tessera.agent.storage.models.peers.peersharing import PeerSharing
from tessera.agent.storage.models.peers.shared import SharedTransfer
from tessera.agent.storage.models.reading import Progress, TransferLimits, TransferSource
from tessera.agent.storage.models.sync import Synced, sync
from tessera.certificates import context_of
from tessera.clients.store import MemoryStore, Temporary
from tessera.clients.store.peers import PeerConnections
from tessera.core.storage.models.peers.owners import PeerPatience
from tessera.core.storage.models.revisions import CHUNK_BYTES, StoredObject
from tessera.core.storage.retries import Patience
from tessera.errors import Unavailable


@pytest.mark.parametrize("part_bytes", [0, CHUNK_BYTES, 5 * 2**20], ids=["whole", "chunks", "parts"])
def test_nodes_read_a_model_from_the_store_once(part_bytes: int, tmp_path: Path, pki: Path, server: FlakyS3) -> None:
    server.part_bytes = part_bytes
    with closing_all([PeerNode(tmp_path / str(number), pki, served=BegunContent()) for number in range(4)]) as nodes:
        results = synced_together(nodes, s3(server), QUICK)
        assert all(isinstance(each, Synced) for each in results), results
        assert all(content(node) == CONTENTS for node in nodes)
        assert from_store(nodes) == SIZE - SMALL
        assert sum(node.peers.bytes_from_peers for node in nodes) == 3 * (SIZE - SMALL)
        assert sum(node.peers.bytes_served for node in nodes) == 3 * (SIZE - SMALL)
        assert [node.named for node in nodes] == [{}] * 4
        files = {each.path: each for each in nodes[0].folder.records.manifest(nodes[0].folder.current()).files}
        assert files["weights.bin"].checksum, "also where it is one of parts"
        late = PeerNode(tmp_path / "late", pki)
        nodes.append(late)
        synced_together([late], s3(server), QUICK, members=nodes)
        assert (content(late), late.peers.bytes_from_stores) == (CONTENTS, SMALL)


def test_a_node_that_comes_later_reads_nothing_but_small_objects_from_the_store(
    tmp_path: Path, pki: Path, server: FlakyS3
) -> None:
    with closing_all([PeerNode(tmp_path / str(number), pki) for number in range(3)]) as nodes:
        synced_together(nodes[:2], s3(server), QUICK)
        late = nodes[2]
        synced_together([late], s3(server), QUICK, members=nodes)
        assert content(late) == CONTENTS
        assert late.peers.bytes_from_stores == SMALL


def test_what_comes_from_peers_keeps_the_bandwidth_limit(tmp_path: Path, pki: Path, server: FlakyS3) -> None:
    slow = msgspec.structs.replace(QUICK, limits=TransferLimits(bytes_per_second=SIZE))
    with closing_all([PeerNode(tmp_path / str(number), pki) for number in range(2)]) as nodes:
        synced_together(nodes[:1], s3(server), QUICK)
        (done,) = synced_together(nodes[1:], s3(server), slow, members=nodes)
        assert isinstance(done, Synced)
        assert done.seconds > 0.7  # a quarter of a second's bytes may come ahead
        assert nodes[1].peers.bytes_from_stores == SMALL


def test_who_fetches_alone_reads_all_from_the_store(tmp_path: Path, pki: Path, server: FlakyS3) -> None:
    with closing_all([PeerNode(tmp_path, pki)]) as nodes:
        (done,) = synced_together(nodes, s3(server), QUICK)
        assert isinstance(done, Synced)
        assert (done.bytes, content(nodes[0])) == (SIZE, CONTENTS)


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


def test_a_canceled_fetch_ends_before_its_store_answers_and_the_next_goes_on_where_it_was_cut_off(
    tmp_path: Path, pki: Path, server: FlakyS3
) -> None:
    """The store serves two requests, and the next ones only after the fetch has ended."""
    cancellation = Cancellation()

    def fault(number: int) -> str:
        if number > 4:
            cancellation.cancel()
        return "503" if number > 2 else ""

    server.fault = fault
    with closing_all([PeerNode(tmp_path / "a", pki)]) as (node,):
        store, patient = (
            s3(server)(),
            TransferLimits(Patience(longest_wait_s=60.0, give_up_s=3600.0, first_wait_s=60.0)),
        )
        options = msgspec.structs.replace(QUICK, limits=patient)
        node.peers.set_peers([node.address])
        with pytest.raises(Canceled):
            sync(store, node.folder, options, sharing=PeerSharing(node.peers), cancellation=cancellation)
        store.close()
        assert not (node.folder.top / "current").exists()
        server.fault = lambda _number: ""
        (done,) = synced_together([node], s3(server), QUICK)
        assert isinstance(done, Synced)
        assert (content(node), done.bytes < SIZE) == (CONTENTS, True)


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
        assert first > 0
        fetched = [each.bytes for each in results if isinstance(each, Synced)]
        assert min(fetched) < SIZE, "who had read something before took it over; the other may have had nothing"


@pytest.mark.parametrize("shared_first", [True, False])
def test_a_fetch_that_goes_on_after_peers_were_switched_on_or_off_is_right(
    shared_first: bool, tmp_path: Path, pki: Path, server: FlakyS3
) -> None:
    server.fault = lambda number: "503" if number > 3 else ""
    impatient = msgspec.structs.replace(QUICK, limits=TransferLimits(Patience(give_up_s=1.0, first_wait_s=0.1)))
    with closing_all([PeerNode(tmp_path / "node", pki)]) as (node,):
        for shared, options in ((shared_first, impatient), (not shared_first, QUICK)):
            store = s3(server)()
            try:
                sync(store, node.folder, options, sharing=PeerSharing(node.peers) if shared else NoSharing())
            except Unavailable:
                assert options is impatient
                assert list(node.folder.staging.iterdir())
                server.fault = lambda _number: ""
            finally:
                store.close()
        assert content(node) == CONTENTS
        assert node.folder.damaged(node.folder.current(), ChunkReads()) == {}
        assert not list(node.folder.staging.iterdir())


@pytest.mark.parametrize("part_bytes", [0, CHUNK_BYTES], ids=["whole", "parts"])
def test_where_the_stores_checksums_prove_nothing_each_node_reads_all_of_it_and_nobody_is_named(
    part_bytes: int, tmp_path: Path, pki: Path, server: FlakyS3
) -> None:
    server.encrypted, server.part_bytes = True, part_bytes
    with closing_all([PeerNode(tmp_path / str(number), pki) for number in range(2)]) as nodes:
        results = synced_together(nodes, s3(server), QUICK)
        assert all(isinstance(each, Synced) for each in results), results
        assert all(content(node) == CONTENTS for node in nodes)
        assert all(node.peers.bytes_from_stores >= SIZE - SMALL for node in nodes)
        assert [node.named for node in nodes] == [{}, {}]
        assert all(
            not file.checksum for file in nodes[0].folder.records.manifest(nodes[0].folder.current()).files if file.size
        )


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
            with pytest.raises(Temporary, match="too slow"):
                connections.fill(peer, f"chunks/{KEY}/0", memoryview(bytearray(10)), lambda: False)
        finally:
            ended.set()
            thread.join()
            connections.close()


def test_a_part_of_another_size_than_it_seems_bans_nobody_and_is_no_error(
    tmp_path: Path, pki: Path, server: FlakyS3
) -> None:
    server.part_bytes = CHUNK_BYTES + 1  # six of them, as of 8 MiB
    with closing_all([PeerNode(tmp_path / str(number), pki) for number in range(3)]) as nodes:
        results = synced_together(nodes, s3(server), QUICK)
        assert all(isinstance(each, Synced) for each in results), results
        assert all(content(node) == CONTENTS for node in nodes)
        assert [node.named for node in nodes] == [{}] * 3
        files = {each.path: each for each in nodes[0].folder.records.manifest(nodes[0].folder.current()).files}
        assert (files["weights.bin"].checksum, bool(files["one.bin"].checksum)) == ("", True)


def test_the_error_that_ends_a_fetch_is_its_error_not_that_others_were_ended_by_it(tmp_path: Path, pki: Path) -> None:
    """The disk is full in one thread, while others wait for the store; these go on as soon as the fetch is to end."""
    ending = threading.Event()

    class Ending(threading.Event):
        def set(self) -> None:
            is_first = not self.is_set()
            super().set()
            if is_first:
                time.sleep(0.3)

    class Busy(MemoryStore):
        @contextlib.contextmanager
        def read(self, stored: StoredObject, start: int, stop: int) -> Iterator[Any]:
            ending.set()
            if start < stop <= stored.size:
                raise Temporary("503 Slow Down")
            yield

    store = Busy({"weights.bin": os.urandom(CHUNK_BYTES)})
    patient = TransferLimits(Patience(longest_wait_s=60.0, give_up_s=3600.0, first_wait_s=60.0))
    with closing_all([PeerNode(tmp_path / "a", pki)]) as (node,):
        node.peers.begin(store.objects())
        source = TransferSource(store, patient, Progress(lambda _done, _total: None, 0), Cancellation())
        transfer = SharedTransfer(source, tmp_path, node.peers)
        transfer._reader.stop = Ending()

        def fill_disk() -> None:
            ending.wait()
            transfer._fail(OSError(errno.ENOSPC, "No space left on device"))

        full = threading.Thread(target=fill_disk)
        full.start()
        with pytest.raises(OSError, match="No space left"):
            transfer.run(store.objects())
        full.join()
