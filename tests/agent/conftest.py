"""A node for tests of the agent."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from builders.nodeviews import of_the_host
from harness.agentmachine import Machine, WatchedDriver
from tessera.clients.kube import NODES, MemoryKube
from tessera.clients.kubelet import MemoryKubelet


@pytest.fixture
async def machine(socket_folder: Path) -> AsyncIterator[Machine]:
    async with MemoryKubelet(socket_folder) as kubelet:
        driver = WatchedDriver.of("A100-40GB", "A100-40GB")
        machine = Machine(driver=driver, kube=MemoryKube(), kubelet=kubelet, folder=socket_folder)
        of_the_host(socket_folder / "proc")
        (socket_folder / "sharing").mkdir()
        (socket_folder / "state").mkdir()
        await machine.kube.create(NODES, {"metadata": {"name": "n1"}})
        yield machine
