"""A simulated machine and a driver that reads it through NVML."""

from collections.abc import AsyncIterator

import pytest

from harness.gpuworlds import QUICK, NvmlWorld
from tessera.clients.gpu import NvmlDriver
from tessera.sim.nvmlsim import Machine


@pytest.fixture
async def world(machine: Machine) -> AsyncIterator[NvmlWorld]:
    async with await NvmlDriver.open(deadlines=QUICK) as driver:
        yield NvmlWorld(machine, driver)
