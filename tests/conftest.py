"""Settings of all tests."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# No deadlines: a busy machine is not a defect. Where CI is set, the same examples each time, so that a change does not
# fail for what was there before; elsewhere new examples, which is how laws find what nobody thought of.
settings.register_profile("tessera", deadline=None, derandomize=bool(os.environ.get("CI")), print_blob=True)
settings.load_profile("tessera")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run asynchronous tests, those marked `anyio`, on asyncio alone, as the program runs."""
    return "asyncio"


@pytest.fixture
def socket_folder() -> Iterator[Path]:
    """Give an empty folder whose path is short enough for unix sockets, which that of `tmp_path` is not."""
    with tempfile.TemporaryDirectory(prefix="tessera-") as name:
        yield Path(name)
