"""A node with NVIDIA's control program played."""

import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from harness.mpsnodes import Bench
from tessera.agent.sharing.detachedprocesses import identity


@pytest.fixture
def root() -> Iterator[Path]:
    # Short, because the path of a socket has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="mps") as name:
        yield Path(name)


@pytest.fixture
async def bench(root: Path) -> AsyncIterator[Bench]:
    made = Bench(root)
    yield made
    for record in made.records():
        if record.pid and identity(record.pid) == record.started:
            os.kill(record.pid, signal.SIGKILL)
