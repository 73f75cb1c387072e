"""What NVML tells of a GPU, and what is done without where it does not."""

from pathlib import Path

import pynvml
import pytest

from harness.gpuworlds import QUICK, NvmlWorld, Start
from tessera.clients.gpu import NvmlDriver
from tessera.core.gpu.gpumodels import CATALOG
from tessera.core.gpu.mig import placements
from tessera.errors import Unsupported
from tessera.sim.nvmlsim import FOREVER, Machine, Process

pytestmark = pytest.mark.anyio


async def test_every_model_is_shown_as_the_catalog_has_it(start: Start) -> None:
    models = [each for each in CATALOG if each.memory_slices or not each.profiles]
    start(*(each.name for each in models[:32]))
    async with await NvmlDriver.open(deadlines=QUICK) as driver:
        inventory = await driver.inventory()
    assert [each.model.name for each in inventory.gpus] == [each.name for each in models[:32]]
    assert inventory.notes == ()
    assert [placements(each.model) for each in inventory.gpus] == [placements(each) for each in models[:32]]


async def test_a_reading_has_versions_pci_and_numa(machine: Machine, tmp_path: Path) -> None:
    del machine
    slot = tmp_path / "bus/pci/devices/0000:07:00.0"
    slot.mkdir(parents=True)
    (slot / "numa_node").write_text("1\n")
    (slot / "class").write_text("0x030200\n")
    (slot / "subsystem_device").write_text("0x1460\n")
    (slot / "subsystem_vendor").write_text("0x10de\n")
    (tmp_path / "bus/pci/devices/0000:0f:00.0").mkdir()
    (tmp_path / "bus/pci/devices/0000:0f:00.0/numa_node").write_text("-1\n")
    async with await NvmlDriver.open(sysfs=tmp_path, deadlines=QUICK) as driver:
        inventory = await driver.inventory()
    assert (inventory.driver, inventory.cuda) == ("615.71.09", (13, 4))
    assert inventory.nvml
    first, second = inventory.gpus
    assert (first.pci_bus_id, first.minor) == ("00000000:07:00.0", 0)
    assert (first.numa, second.numa) == (1, None)
    assert (first.pci_class, second.pci_class) == ("0x030200", "")
    assert (first.pci_subsystem_ids, second.pci_subsystem_ids) == ((0x146010DE,), (0x145F10DE, 0))


async def test_an_older_driver_limits_no_memory(start: Start) -> None:
    start("T4", driver="580.95.05")
    async with await NvmlDriver.open(deadlines=QUICK) as driver:
        inventory = await driver.inventory()
        assert not inventory.memory_limits
        with pytest.raises(Unsupported, match="Function Not Found"):
            await driver.set_memory_limit(inventory.gpus[0].uuid, "/pod", 1024)


MEMORY_V2, PROFILE_V2 = "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetGpuInstanceProfileInfoV"
REFUSALS: list[tuple[str, list[tuple[str, int]], tuple[str, ...]]] = [
    (
        "reserved memory is not told",
        [(MEMORY_V2, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)],
        ("all of it counts as usable",),
    ),
    (
        "no memory is reported",
        [("nvmlDeviceGetMemoryInfo*", pynvml.NVML_ERROR_NOT_SUPPORTED)],
        ("none is allocated", "0 MiB of memory, 40960 in the catalog"),
    ),
    ("profiles have no names", [(PROFILE_V2, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)], ()),
    (
        "profiles are not told",
        [("nvmlDeviceGetGpuInstanceProfileInfo*", pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)],
        ("the catalog's are used",),
    ),
    (
        "only root gets the profiles",
        [("nvmlDeviceGetGpuInstanceProfileInfo*", pynvml.NVML_ERROR_NO_PERMISSION)],
        ("the catalog's are used",),
    ),
    ("placements are not told", [("nvmlDeviceGetGpuInstancePossiblePlacements*", pynvml.NVML_ERROR_NOT_SUPPORTED)], ()),
    (
        "only root gets the placements",
        [("nvmlDeviceGetGpuInstancePossiblePlacements*", pynvml.NVML_ERROR_NO_PERMISSION)],
        (),
    ),
    ("no MIG in this virtual machine", [("nvmlDeviceGetMigMode", pynvml.NVML_ERROR_NOT_SUPPORTED)], ("no MIG, which",)),
    ("power is not told", [("nvmlDeviceGetPower*", pynvml.NVML_ERROR_NOT_SUPPORTED)], ()),
    ("the minor number is not told", [("nvmlDeviceGetMinorNumber", pynvml.NVML_ERROR_NOT_SUPPORTED)], ()),
    ("the compute mode is not told", [("nvmlDeviceGetComputeMode", pynvml.NVML_ERROR_NOT_SUPPORTED)], ()),
]


@pytest.mark.parametrize(("case", "faults", "want"), REFUSALS, ids=[case for case, _, _ in REFUSALS])
async def test_what_a_driver_does_not_tell_is_done_without(
    machine: Machine, case: str, faults: list[tuple[str, int]], want: tuple[str, ...]
) -> None:
    for function, code in faults:
        machine.fault(function, code=code, gpu=0, times=FOREVER)
    async with await NvmlDriver.open(deadlines=QUICK) as driver:
        inventory = await driver.inventory()
    a100, t4 = inventory.gpus
    assert not a100.lost, case
    assert a100.model.name == "A100-40GB"
    assert len(inventory.notes) == len(want), inventory.notes
    for note, part in zip(inventory.notes, want, strict=True):
        assert note.startswith("GPU 0 (NVIDIA A100-SXM4-40GB): ")
        assert part in note
    assert t4.memory_mib < t4.memory_total_mib


async def test_processes_of_mps_and_graphics_count(world: NvmlWorld) -> None:
    _, t4 = (await world.driver.inventory()).gpus
    for pid, mode in enumerate(("compute", "graphics", "mps"), 5):
        world.machine.add_process(1, Process(pid=pid, mode=mode, memory_mib=100))  # type: ignore[arg-type]  # literals
    found = await world.driver.processes(t4.uuid)
    assert [(each.pid, each.mps_client) for each in found] == [(5, False), (6, False), (7, True)]
