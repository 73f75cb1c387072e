"""A node for tests of the agent."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentmachine import Machine
from tessera.clients.gpu import MemoryDriver
from tessera.clients.kube import NODES, MemoryKube
from tessera.clients.kubelet import MemoryKubelet


@pytest.fixture
async def machine(socket_folder: Path) -> AsyncIterator[Machine]:
    async with MemoryKubelet(socket_folder) as kubelet:
        machine = Machine(
            driver=MemoryDriver.of("A100-40GB", "A100-40GB"), kube=MemoryKube(), kubelet=kubelet, folder=socket_folder
        )
        (socket_folder / "sharing").mkdir()
        (socket_folder / "state").mkdir()
        await machine.kube.create(NODES, {"metadata": {"name": "n1"}})
        yield machine
