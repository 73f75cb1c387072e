"""An S3 server for tests on a testbed: a folder as a bucket, which asks for a signature.

python bucket.py FOLDER ADDRESS PORT ACCESS_KEY SECRET_KEY
"""

import hashlib
import hmac
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit


class Bucket(ThreadingHTTPServer):
    """The bucket `models`."""

    daemon_threads = True

    def __init__(self, folder: Path, address: tuple[str, int], access: str, secret: str) -> None:
        super().__init__(address, Handler)
        self.folder, self.access, self.secret = folder, access, secret


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Bucket

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.is_signed(content):
            path = self.server.folder / unquote(urlsplit(self.path).path).removeprefix("/models/")
            path.parent.mkdir(parents=True, exist_ok=True)
            (new := path.with_name(f".{path.name}")).write_bytes(content)
            new.replace(path)
            self.answer(200, b"", etag(content))

    def do_GET(self) -> None:
        if not self.is_signed():
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

    def is_signed(self, content: bytes = b"") -> bool:
        """Return whether the request has the owner's signature; refuse it otherwise.

        Source: AWS, "Authenticating Requests (AWS Signature Version 4)".
        """
        credential, _, rest = self.headers.get("Authorization", "").partition(", SignedHeaders=")
        names, _, signature = rest.partition(", Signature=")
        _, _, scope = credential.partition(f"Credential={self.server.access}/")
        path, _, query = self.path.partition("?")
        fields = "".join(f"{name}:{self.headers.get(name, '').strip()}\n" for name in names.split(";"))
        payload = self.headers.get("x-amz-content-sha256", "")  # S3 wants it, and in the signature
        canonical = f"{self.command}\n{path}\n{query}\n{fields}\n{names}\n{payload}"
        text = f"AWS4-HMAC-SHA256\n{self.headers.get('x-amz-date')}\n{scope}\n{sha256(canonical.encode())}"
        key = f"AWS4{self.server.secret}".encode()
        for part in (*scope.split("/"), text):
            key = hmac.digest(key, part.encode(), "sha256")
        whole = payload in {"UNSIGNED-PAYLOAD", sha256(content)} and "x-amz-content-sha256" in names.split(";")
        if not whole or key.hex() != signature:
            self.answer(403, b"<Error><Code>SignatureDoesNotMatch</Code></Error>")
            return False
        return True

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


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def etag(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


if __name__ == "__main__":
    folder, address, port, access, secret = sys.argv[1:]
    Bucket(Path(folder), (address, int(port)), access, secret).serve_forever()
