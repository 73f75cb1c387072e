"""The node on which the device plugins are tested."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from harness.pluginnode import Node
from tessera.clients.kubelet import MemoryKubelet


@pytest.fixture
async def node(socket_folder: Path) -> AsyncIterator[Node]:
    async with MemoryKubelet(socket_folder) as kubelet:
        made = Node(kubelet, socket_folder)
        yield made
        await made.kill()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is withdrawn stay in the kubelet's lists for a moment only."""
    monkeypatch.setattr("tessera.core.deviceplugin.offers.listing.STAYS_S", 0.5)
