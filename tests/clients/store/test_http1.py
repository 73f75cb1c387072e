"""What servers may send, and what they should not: each answer is the object, or an error within a bound."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from tessera.clients.store import Changed, ObjectStore, Refused, Temporary
from tessera.clients.store.http1 import Endpoint
from tessera.clients.store.ranges import condition, read_range
from tessera.clients.store.s3 import S3Settings, S3Store, utc_now
from tessera.clients.store.web import WebStore
from tessera.core.storage.models.revisions import StoredObject

CONTENT = b"right content"
FOUND = StoredObject("f", len(CONTENT), "v1")
RIGHT = b'HTTP/1.1 200 OK\r\nETag: "v1"\r\nContent-Length: 13\r\n\r\n' + CONTENT
CHUNKS = b"d\r\n" + CONTENT + b"\r\n0\r\n\r\n"

Answer = Callable[[bytes], Iterator[bytes]]


@contextmanager
def served(answer: Answer) -> Iterator[str]:
    """Give the address of a server that sends what is answered to the first line of each request."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as listening:
        thread = threading.Thread(target=_accept, args=(listening, answer))
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def _accept(listening: socket.socket, answer: Answer) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:
            return
        threading.Thread(target=_serve, args=(connection, answer), daemon=True).start()


def _serve(connection: socket.socket, answer: Answer) -> None:
    data = b""
    with connection:
        try:
            while more := connection.recv(65536):
                data += more
                while b"\r\n\r\n" in data:
                    head, _, data = data.partition(b"\r\n\r\n")
                    for piece in answer(head.partition(b"\r\n")[0]):
                        connection.sendall(piece)
        except OSError:
            return


def always(*pieces: bytes) -> Answer:
    return lambda _line: iter(pieces)


def dripping(begin: bytes, piece: bytes) -> Answer:
    def answer(_line: bytes) -> Iterator[bytes]:
        yield begin
        while True:
            time.sleep(0.02)
            yield piece

    return answer


def whole(address: str, start: int = 0) -> bytes:
    endpoint = Endpoint(urlsplit(address), 0.3)
    buffer, done = memoryview(bytearray(len(CONTENT) - start)), 0
    try:
        with read_range(endpoint, "/f", {"Host": "h"}, FOUND, (start, len(CONTENT))) as response:
            while done < len(buffer) and (count := response.readinto(buffer[done:])):
                done += count
    finally:
        endpoint.close()
    return bytes(buffer[:done])


def listed(store: ObjectStore) -> tuple[StoredObject, ...]:
    try:
        return store.objects()
    finally:
        store.close()


@pytest.mark.parametrize(
    "interim",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\nLink: </x>; rel=preload\r\n\r\n",
        b"HTTP/1.1 102 Processing\r\n\r\n" * 3,
    ],
)
def test_interim_answers_are_no_content(interim: bytes) -> None:
    with served(always(interim + RIGHT)) as address:
        assert whole(address) == CONTENT
    with served(always(interim, RIGHT)) as address:
        assert whole(address) == CONTENT
        assert whole(address, 6) == CONTENT[6:]


@pytest.mark.parametrize(
    "head",
    [
        b"200 OK\r\nTransfer-Encoding: gzip, chunked",
        b"200 OK\r\nTransfer-Encoding: chunked, chunked",
        b"200 OK\r\nTransfer-Encoding: chunked",
        b"202 Accepted",
        b"203 Non-Authoritative Information",
        b"200 OK\r\nContent-Length: " + b"9" * 5000,
        b"200 OK\r\nContent-Length: \xb2",
    ],
)
def test_what_cannot_be_distinguished_from_content_is_an_error(head: bytes) -> None:
    with (
        served(always(b"HTTP/1.1 " + head + b'\r\nETag: "v1"\r\n\r\n' + CHUNKS)) as address,
        pytest.raises((Temporary, Changed)),
    ):
        whole(address)


@pytest.mark.parametrize("begin", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 100 Continue\r\n\r\n"])
def test_a_head_that_drips_is_given_up(begin: bytes) -> None:
    piece = b"x" if begin.endswith(b": ") else begin
    begun = time.monotonic()
    with served(dripping(begin, piece)) as address, pytest.raises(Temporary, match="too slow"):
        whole(address)
    assert time.monotonic() - begun < 5


def test_an_object_that_drips_before_the_range_is_given_up() -> None:
    head = b'HTTP/1.1 200 OK\r\nETag: "v1"\r\nContent-Length: 1000000\r\n\r\n'
    found = StoredObject("f", 1_000_000, "v1")
    with served(dripping(head, b"x")) as address:
        endpoint = Endpoint(urlsplit(address), 0.3)
        with (
            pytest.raises(Temporary, match="too slow"),
            read_range(endpoint, "/f", {"Host": "h"}, found, (999_990, 1_000_000)),
        ):
            pass
        endpoint.close()


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b" "),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        (b"HTTP/1.1 200 OK\r\n\r\n", b" "),
    ],
)
def test_a_listing_that_drips_is_given_up(begin: bytes, piece: bytes) -> None:
    with served(dripping(begin, piece)) as address, pytest.raises(Temporary, match="too slow"):
        listed(WebStore(f"{address}/m/", 0.3))


