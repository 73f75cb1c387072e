"""Folders for sockets."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give an empty folder whose path is short enough for a unix socket, which that of `tmp_path` is not."""
    with tempfile.TemporaryDirectory(prefix="tessera-") as name:
        yield Path(name)
