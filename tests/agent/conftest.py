"""A node for tests of the agent."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from builders.nodeviews import of_the_host
from harness.agentmachine import Machine, WatchedDriver
from tessera.agent.doctor import DoctorPaths
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


@pytest.fixture
def root() -> Iterator[Path]:
    # Short, because the path of a socket has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="doc") as name:
        yield Path(name)


@pytest.fixture
def places(root: Path) -> DoctorPaths:
    """Return a node's places below a folder, its process table the machine's own, as with `hostPID`."""
    return msgspec.structs.replace(DoctorPaths().under(root), proc=of_the_host(root / "proc"))
