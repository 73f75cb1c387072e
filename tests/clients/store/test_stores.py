"""Stores in memory, in a folder, behind a web server and behind S3 pass the same suite."""

import os
import shutil
import socket
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from conformance.storesuite import Fill, StoreSuite, read
from harness.fasts3 import FastS3
from tessera.clients.store import MemoryStore, Refused, Store, open_store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bucket/m").mkdir(parents=True)
    return tmp_path / "bucket/m"


@pytest.fixture
def fill(folder: Path) -> Fill:
    def replace(contents: dict[str, bytes]) -> None:
        shutil.rmtree(folder)
        folder.mkdir()
        for name, data in contents.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)

    return replace


class TestMemoryStore(StoreSuite):
    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore({})

    @pytest.fixture
    def fill(self, store: MemoryStore) -> Fill:
        def replace(contents: dict[str, bytes]) -> None:
            store.contents = dict(contents)

        return replace


class TestFolderStore(StoreSuite):
    @pytest.fixture
    def store(self, folder: Path) -> Store:
        return open_store(str(folder), {})

    @pytest.mark.parametrize("kind", ["pipe", "socket", "link to a pipe", "device"])
    def test_what_became_no_regular_file_is_refused_and_not_waited_for(
        self, kind: str, store: Store, fill: Fill, folder: Path
    ) -> None:
        fill({"file": b"before"})
        (listed,) = store.objects()
        path = folder / "file"
        path.unlink()
        with socket.socket(socket.AF_UNIX) as bound:
            if kind == "socket":
                bound.bind(str(path))
            elif kind == "device":
                path.symlink_to("/dev/zero")
            else:
                os.mkfifo(path if kind == "pipe" else folder.parent / "pipe")
                if kind == "link to a pipe":
                    path.symlink_to(folder.parent / "pipe")
            with pytest.raises(Refused, match="no regular file"):
                read(store, listed, 0, 6)


class Quiet(SimpleHTTPRequestHandler):
    """Python's own server: no ranges, no ETags."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name there
        pass


class TestWebStore(StoreSuite):
    @pytest.fixture
    def store(self, folder: Path) -> Iterator[Store]:
        with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder.parent))) as server:
            server.daemon_threads = True
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
            thread.start()
            made = open_store(f"http://127.0.0.1:{server.server_port}/m/", {})
            yield made
            made.close()
            server.shutdown()
            thread.join()


class TestS3Store(StoreSuite):
    """Pages of 1,000 keys, quoted as `encoding-type=url` asks; If-Match is honored."""

    @pytest.fixture
    def store(self, folder: Path) -> Iterator[Store]:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            server = FastS3(folder.parents[1], "md5", page=1000)
            thread = threading.Thread(target=server.accept, args=(listening,), daemon=True)
            thread.start()
            address = f"http://127.0.0.1:{listening.getsockname()[1]}"
            keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
            made = open_store("s3://bucket/m", {"AWS_ENDPOINT_URL": address, **keys})
            yield made
            made.close()
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()
