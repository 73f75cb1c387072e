"""What NVML's error codes mean."""

from collections.abc import Callable
from typing import NoReturn

import pynvml
import pytest

from harness.gpuworlds import NvmlWorld
from tessera.clients.gpu import NvmlDriver
from tessera.errors import Unavailable, Unsupported
from tessera.sim.nvmlsim import Machine

pytestmark = pytest.mark.anyio


async def test_want_of_rights_is_reported(world: NvmlWorld) -> None:
    _, t4 = (await world.driver.inventory()).gpus
    world.machine.fault("nvmlDeviceSetPowerManagementLimit*", code=pynvml.NVML_ERROR_NO_PERMISSION)
    with pytest.raises(Unavailable, match=r"power limit of GPU 1 .*run as root"):
        await world.driver.set_power_limit(t4.uuid, 65)
    world.machine.fault("nvmlDeviceGetMemoryLimits_v1", code=pynvml.NVML_ERROR_NO_PERMISSION)
    with pytest.raises(Unavailable, match="memory limit of /pod on GPU 1"):
        await world.driver.memory_limit(t4.uuid, "/pod")


async def test_no_library_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlInit", failing(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND))
    with pytest.raises(Unsupported, match=r"Found \(12\): install NVIDIA's driver"):
        await NvmlDriver.open()


async def test_a_driver_that_is_not_loaded_is_unavailable(machine: Machine) -> None:
    machine.fault("nvmlInit*", code=pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    with pytest.raises(Unavailable, match="modprobe nvidia"):
        await NvmlDriver.open()


def failing(code: int) -> Callable[..., NoReturn]:
    """Return a function that fails as NVML does."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise pynvml.NVMLError(code)

    return fail


async def test_a_driver_that_goes_away_is_unavailable(world: NvmlWorld) -> None:
    world.machine.fault("nvmlDeviceGetName", code=pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    with pytest.raises(Unavailable, match="the driver was replaced"):
        await world.driver.inventory()
    assert len((await world.driver.inventory()).gpus) == 2
