"""A hub of repositories as `hf://` meets it: an API by pages, small files, and signed links to large ones elsewhere."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlsplit

from harness.serving import served

__all__ = ["Hub"]

_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


class Hub:
    """One repository, `owner/name`, whose branch `main` is what was put last; former commits stay.

    Args:
        token: what reads it; empty where it is public.
        page: entries of a page of the listing.

    """

    def __init__(self, token: str = "", page: int = 1000) -> None:
        self.token = token
        self.page = page
        self.large = "weights/"
        """Files below this folder lie elsewhere."""
        self.commits = dict[str, dict[str, bytes]]()
        self.main = ""
        self.leads_to = ""
        """Where large files lie: the address of the second server."""
        self.signature = "first"
        self.told_elsewhere = list[str | None]()
        """Authorization of each request at the second server."""

    def put(self, contents: dict[str, bytes]) -> None:
        """Commit."""
        rows = repr(sorted((name, hashlib.sha1(data).hexdigest()) for name, data in contents.items()))
        self.main = hashlib.sha1(rows.encode()).hexdigest()
        self.commits[self.main] = dict(contents)

    @contextmanager
    def served(self) -> Iterator[str]:
        """Give the hub's address while it is served on loopback."""
        with _server(self._hub) as address, _server(self._elsewhere) as self.leads_to:
            yield address

    def _hub(self, request: "_Handler") -> None:
        parts = urlsplit(request.path)
        path = [unquote(each) for each in parts.path.split("/")[1:]]
        if self.token and request.headers["Authorization"] != f"Bearer {self.token}":
            request.answer(401, b"{}")
        elif path[:5] == ["api", "models", "owner", "name", "revision"]:
            commit = self.main if path[5] == "main" else path[5]
            found = commit in self.commits
            request.answer(200 if found else 404, json.dumps({"id": "owner/name", "sha": commit}).encode())
        elif path[:5] == ["api", "models", "owner", "name", "tree"]:
            self._tree(request, path[5], "/".join(path[6:]), int(parse_qs(parts.query).get("cursor", ["0"])[0]))
        elif path[:3] == ["owner", "name", "resolve"] and path[3] in self.commits:
            self._resolve(request, path[3], "/".join(path[4:]))
        else:
            request.answer(404, b"{}")

    def _tree(self, request: "_Handler", commit: str, folder: str, first: int) -> None:
        below = f"{folder}/" if folder else ""
        names = [each for each in sorted(self.commits[commit]) if each.startswith(below)]
        rows: list[dict[str, object]] = [{"type": "directory", "path": "some", "oid": "0" * 40, "size": 0}]
        rows += [self._entry(name, self.commits[commit][name]) for name in names]
        more = {}
        if first + self.page < len(rows):
            following = f"{request.path.partition('?')[0]}?recursive=true&cursor={first + self.page}"
            more["Link"] = f'<{following}>; rel="next"'
        request.answer(200, json.dumps(rows[first : first + self.page]).encode(), more)

    def _entry(self, name: str, data: bytes) -> dict[str, object]:
        entry: dict[str, object] = {"type": "file", "path": name, "size": len(data)}
        entry["oid"] = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        if name.startswith(self.large):
            entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
        return entry

    def _resolve(self, request: "_Handler", commit: str, name: str) -> None:
        if name not in self.commits[commit]:
            request.answer(404, b"{}")
        elif name.startswith(self.large):
            link = f"{self.leads_to}/{commit}/{quote(name)}?signature={self.signature}"
            request.answer(302, b"", {"Location": link})
        else:
            request.give(self.commits[commit][name])

    def _elsewhere(self, request: "_Handler") -> None:
        parts = urlsplit(request.path)
        self.told_elsewhere.append(request.headers["Authorization"])
        _, commit, name = unquote(parts.path).split("/", 2)
        if parts.query != f"signature={self.signature}" or request.command != "GET":
            request.answer(403, b"<Error/>")
        else:
            request.give(self.commits[commit][name])


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "_Server"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name there
        pass

    def do_GET(self) -> None:
        self.server.serving(self)

    def do_HEAD(self) -> None:
        self.server.serving(self)

    def give(self, data: bytes) -> None:
        """Send a file or the range that is asked for."""
        if requested := _RANGE.fullmatch(self.headers.get("Range", "")):
            first, last = int(requested[1]), int(requested[2])
            self.answer(206, data[first : last + 1], {"Content-Range": f"bytes {first}-{last}/{len(data)}"})
        else:
            self.answer(200, data, {"ETag": '"not the listing\'s"'})

    def answer(self, status: int, content: bytes, more: dict[str, str] | None = None) -> None:
        """Send an answer."""
        self.send_response(status)
        for name, value in {**(more or {}), "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, serving: Callable[[_Handler], None]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.serving = serving

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that leave are expected."""


@contextmanager
def _server(serving: Callable[[_Handler], None]) -> Iterator[str]:
    with served(_Server(serving)) as server:
        yield f"http://127.0.0.1:{server.server_port}"
