"""A fast S3 server for benchmarks and tests: sends ranges of files by sendfile; signatures are not checked.

`python -m harness.fasts3 FOLDER PORT multipart|md5`: the folders in FOLDER are buckets.
"""

import contextlib
import hashlib
import os
import re
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

_PIECE_BYTES = 2**20
TIME, HTTP_TIME = "2026-11-01T00:00:00.000Z", "Sun, 01 Nov 2026 00:00:00 GMT"


class Bucket:
    """Sizes and ETags of a folder's files, and its listing."""

    def __init__(self, folder: Path, etags: str) -> None:
        self.objects: dict[str, tuple[str, int, str]] = {}
        for path in sorted(each for each in folder.rglob("*") if each.is_file()):
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "md5").hexdigest()
            name, etag = str(path.relative_to(folder)), digest if etags == "md5" else f"{digest}-2"
            self.objects[name] = (str(path), path.stat().st_size, etag)

    def listing(self, bucket: str, query: dict[str, str], most: int) -> bytes:
        """Return a page of objects; all of them where `most` is 0."""
        prefix, after = query.get("prefix", ""), query.get("continuation-token", "")
        names = sorted(name for name in self.objects if name.startswith(prefix) and name > after)
        page = names[:most] if most else names
        show = quote if query.get("encoding-type") == "url" else escape
        rows = "".join(
            f"<Contents><Key>{show(name)}</Key><LastModified>{TIME}</LastModified>"
            f"<ETag>&quot;{self.objects[name][2]}&quot;</ETag>"
            f"<Size>{self.objects[name][1]}</Size><StorageClass>STANDARD</StorageClass></Contents>"
            for name in page
        )
        cut = "true" if page != names else "false"
        text = f"<Name>{bucket}</Name><Prefix>{show(prefix)}</Prefix><IsTruncated>{cut}</IsTruncated>"
        if "encoding-type" in query:
            text += "<EncodingType>url</EncodingType>"
        if page != names:
            text += f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>"
        space = "http://s3.amazonaws.com/doc/2006-03-01/"
        return f'<?xml version="1.0"?><ListBucketResult xmlns="{space}">{text}{rows}</ListBucketResult>'.encode()


class FastS3:
    """Serves the folders in a folder as buckets.

    Args:
        folder: has the buckets.
        etags: `md5`, or `multipart` for ETags that are no digest.
        page: keys a page; with 0 all are one page, and what is in the folder is read once.

    """

    def __init__(self, folder: Path, etags: str, page: int = 0) -> None:
        self._folder = folder
        self._etags = etags
        self._page = page
        self.sent = 0
        """Bytes of objects that were sent."""
        self._pages: dict[str, bytes] = {}
        self._buckets = self._read()

    def _read(self) -> dict[str, Bucket]:
        return {each.name: Bucket(each, self._etags) for each in self._folder.iterdir() if each.is_dir()}

    def accept(self, listening: socket.socket) -> None:
        """Serve until the socket is shut down."""
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data = b""
        with connection, contextlib.suppress(ConnectionError):
            while True:
                while b"\r\n\r\n" not in data:
                    more = connection.recv(65536)
                    if not more:
                        return
                    data += more
                head, _, data = data.partition(b"\r\n\r\n")
                self._answer(connection, head.decode("latin-1"))
                if b"HTTP/1.0" in head.split(b"\r\n", 1)[0]:
                    return

    def _answer(self, connection: socket.socket, head: str) -> None:
        method, target, *_ = head.split(" ", 2)
        parts = urlsplit(target)
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        buckets = self._read() if self._page else self._buckets
        if bucket not in buckets or (key and key not in buckets[bucket].objects):
            connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        elif key:
            for sent in _sent_object(connection, method, head, buckets[bucket].objects[key]):
                self.sent += sent
        else:
            page = self._pages.get(target)
            if page is None:
                query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                page = buckets[bucket].listing(bucket, query, self._page)
            if not self._page:
                self._pages[target] = page
            header = f"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: {len(page)}\r\n\r\n"
            connection.sendall(header.encode() + (page if method == "GET" else b""))


def _sent_object(connection: socket.socket, method: str, head: str, found: tuple[str, int, str]) -> Iterator[int]:
    """Answer, and yield the bytes of the object as they go."""
    path, size, etag = found
    wanted = re.search(r'\r\nif-match: "([^"]*)"', head, re.IGNORECASE)
    if wanted and wanted[1] != etag:
        connection.sendall(b"HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n")
        return
    first, last, status, more = 0, size - 1, "200 OK", ""
    if part := re.search(r"\r\nrange: bytes=(\d+)-(\d*)", head, re.IGNORECASE):
        first, last, status = int(part[1]), min(int(part[2] or size - 1), size - 1), "206 Partial Content"
        more = f"Content-Range: bytes {first}-{last}/{size}\r\n"
    header = (
        f'HTTP/1.1 {status}\r\nContent-Length: {last + 1 - first}\r\nETag: "{etag}"\r\nLast-Modified: {HTTP_TIME}\r\n'
        f"Accept-Ranges: bytes\r\n{more}\r\n"
    )
    connection.sendall(header.encode(), socket.MSG_MORE if method == "GET" and size else 0)
    if method == "GET":
        file = os.open(path, os.O_RDONLY)
        try:
            while first <= last:
                sent = os.sendfile(connection.fileno(), file, first, min(last + 1 - first, _PIECE_BYTES))
                first += sent
                yield sent
        finally:
            os.close(file)


def main() -> None:
    """Serve until the process is ended."""
    folder, port, etags = sys.argv[1:]
    server = FastS3(Path(folder), etags)
    with socket.create_server(("127.0.0.1", int(port)), backlog=1024) as listening:
        server.accept(listening)


if __name__ == "__main__":
    main()
