"""Small objects requested several at a time: whatever the server does with it, each comes right or is read alone."""

import contextlib
import hashlib
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest

from tessera.clients.store.http1 import Endpoint, request_of
from tessera.clients.store.pipelines import pipelined
from tessera.clients.store.protocol import SMALL_BYTES, Temporary
from tessera.core.storage.models.revisions import StoredObject

CONTENTS = {f"{number:03}": b"%d." % number * (1 + number * 7) for number in range(300)} | {"x": b"x" * SMALL_BYTES}


def listed(contents: dict[str, bytes]) -> list[StoredObject]:
    return [StoredObject(path, len(data), hashlib.sha256(data).hexdigest()) for path, data in contents.items()]


def request(found: StoredObject) -> bytes:
    return request_of("GET", f"/{found.path}", {"Host": "store"})


class Server:
    """Answers requests for `CONTENTS`, on each connection as `answer` says.

    `answer` takes the object's name, the number of the request on its connection and its answer; it returns what is
    sent, and whether the connection stays open.
    """

    def __init__(self, timeout_s: float) -> None:
        self.answer: Callable[[str, int, bytes], tuple[bytes, bool]] = lambda _path, _number, whole: (whole, True)
        self.connections = 0
        self.open = 0
        self.most_open = 0
        self.most_at_once = 0
        self.drops = False
        """Whether it forgets what has come with the first request."""
        self.accepts = 1000
        self._lock = threading.Lock()
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.endpoint = Endpoint(urlsplit(f"http://127.0.0.1:{self._listening.getsockname()[1]}"), timeout_s)
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def close(self) -> None:
        self.endpoint.close()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with self._lock:
            self.open += 1
            self.most_open = max(self.most_open, self.open)
        try:
            with connection:
                self._converse(connection)
        except OSError:
            pass
        finally:
            with self._lock:
                self.open -= 1

    def _converse(self, connection: socket.socket) -> None:
        data, number = b"", 0
        if self.open > self.accepts:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return
        while more := connection.recv(65536):
            data += more
            self.most_at_once = max(self.most_at_once, data.count(b"\r\n\r\n"))
            while b"\r\n\r\n" in data:
                head, _, data = data.partition(b"\r\n\r\n")
                if self.drops:
                    data = b""
                found = re.match(rb"GET /(\w+) ", head)
                assert found
                path = found[1].decode()
                body = CONTENTS[path]
                etag = hashlib.sha256(body).hexdigest()
                head = f'HTTP/1.1 200 OK\r\nETag: "{etag}"\r\nContent-Length: {len(body)}\r\n\r\n'.encode()
                whole = head + body
                sent, stays = self.answer(path, number, whole)
                number += 1
                connection.sendall(sent)
                if not stays:
                    return


@pytest.fixture
def server() -> Iterator[Server]:
    """One whose silence is noticed soon."""
    with contextlib.closing(Server(0.4)) as made:
        yield made


@pytest.fixture
def patient_server() -> Iterator[Server]:
    """One that is waited for, so that a busy machine is not taken for its silence."""
    with contextlib.closing(Server(60.0)) as made:
        yield made


def contents(server: Server, **options: int | bool) -> dict[str, bytes | None]:
    """Return what comes of all objects, each once."""
    got: dict[str, bytes | None] = {}
    for found, content in pipelined(server.endpoint, iter(listed(CONTENTS)), request, **options):  # type: ignore[arg-type]
        assert found.path not in got
        got[found.path] = None if content is None else bytes(content)
    assert got.keys() == CONTENTS.keys()
    assert all(content in {None, CONTENTS[path]} for path, content in got.items())
    return got


def alone(got: dict[str, bytes | None]) -> int:
    return sum(content is None for content in got.values())


def test_all_come_with_one_request_each_several_at_a_time_on_connections_that_are_kept(patient_server: Server) -> None:
    assert alone(contents(patient_server)) == 0
    assert patient_server.endpoint.requests == len(CONTENTS)
    assert patient_server.most_at_once > 4
    assert 8 < patient_server.connections <= 32
    kept = patient_server.connections
    with patient_server.endpoint.request("GET", "/001", {"Host": "store"}) as response:
        assert response.content() == CONTENTS["001"]
    assert patient_server.connections == kept


def test_one_at_a_time_on_each_connection_where_that_is_requested(patient_server: Server) -> None:
    assert alone(contents(patient_server, depth=1)) == 0
    assert patient_server.most_at_once == 1


@pytest.mark.parametrize("said", [True, False])
@pytest.mark.parametrize("answers", [1, 5])
def test_a_server_that_closes_connections_gets_the_requests_on_others(
    patient_server: Server, answers: int, *, said: bool
) -> None:
    def answer(_path: str, number: int, whole: bytes) -> tuple[bytes, bool]:
        time.sleep(0.01)
        last = number == answers - 1
        return whole.replace(b"\r\n", b"\r\nConnection: close\r\n", 1) if last and said else whole, not last

    patient_server.answer = answer
    assert alone(contents(patient_server)) == 0
    assert patient_server.connections >= len(CONTENTS) / answers
    assert patient_server.most_open > 8


