"""A sync end to end: the folder that readers see, resumed and damaged copies, stores that fail."""

from pathlib import Path

import pytest

from harness.flakys3 import FlakyS3
from harness.modelsyncs import CONTENTS, content, run, s3
from tessera.clients.store import MemoryStore
from tessera.errors import Unavailable


def test_a_revision_is_fetched_once(tmp_path: Path, server: FlakyS3) -> None:
    first = run(s3(server), tmp_path)
    assert content(tmp_path / "current") == CONTENTS
    assert (first.files, first.bytes) == (3, sum(map(len, CONTENTS.values())))
    assert first.requests == 6 - 1  # a listing, three chunks, a small file; nothing is asked for an empty one
    again = run(s3(server), tmp_path)
    assert (again.revision, again.bytes, again.requests) == (first.revision, 0, 1)


def test_an_empty_listing_replaces_nothing(tmp_path: Path) -> None:
    store = MemoryStore({"a": b"1"})
    run(store, tmp_path)
    store.contents.clear()
    with pytest.raises(Unavailable, match="no objects"):
        run(store, tmp_path)
    assert content(tmp_path / "current") == {"a": b"1"}


def test_a_disk_without_room_is_found_before_anything_is_fetched(tmp_path: Path) -> None:
    store = MemoryStore(CONTENTS)
    with pytest.raises(Unavailable, match="too little"):
        run(store, tmp_path, reserve_bytes=2**60)
    assert store.requests == 1
