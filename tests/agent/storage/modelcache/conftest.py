"""A node for the tests of the model cache."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from harness.modelnode import Node
from tessera.clients.kube import NODES
from tessera.clients.kubelet import MemoryKubelet


@pytest.fixture
async def node(socket_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    monkeypatch.setattr("tessera.core.deviceplugin.offers.listing.STAYS_S", 0.1)
    async with MemoryKubelet(socket_folder) as kubelet:
        one = Node(kubelet, tmp_path)
        await one.kube.create(NODES, {"metadata": {"name": "n1", "uid": "uid-1"}})
        yield one
