"""A web server as a store: what every store does."""

import threading
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


class Together(Quiet):
    """Answers no HEAD before four of them have come."""

    four = threading.Barrier(4, timeout=10)

    def do_HEAD(self) -> None:
        self.four.wait()
        super().do_HEAD()


def test_sizes_of_files_are_requested_side_by_side(tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / str(number)).write_bytes(bytes(number))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Together, directory=str(tmp_path)))
    server.daemon_threads = True
    with served(server), closing(open_store(f"http://127.0.0.1:{server.server_port}/", {})) as store:
        assert sorted((each.path, each.size) for each in store.objects()) == [(str(size), size) for size in range(8)]
        assert store.requests == 1 + 8


class TestWebStore(StoreSuite):
    @pytest.fixture
    def store(self, folder: Path) -> Iterator[ObjectStore]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder.parent)))
        server.daemon_threads = True
        with served(server), closing(open_store(f"http://127.0.0.1:{server.server_port}/m/", {})) as made:
            yield made
