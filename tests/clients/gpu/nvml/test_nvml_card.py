"""Real GPUs of this machine, read only. Skipped where there is none: a skip is no evidence of anything."""

import os
import subprocess
import sys

import pytest

# In a process of its own: this one may have loaded the simulated library under the real one's name.
PROGRAM = """
import asyncio
from tessera.clients.gpu import NvmlDriver
from tessera.errors import Unavailable, Unsupported

async def read() -> None:
    try:
        driver = await NvmlDriver.open()
    except (Unavailable, Unsupported) as error:
        print("NONE", error)
        return
    async with driver:
        first, second = await driver.inventory(), await driver.inventory()
        if not first.gpus:
            print("NONE no GPU")
            return
        assert first == second, "two readings differ"
        for gpu in first.gpus:
            assert not gpu.lost
            assert gpu.uuid.startswith("GPU-")
            assert 0 < gpu.memory_mib <= gpu.memory_total_mib
            assert (await driver.use(gpu.uuid)).memory_used_mib >= 0
            assert all(each.pid > 0 for each in await driver.processes(gpu.uuid))
            print(gpu.index, gpu.product, gpu.model.name, gpu.memory_mib, "MiB", gpu.mig, len(gpu.model.profiles))
        print(first.driver, first.cuda, *first.notes, sep="; ")

asyncio.run(read())
"""


@pytest.mark.gpu
def test_the_gpus_of_this_machine_are_read() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TESSERA_NVMLSIM_STATE"}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, env=environment, check=False
    )
    assert run.returncode == 0, run.stderr
    if run.stdout.startswith("NONE"):
        pytest.skip(f"no real GPU here: {run.stdout.removeprefix('NONE').strip()}")
    sys.stdout.write(run.stdout)
