"""A kubelet in this process."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tessera.clients.kubelet import MemoryKubelet


@pytest.fixture
async def kubelet(socket_folder: Path) -> AsyncIterator[MemoryKubelet]:
    async with MemoryKubelet(socket_folder) as running:
        yield running
