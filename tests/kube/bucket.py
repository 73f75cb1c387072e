"""An S3 server for tests on a testbed: a folder as a bucket, which asks for a signature.

python bucket.py FOLDER ADDRESS PORT ACCESS_KEY SECRET_KEY
"""

import hashlib
import sys
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tessera.clients.store.s3 import S3Settings, sign


class Bucket(ThreadingHTTPServer):
    """The bucket `models`."""

    daemon_threads = True

    def __init__(self, folder: Path, address: tuple[str, int], settings: S3Settings) -> None:
        super().__init__(address, Handler)
        self.folder = folder
        self.settings = settings


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Bucket

    def do_GET(self) -> None:
        if self.headers.get("Authorization") != self.expected():
            self.answer(403, b"<Error><Code>SignatureDoesNotMatch</Code></Error>")
            return
        parts = urlsplit(self.path)
        if parts.query:
            self.listing(parse_qs(parts.query).get("prefix", [""])[0])
            return
        path = self.server.folder / unquote(parts.path).removeprefix("/models/")
        if path.is_file():
            content = path.read_bytes()
            self.answer(200, content, etag(content))
        else:
            self.answer(404, b"")

    def expected(self) -> str:
        """Return the signature that this request has to have."""
        _, _, rest = self.headers.get("Authorization", "").partition("SignedHeaders=")
        names = [each for each in rest.partition(",")[0].split(";") if not each.startswith("x-amz-")]
        signed = {each: self.headers.get(each, "") for each in names}
        moment = self.headers.get("x-amz-date") or "20000101T000000Z"
        when = datetime.strptime(moment, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        return sign(self.server.settings, when, self.path, signed).get("Authorization", "none")

    def listing(self, prefix: str) -> None:
        rows = "".join(
            f"<Contents><Key>{quote(name)}</Key><Size>{path.stat().st_size}</Size>"
            f"<ETag>&quot;{etag(path.read_bytes())}&quot;</ETag></Contents>"
            for path in sorted(self.server.folder.rglob("*"))
            if path.is_file() and (name := str(path.relative_to(self.server.folder))).startswith(prefix)
        )
        self.answer(200, f"<ListBucketResult><EncodingType>url</EncodingType>{rows}</ListBucketResult>".encode())

    def answer(self, status: int, content: bytes, tag: str = "") -> None:
        wanted = self.headers.get("Range") if status == 200 else None
        total, first = len(content), 0
        if wanted:
            first, last = map(int, wanted.removeprefix("bytes=").split("-"))
            content, status = content[first : last + 1], 206
        self.send_response(status)
        if wanted:
            self.send_header("Content-Range", f"bytes {first}-{first + len(content) - 1}/{total}")
        if tag:
            self.send_header("ETag", f'"{tag}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def etag(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


if __name__ == "__main__":
    folder, address, port, access, secret = sys.argv[1:]
    settings = S3Settings(access_key=access, secret_key=secret)
    Bucket(Path(folder), (address, int(port)), settings).serve_forever()
