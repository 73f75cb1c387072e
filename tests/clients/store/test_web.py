"""A web server as a store: what every store does."""

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from conformance.storesuite import StoreSuite
from harness.serving import served
from tessera.clients.store import ObjectStore, open_store


class Quiet(SimpleHTTPRequestHandler):
    """Python's own server: no ranges, no ETags."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name there
        pass


class TestWebStore(StoreSuite):
    @pytest.fixture
    def store(self, folder: Path) -> Iterator[ObjectStore]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder.parent)))
        server.daemon_threads = True
        with served(server), closing(open_store(f"http://127.0.0.1:{server.server_port}/m/", {})) as made:
            yield made
