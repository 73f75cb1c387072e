"""A folder as a store: what every store does."""

import os
import socket
from pathlib import Path

import pytest

from conformance.storesuite import Fill, StoreSuite, read
from tessera.clients.store import ObjectStore, Refused, open_store


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
            with pytest.raises(Refused, match=r"not a regular file|is a socket"):
                read(store, listed, 0, 6)