def test_a_slow_listing_that_makes_progress_is_read() -> None:
    page = b"<a href='f'>f</a>" + b" " * 400_000

    def answer(line: bytes) -> Iterator[bytes]:
        if line.startswith(b"HEAD"):
            yield b'HTTP/1.1 200 OK\r\nETag: "v1"\r\nContent-Length: 13\r\n\r\n'
            return
        yield b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(page)
        for first in range(0, len(page), 40_000):
            time.sleep(0.1)
            yield page[first : first + 40_000]

    with served(answer) as address:
        assert listed(WebStore(f"{address}/m/", 0.5)) == (FOUND_UNRANGED,)


FOUND_UNRANGED = StoredObject("f", len(CONTENT), "v1", "", ranges=False)


@pytest.mark.parametrize("length", [b"9" * 20, b"9" * 5000, b"1000000000000"])
def test_a_listing_of_absurd_length_is_an_error(length: bytes) -> None:
    with (
        served(always(b"HTTP/1.1 200 OK\r\nContent-Length: " + length + b"\r\n\r\n")) as address,
        pytest.raises(Temporary),
    ):
        listed(WebStore(f"{address}/m/"))


def test_folders_without_end_are_refused() -> None:
    page = b'<a href="a/">a</a>'
    with (
        served(always(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(page) + page)) as address,
        pytest.raises(Refused, match="10,000 folders"),
    ):
        listed(WebStore(f"{address}/m/"))


def test_links_that_are_no_addresses_are_left_out() -> None:
    page = b'<a href="http://[::1">x</a><a href="f">f</a>'

    def answer(line: bytes) -> Iterator[bytes]:
        size, body = (13, b"") if line.startswith(b"HEAD") else (len(page), page)
        yield b'HTTP/1.1 200 OK\r\nETag: "v1"\r\nContent-Length: %d\r\n\r\n' % size + body

    with served(answer) as address:
        assert listed(WebStore(f"{address}/m/")) == (FOUND_UNRANGED,)


def s3(address: str) -> S3Store:
    return S3Store("bucket", "m", S3Settings(address), utc_now)


def page_of(token: str) -> bytes:
    row = "<Contents><Key>m/a</Key><Size>1</Size></Contents>"
    page = f"<ListBucketResult>{row}<IsTruncated>true</IsTruncated>"
    body = f"{page}<NextContinuationToken>{token}</NextContinuationToken></ListBucketResult>".encode()
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def test_a_listing_whose_pages_repeat_is_an_error() -> None:
    tokens = iter(range(1000))
    with served(lambda _line: iter([page_of(str(next(tokens)))])) as address:
        store = s3(address)
        with pytest.raises(Temporary, match="does not end"):
            store.objects()
        assert store.requests == 2
        store.close()


def test_a_bucket_of_another_region_is_reported_there() -> None:
    answer = b"HTTP/1.1 301 Moved Permanently\r\nx-amz-bucket-region: eu-west-9\r\nContent-Length: 0\r\n\r\n"
    with served(always(answer)) as address, pytest.raises(Refused, match=r"another region or endpoint.*eu-west-9"):
        listed(s3(address))


@pytest.mark.parametrize("etag", ["日本", "a\r\nX-Evil: 1", 'a"b', ""])
def test_an_etag_that_no_header_can_carry_is_no_condition(etag: str) -> None:
    assert "If-Match" not in condition(StoredObject("f", 1, etag), 0, 1)
    assert condition(StoredObject("f", 1, "v1-2/ü"), 0, 1)["If-Match"] == '"v1-2/ü"'


@pytest.mark.parametrize("host", ["a..b", "a" * 70 + ".example"])
def test_a_name_that_no_host_has_is_refused(host: str) -> None:
    with pytest.raises(Refused, match="no name of a host"):
        listed(WebStore(f"http://{host}/f"))


@pytest.mark.parametrize("name", [b"302 Found\r\nLocation", b"206 Partial\r\nContent-Range"])
def test_what_a_server_reports_does_not_reach_the_terminal_as_it_is(name: bytes) -> None:
    answer = b"HTTP/1.1 " + name + b": \x1b]0;mine\x07\r\nContent-Length: 13\r\n\r\n" + CONTENT
    with served(always(answer)) as address, pytest.raises((Refused, Changed)) as raised:
        whole(address)
    assert "mine" in str(raised.value)
    assert str(raised.value).isprintable()


@pytest.mark.parametrize("coding", ["utf-8", "utf-16"])
def test_a_listing_with_a_document_type_is_refused(coding: str) -> None:
    kind = '<!DOCTYPE x [<!ENTITY a "m/a">]>'
    page = f'<?xml version="1.0" encoding="{coding}"?>{kind}<ListBucketResult>&a;</ListBucketResult>'
    body = page.encode(coding)
    with (
        served(always(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)) as address,
        pytest.raises(Refused, match="document type"),
    ):
        listed(s3(address))
