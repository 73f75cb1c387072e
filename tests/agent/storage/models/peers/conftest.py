"""A fetch that has begun, for tests of its parts."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.sharedfetches import SharedFetch, shared_fetch


@pytest.fixture
def fetch(tmp_path: Path, pki: Path) -> Iterator[SharedFetch]:
    with shared_fetch(tmp_path, pki) as made:
        yield made
