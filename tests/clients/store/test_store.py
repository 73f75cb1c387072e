"""Stores in memory, in a folder, behind a web server and behind S3 pass the same suite."""

import os
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from conformance.storesuite import Fill, StoreSuite, read
from harness.fasts3 import FastS3
from harness.hubserver import Hub
from harness.serving import served
from tessera.clients.store import MemoryStore, ObjectStore, Refused, Temporary, open_store
from tessera.core.storage.models.revisions import StoredObject
from tessera.errors import InvalidInput


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
    def store(self, folder: Path) -> ObjectStore:
        return open_store(str(folder), {})

    @pytest.mark.parametrize("kind", ["pipe", "socket", "link to a pipe", "device"])
    def test_what_became_no_regular_file_is_refused_and_not_waited_for(
        self, kind: str, store: ObjectStore, fill: Fill, folder: Path
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
    def store(self, folder: Path) -> Iterator[ObjectStore]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder.parent)))
        server.daemon_threads = True
        with served(server), closing(open_store(f"http://127.0.0.1:{server.server_port}/m/", {})) as made:
            yield made


class TestS3Store(StoreSuite):
    """Pages of 1,000 keys, quoted as `encoding-type=url` asks; If-Match is honored."""

    @pytest.fixture
    def store(self, folder: Path) -> Iterator[ObjectStore]:
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


class TestHubStore(StoreSuite):
    """Files are those of a commit: what was listed is read as it was, whatever the repository has become."""

    @pytest.fixture
    def hub(self) -> Hub:
        return Hub(token="secret")

    @pytest.fixture
    def fill(self, hub: Hub) -> Fill:
        return hub.put

    @pytest.fixture
    def store(self, hub: Hub) -> Iterator[ObjectStore]:
        with hub.served() as address:
            made = open_store("hf://owner/name", {"HF_ENDPOINT": address, "HF_TOKEN": "secret"})
            yield made
            made.close()

    def test_an_object_that_was_replaced_is_noticed(self, store: ObjectStore, fill: Fill) -> None:
        fill({"file": b"before"})
        (listed,) = store.objects()
        fill({"file": b"another"})
        assert read(store, listed, 0, listed.size) == b"before"
        (again,) = store.objects()
        assert read(store, again, 0, again.size) == b"another"

    def test_an_object_that_is_gone_is_refused(self, store: ObjectStore, fill: Fill) -> None:
        fill({"file": b"before"})
        gone = StoredObject("other", 6)
        store.objects()
        with pytest.raises(Refused, match="404"):
            read(store, gone, 0, gone.size)

    def test_what_was_asked_for_ahead_and_is_gone_is_refused(self, store: ObjectStore, fill: Fill) -> None:
        self.test_an_object_that_is_gone_is_refused(store, fill)

    def test_large_files_are_read_where_the_hub_leads_and_the_token_stays_with_it(
        self, store: ObjectStore, hub: Hub
    ) -> None:
        hub.put({"weights/1 %.bin": b"0123456789", "config.json": b"{}"})
        config, weights = store.objects()
        assert (config.checksum[:4], weights.checksum[:7]) == ("git:", "sha256:")
        before = store.requests
        assert read(store, weights, 2, 5) == b"234"
        assert read(store, weights, 0, 10) == b"0123456789"
        assert store.requests == before + 3  # the link is asked for once
        hub.signature = "second"
        with pytest.raises(Temporary, match="holds no longer"):
            read(store, weights, 0, 10)
        assert read(store, weights, 0, 10) == b"0123456789"
        assert set(hub.told_elsewhere) == {None}

    def test_no_token_and_no_repository_are_told(self, hub: Hub) -> None:
        hub.put({"file": b""})
        with hub.served() as address:
            anonymous = open_store("hf://owner/name", {"HF_ENDPOINT": address})
            with closing(anonymous), pytest.raises(Refused, match="it needs a token, HF_TOKEN"):
                anonymous.objects()
            other = open_store("hf://owner/name@no", {"HF_ENDPOINT": address, "HF_TOKEN": "secret"})
            with closing(other), pytest.raises(Refused, match="404"):
                other.objects()

    def test_a_folder_of_a_commit_is_listed_below_itself(self, hub: Hub) -> None:
        hub.put({"a/b/file": b"1", "a/other": b"2", "file": b"3"})
        commit = hub.main
        hub.put({"none": b""})
        with hub.served() as address:
            store = open_store(f"hf://owner/name@{commit}/a/", {"HF_ENDPOINT": address, "HF_TOKEN": "secret"})
            assert [each.path for each in store.objects()] == ["b/file", "other"]
            assert store.source == f"hf://owner/name@{commit}/a"
            assert [read(store, each, 0, 1) for each in store.objects()] == [b"1", b"2"]
            store.close()


@pytest.mark.parametrize(
    "address",
    ["hf://name", "hf://owner/na me", "hf://", "hf://owner/name@", "hf://owner/name@a b", "gs://", "gs://UP/x"],
)
def test_addresses_that_name_nothing_are_refused(address: str) -> None:
    with pytest.raises(InvalidInput):
        open_store(address, {"STORAGE_EMULATOR_HOST": "http://127.0.0.1:1"})