def test_http_1_0_gets_requests_on_many_connections(patient_server: Server) -> None:
    def answer(_path: str, _number: int, whole: bytes) -> tuple[bytes, bool]:
        time.sleep(0.01)
        return whole.replace(b"HTTP/1.1", b"HTTP/1.0", 1), False

    patient_server.answer = answer
    assert alone(contents(patient_server)) == 0
    assert patient_server.most_at_once == 1
    assert patient_server.most_open > 8


def test_a_server_that_forgets_requests_gets_one_timeout_then_one_request_at_a_time(server: Server) -> None:
    server.drops = True
    begun = time.monotonic()
    got = contents(server)
    assert alone(got) <= 32
    assert time.monotonic() - begun < 32 * 0.4 + 5
    assert server.endpoint.requests < 3 * len(CONTENTS)


def test_few_connections_are_used_where_the_server_takes_no_more(server: Server) -> None:
    server.accepts = 3
    assert alone(contents(server)) <= 8
    assert server.connections <= 12
    assert server.most_at_once > 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"200 OK", b"503 Slow Down"),
        (b"200 OK", b"206 Partial Content"),
        (b'ETag: "', b'ETag: "0'),
        (b"Content-Length: ", b"Content-Length: 1"),
        (b"Content-Length: ", b"X: "),
        (b"\r\n", b"\r\nx-amz-server-side-encryption: aws:kms\r\n"),
        (b"HTTP/1.1", b"SSH-2.0"),
        (b"\r\n\r\n", b"\r\nX: " + b"y" * 70_000 + b"\r\n\r\n"),
    ],
)
def test_what_is_not_the_object_is_read_alone_and_all_others_come(server: Server, old: bytes, new: bytes) -> None:
    wrong = {"000", "007", "150", "299"}
    server.answer = lambda path, _number, whole: (whole.replace(old, new, 1) if path in wrong else whole, True)
    got = contents(server)
    assert {path for path, content in got.items() if content is None} == wrong


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_what_stalls_or_is_cut_is_read_alone(server: Server, share: float) -> None:
    wrong = {"000", "150"}

    def answer(path: str, _number: int, whole: bytes) -> tuple[bytes, bool]:
        return (whole[: int(len(whole) * share)], share == 0) if path in wrong else (whole, True)

    server.answer = answer
    got = contents(server)
    assert "000" in {path for path, content in got.items() if content is None}


def test_a_drip_is_given_up() -> None:
    def drip(connection: socket.socket, whole: bytes) -> None:
        for each in whole:
            connection.sendall(bytes((each,)))
            time.sleep(0.01)

    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                try:
                    drip(connection, b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n" + b"x" * 500)
                except OSError:
                    return

        thread = threading.Thread(target=serve)
        thread.start()
        endpoint = Endpoint(urlsplit(f"http://127.0.0.1:{listening.getsockname()[1]}"), 0.5)
        begun = time.monotonic()
        (found,) = pipelined(endpoint, [StoredObject("a", 500, "e")], request)
        assert found[1] is None
        assert time.monotonic() - begun < 3
        thread.join()


def test_nothing_is_requested_of_a_server_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    endpoint = Endpoint(urlsplit(f"http://127.0.0.1:{port}"), 0.5)
    got = list(pipelined(endpoint, listed(CONTENTS), request))
    assert [found for found, content in got if content is None] == listed(CONTENTS)
    assert endpoint.requests == 0


def test_an_object_that_nothing_tells_from_others_is_read_alone(server: Server) -> None:
    told = StoredObject("001", len(CONTENTS["001"]), "", "md5:0")
    untold = StoredObject("002", len(CONTENTS["002"]))
    got = {found: content and bytes(content) for found, content in pipelined(server.endpoint, [untold, told], request)}
    assert got == {told: CONTENTS["001"], untold: None}


def test_an_object_without_a_request_is_read_alone(server: Server) -> None:
    def refused(found: StoredObject) -> bytes:
        if found.path == "003":
            raise Temporary("no token")
        return request(found)

    got = {found.path: content for found, content in pipelined(server.endpoint, listed(CONTENTS), refused)}
    assert [path for path, content in got.items() if content is None] == ["003"]


def test_who_takes_no_more_leaves_no_connection_open(server: Server) -> None:
    coming = pipelined(server.endpoint, listed(CONTENTS), request)
    for _ in range(100):
        next(coming)
    coming.close()
    until = time.monotonic() + 5
    while server.open and time.monotonic() < until:
        time.sleep(0.01)
    assert server.open == 0
