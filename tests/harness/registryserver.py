"""A registry over HTTP on the loopback, which answers from one in memory; it may ask for a token, or misbehave."""

import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, urlsplit

from harness.httpserver import Asked, Server, answer, serving
from tessera.clients.registry import MemoryRegistry

Spoil = Callable[[Asked], bytes | None]
"""Returns an answer to send in place of the right one; None for the right one."""


def headed(status: str, *headers: str, body: bytes = b"") -> bytes:
    return "\r\n".join((f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "", "")).encode() + body


class RegistryServer:
    """Answers what the OCI distribution API has for pulls."""

    def __init__(self, memory: MemoryRegistry) -> None:
        self.memory = memory
        self.spoil: Spoil = lambda _: None
        self.user = ""
        """`USER:PASSWORD` that gets a token; empty where no token is needed."""
        self.server = Server(lambda _: None)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def play(self, requested: Asked) -> bytes:
        spoiled = self.spoil(requested)
        if spoiled is not None:
            return spoiled
        path = urlsplit(requested.target).path
        if path == "/token":
            return self._token(requested)
        if self.user and requested.headers.get("authorization") != "Bearer token-of-suite":
            challenge = f'Bearer realm="http://{self.host}/token",service="suite",scope="repository:suite/one:pull"'
            return headed("401 Unauthorized", f"WWW-Authenticate: {challenge}")
        repository, kind, name = path.removeprefix("/v2/").rsplit("/", 2)
        if kind == "manifests":
            found = self.memory.contents.get((repository, name))
            return answer(found.content, content_type=found.media_type) if found else headed("404 Not Found")
        blob = self.memory.blobs.get(name)
        return headed("404 Not Found") if blob is None else answer(blob)

    def _token(self, requested: Asked) -> bytes:
        given = requested.headers.get("authorization", "")
        if requested.method == "POST":
            form = parse_qs(requested.body.decode())
            known = form.get("refresh_token") == [self.user] and form.get("grant_type") == ["refresh_token"]
            return answer(b'{"access_token": "token-of-suite"}') if known else headed("401 Unauthorized")
        scoped = parse_qs(urlsplit(requested.target).query) == {
            "scope": ["repository:suite/one:pull"],
            "service": ["suite"],
        }
        known = given == f"Basic {base64.b64encode(self.user.encode()).decode()}"
        return answer(b'{"token": "token-of-suite"}') if known and scoped else headed("401 Unauthorized")


@asynccontextmanager
async def serving_registry(memory: MemoryRegistry) -> AsyncIterator[RegistryServer]:
    registry = RegistryServer(memory)
    async with serving(registry.play) as server:
        registry.server = server
        yield registry
