"""A store that speaks S3 and fails as configured."""

import hashlib
import socket
import struct
import time
from collections.abc import Callable
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote, unquote, urlsplit

__all__ = ["FAULTS", "FlakyS3"]

FAULTS = ("503", "flip", "length", "cut", "stall", "reset", "drip")


@lru_cache(maxsize=512)
def _md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


@lru_cache(maxsize=512)
def _parts_md5(content: bytes, size: int) -> str:
    parts = [content[first : first + size] for first in range(0, len(content), size)]
    return f"{hashlib.md5(b''.join(hashlib.md5(each).digest() for each in parts)).hexdigest()}-{len(parts)}"


class FlakyS3(ThreadingHTTPServer):
    """Bucket `models` with objects below `m/`.

    Args:
        contents: the objects, which may be changed at any time.

    """

    daemon_threads = True

    def __init__(self, contents: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.contents = dict(contents)
        self.fault: Callable[[int], str] = lambda _number: ""
        """Returns one of `FAULTS`, another status, or nothing, for the number of a GET of an object."""
        self.flipped = ""
        """Name of an object of which a bit flips in each answer."""
        self.gets = 0
        self.encrypted = False
        """Whether ETags are no checksums, and the answers say so."""
        self.part_bytes = 0
        """Of what the ETags of objects that were uploaded in parts are made; 0 for uploads as a whole."""

    def etag(self, data: bytes) -> str:
        data = b"encrypted" + data if self.encrypted else data
        return _parts_md5(data, self.part_bytes) if self.part_bytes and data else _md5(data)

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that leave are expected."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FlakyS3

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name there
        pass

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path).removeprefix("/models")
        if not path:
            rows = "".join(
                f"<Contents><Key>{quote(f'm/{name}')}</Key><Size>{len(data)}</Size>"
                f"<ETag>&quot;{self.server.etag(data)}&quot;</ETag></Contents>"
                for name, data in self.server.contents.items()
            )
            self.answer(200, f"<ListBucketResult><EncodingType>url</EncodingType>{rows}</ListBucketResult>".encode())
            return
        self.server.gets += 1
        data = self.server.contents.get(path.removeprefix("/m/"))
        if data is None:
            self.answer(404, b"")
            return
        etag = self.server.etag(data)
        fault = self.server.fault(self.server.gets)
        if path == f"/m/{self.server.flipped}":
            fault = "flip"
        if fault.isdigit():
            self.answer(int(fault), b"slow down")
        elif self.headers["If-Match"] != f'"{etag}"':
            self.answer(412, b"changed")
        else:
            self.send(data, etag, fault)

    def send(self, data: bytes, etag: str, fault: str) -> None:
        total, status, more = len(data), 200, {"ETag": f'"{etag}"'}
        if self.server.encrypted:
            more["x-amz-server-side-encryption"] = "aws:kms"
        if wanted := self.headers["Range"]:
            first, last = map(int, wanted.removeprefix("bytes=").split("-"))
            data, status = data[first : last + 1], 206
            more["Content-Range"] = f"bytes {first}-{last}/{total}"
        if fault == "flip" and data:
            data = data[:-1] + bytes([data[-1] ^ 1])
        if fault == "length":
            data = data[:-1]
        if fault == "reset":  # so that the client gets no end of the stream, but a broken connection
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
        elif fault in {"cut", "stall", "drip"}:
            self.send_response(status)
            for name, value in {**more, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            if fault == "stall":
                self.rfile.read()  # until the client leaves
            for each in data[len(data) // 2 :] if fault == "drip" else b"":
                time.sleep(0.05)
                self.wfile.write(bytes((each,)))
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        else:
            self.answer(status, data, more)

    def answer(self, status: int, data: bytes, more: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(more or {}), "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
