"""The store of S3: what every store does."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.storesuite import StoreSuite
from harness.fasts3 import FastS3
from tessera.clients.store import ObjectStore, open_store


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
