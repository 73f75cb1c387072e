"""GPUs by NVML, over the simulated library: the conformance suite, and what only NVML can do."""

import asyncio
import contextlib
import ctypes
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NoReturn

import msgspec
import pynvml
import pytest

from conformance.gpusuite import LARGE, SMALL, GpuSuite, cut, soon
from harness.gpuworlds import QUICK, NvmlWorld, Start
from tessera.clients.gpu import Deadlines, NvmlDriver
from tessera.core.gpu.gpumodels import CATALOGUE
from tessera.core.gpu.inventory import GpuEvent
from tessera.core.gpu.mig import placements
from tessera.errors import Conflict, Unavailable, Unsupported
from tessera.sim.nvmlsim import FOREVER, Machine, Process


@pytest.fixture
async def world(machine: Machine) -> AsyncIterator[NvmlWorld]:
    async with await NvmlDriver.open(deadlines=QUICK) as driver:
        yield NvmlWorld(machine, driver)


class TestNvmlDriver(GpuSuite):
    pass


# Opening


@pytest.mark.anyio
async def test_no_library_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlInit", failing(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND))
    with pytest.raises(Unsupported, match="installing NVIDIA's driver"):
        await NvmlDriver.open()


@pytest.mark.anyio
async def test_a_driver_that_is_not_loaded_is_unavailable(machine: Machine) -> None:
    machine.fault("nvmlInit*", code=pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    with pytest.raises(Unavailable, match="modprobe nvidia"):
        await NvmlDriver.open()


@pytest.mark.anyio
async def test_a_driver_that_hangs_is_given_up(machine: Machine) -> None:
    machine.fault("nvmlInit*", latency_ms=300)
    with pytest.raises(Unavailable, match="no answer within"):
        await NvmlDriver.open(deadlines=Deadlines(act_s=0.05))
    for thread in threading.enumerate():
        if thread.name == "nvml":
            await asyncio.to_thread(thread.join, 20)
    with pytest.raises(pynvml.NVMLError, match="Uninitialized"):
        pynvml.nvmlDeviceGetCount()


@pytest.mark.anyio
async def test_a_gpu_that_was_lost_before_is_told_and_taken_up_when_it_is_back(machine: Machine) -> None:
    machine.lose(0)
    async with await NvmlDriver.open(deadlines=QUICK) as driver:
        inventory = await driver.inventory()
        assert ([each.index for each in inventory.gpus], inventory.unseen) == ([1], (0,))
        assert inventory.remarks == ("GPU 0: lost before Tessera started, so it is not listed",)
        machine.clear_faults()
        inventory = await driver.inventory()
        assert ([each.index for each in inventory.gpus], inventory.unseen) == ([0, 1], ())
        assert not any(each.lost for each in inventory.gpus)


@pytest.mark.anyio
@pytest.mark.parametrize("function", ["nvmlDeviceGetUUID", "nvmlDeviceGetName"])
async def test_a_gpu_that_never_answered_is_unseen_and_hides_no_other(machine: Machine, function: str) -> None:
    machine.fault(function, code=pynvml.NVML_ERROR_UNKNOWN, gpu=1, times=FOREVER)
    async with await NvmlDriver.open(deadlines=QUICK) as driver:
        inventory = await driver.inventory()
        assert ([each.index for each in inventory.gpus], inventory.unseen) == ([0], (1,))
        machine.clear_faults()
        assert [each.index for each in (await driver.inventory()).gpus] == [0, 1]


def failing(code: int) -> Callable[..., NoReturn]:
    """Return a function that fails as NVML does."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise pynvml.NVMLError(code)

    return fail


# Reading


@pytest.mark.anyio
async def test_every_model_is_shown_as_the_catalogue_has_it(start: Start) -> None:
    models = [each for each in CATALOGUE if each.units or not each.profiles]
    start(*(each.name for each in models[:32]))
    async with await NvmlDriver.open(deadlines=QUICK) as driver:
        inventory = await driver.inventory()
    assert [each.model.name for each in inventory.gpus] == [each.name for each in models[:32]]
    assert inventory.notes == ()
    assert [placements(each.model) for each in inventory.gpus] == [placements(each) for each in models[:32]]


@pytest.mark.anyio
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


@pytest.mark.anyio
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
        ("all of it is taken to be usable",),
    ),
    (
        "no memory is told",
        [("nvmlDeviceGetMemoryInfo*", pynvml.NVML_ERROR_NOT_SUPPORTED)],
        ("none is granted", "0 MiB of memory, 40960 in the catalogue"),
    ),
    ("profiles have no names", [(PROFILE_V2, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)], ()),
    (
        "profiles are not told",
        [("nvmlDeviceGetGpuInstanceProfileInfo*", pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)],
        ("the catalogue's are taken",),
    ),
    (
        "profiles are told to root alone",
        [("nvmlDeviceGetGpuInstanceProfileInfo*", pynvml.NVML_ERROR_NO_PERMISSION)],
        ("the catalogue's are taken",),
    ),
    ("placements are not told", [("nvmlDeviceGetGpuInstancePossiblePlacements*", pynvml.NVML_ERROR_NOT_SUPPORTED)], ()),
    (
        "placements are told to root alone",
        [("nvmlDeviceGetGpuInstancePossiblePlacements*", pynvml.NVML_ERROR_NO_PERMISSION)],
        (),
    ),
    ("no MIG in this virtual machine", [("nvmlDeviceGetMigMode", pynvml.NVML_ERROR_NOT_SUPPORTED)], ("no MIG, which",)),
    ("power is not told", [("nvmlDeviceGetPower*", pynvml.NVML_ERROR_NOT_SUPPORTED)], ()),
    ("the minor number is not told", [("nvmlDeviceGetMinorNumber", pynvml.NVML_ERROR_NOT_SUPPORTED)], ()),
    ("the compute mode is not told", [("nvmlDeviceGetComputeMode", pynvml.NVML_ERROR_NOT_SUPPORTED)], ()),
]


@pytest.mark.anyio
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


@pytest.mark.anyio
async def test_a_gpu_that_cannot_be_read_does_not_hide_the_others(world: NvmlWorld) -> None:
    before, _ = (await world.driver.inventory()).gpus
    world.machine.fault("nvmlDeviceGetName", code=pynvml.NVML_ERROR_UNKNOWN, gpu=0, times=FOREVER)
    events = world.driver.events()
    inventory = await world.driver.inventory()
    assert [each.lost for each in inventory.gpus] == [True, False]
    assert inventory.gpus[0] == msgspec.structs.replace(before, lost=True)
    assert inventory.notes[0].startswith("GPU 0 (NVIDIA A100-SXM4-40GB): it cannot be read: Unknown Error")
    assert await soon(events, lambda event: event.lost) == GpuEvent(gpu=before.uuid, lost=True)
    world.machine.clear_faults()
    assert (await world.driver.inventory()).gpus[0] == before


@pytest.mark.anyio
async def test_a_driver_that_goes_away_is_unavailable(world: NvmlWorld) -> None:
    world.machine.fault("nvmlDeviceGetName", code=pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    with pytest.raises(Unavailable, match="the driver was replaced"):
        await world.driver.inventory()
    assert len((await world.driver.inventory()).gpus) == 2


@pytest.mark.anyio
async def test_processes_of_mps_and_graphics_count(world: NvmlWorld) -> None:
    _, t4 = (await world.driver.inventory()).gpus
    for pid, mode in enumerate(("compute", "graphics", "mps"), 5):
        world.machine.add_process(1, Process(pid=pid, mode=mode, memory_mib=100))  # type: ignore[arg-type]  # literals
    assert [each.pid for each in await world.driver.processes(t4.uuid)] == [5, 6, 7]


# Changing


@pytest.mark.anyio
async def test_what_holds_a_gpu_open_unseen_keeps_its_mode_and_nothing_is_pending(world: NvmlWorld) -> None:
    a100, _ = (await world.driver.inventory()).gpus
    world.start_process(a100, 7)
    hide_processes(world.machine)
    with pytest.raises(Conflict, match=r"\(19\).*monitoring"):
        await world.driver.set_mig(a100.uuid, enabled=True)
    assert (await world.driver.inventory()).gpus[0].mig == a100.mig


def hide_processes(machine: Machine) -> None:
    """Let no list of processes be told, as where they run in another namespace."""
    for kind in ("Compute", "Graphics", "MPSCompute"):
        machine.fault(f"nvmlDeviceGet{kind}RunningProcesses*", code=pynvml.NVML_ERROR_NOT_SUPPORTED, times=FOREVER)


@pytest.mark.anyio
async def test_a_mode_that_does_not_come_into_force_is_taken_back(
    world: NvmlWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    a100, _ = (await world.driver.inventory()).gpus
    asked: list[int] = []

    def answer(_: object, mode: int) -> int:
        asked.append(mode)
        return 999

    monkeypatch.setattr(pynvml, "nvmlDeviceSetMigMode", answer)
    with pytest.raises(Unavailable, match="Unknown Error"):
        await world.driver.set_mig(a100.uuid, enabled=True)
    assert asked == [1, 0]


@pytest.mark.anyio
async def test_an_instance_in_use_unseen_is_not_destroyed(world: NvmlWorld) -> None:
    a100 = await cut(world, SMALL)
    world.start_process(a100, 7, SMALL)
    hide_processes(world.machine)
    with pytest.raises(Conflict, match="found in use, wanted no process on it"):
        await world.driver.destroy_instance(a100.uuid, SMALL)
    assert (await world.driver.inventory()).gpus[0] == a100


@pytest.mark.anyio
async def test_where_no_compute_instance_can_be_made_nothing_is_left(world: NvmlWorld) -> None:
    a100 = await cut(world, LARGE)
    world.machine.fault("nvmlGpuInstanceCreateComputeInstance", code=pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
    with pytest.raises(Conflict, match=r"creating 1g\.5gb at 0"):
        await world.driver.create_instance(a100.uuid, SMALL)
    assert (await world.driver.inventory()).gpus[0] == a100


@pytest.mark.anyio
async def test_a_driver_without_compute_profiles_is_unsupported(world: NvmlWorld) -> None:
    a100 = await cut(world)
    function = "nvmlGpuInstanceGetComputeInstanceProfileInfo*"
    world.machine.fault(function, code=pynvml.NVML_ERROR_NOT_SUPPORTED, times=FOREVER)
    with pytest.raises(Unsupported, match="another GPU, or a newer driver"):
        await world.driver.create_instance(a100.uuid, SMALL)
    assert (await world.driver.inventory()).gpus[0] == a100


@pytest.mark.anyio
async def test_an_older_form_of_compute_profiles_will_do(world: NvmlWorld) -> None:
    a100 = await cut(world)
    function = "nvmlGpuInstanceGetComputeInstanceProfileInfoV"
    world.machine.fault(function, code=pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, times=FOREVER)
    await world.driver.create_instance(a100.uuid, SMALL)


@pytest.mark.anyio
async def test_a_gpu_instance_filled_by_several_compute_instances_is_not_offered(world: NvmlWorld) -> None:
    a100 = await cut(world, SMALL)
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    place = pynvml.c_nvmlGpuInstancePlacement_t(LARGE.start, LARGE.size)
    made = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(device, 9, ctypes.byref(place))
    for _ in range(2):
        pynvml.nvmlGpuInstanceCreateComputeInstance(made, pynvml.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE)
    after, _ = (await world.driver.inventory()).gpus
    assert (after.instances, after.incomplete) == (a100.instances, (LARGE,))
    await world.driver.destroy_instance(a100.uuid, LARGE)
    assert (await world.driver.inventory()).gpus[0] == a100


@pytest.mark.anyio
async def test_want_of_rights_is_told(world: NvmlWorld) -> None:
    _, t4 = (await world.driver.inventory()).gpus
    world.machine.fault("nvmlDeviceSetPowerManagementLimit*", code=pynvml.NVML_ERROR_NO_PERMISSION)
    with pytest.raises(Unavailable, match=r"power limit of GPU 1 .*running as root"):
        await world.driver.set_power_limit(t4.uuid, 65)
    world.machine.fault("nvmlDeviceGetMemoryLimits_v1", code=pynvml.NVML_ERROR_NO_PERMISSION)
    with pytest.raises(Unavailable, match="memory limit of /pod on GPU 1"):
        await world.driver.memory_limit(t4.uuid, "/pod")


@pytest.mark.anyio
async def test_a_late_answer_hurts_nobody(machine: Machine) -> None:
    async with await NvmlDriver.open(deadlines=Deadlines(events_s=0.01, act_s=0.1)) as driver:
        world = NvmlWorld(machine, driver)
        a100 = await cut(world)
        machine.fault("nvmlDeviceCreateGpuInstanceWithPlacement", latency_ms=400)
        with pytest.raises(Unavailable, match="creating an instance"):
            await driver.create_instance(a100.uuid, SMALL)
        with pytest.raises(Unavailable, match="`creating an instance` hanging"):
            await driver.inventory()
        async with asyncio.timeout(20):
            while True:
                with contextlib.suppress(Unavailable):
                    after, _ = (await driver.inventory()).gpus
                    break
                await asyncio.sleep(0.01)
        assert after.layout == (SMALL,)


# Events


@pytest.mark.anyio
async def test_a_gpu_whose_errors_are_not_told_is_noted(machine: Machine) -> None:
    machine.fault("nvmlDeviceRegisterEvents", code=pynvml.NVML_ERROR_NOT_SUPPORTED, gpu=1)
    async with await NvmlDriver.open(deadlines=QUICK) as driver:
        inventory = await driver.inventory()
    assert inventory.notes == ("GPU 1: the driver does not tell its errors, so only its loss is noticed",)


@pytest.mark.anyio
async def test_a_gpu_that_comes_back_is_watched_again(world: NvmlWorld) -> None:
    a100, _ = (await world.driver.inventory()).gpus
    events = world.driver.events()
    world.lose(a100)
    assert (await soon(events, lambda event: event.xid is not None)).xid == 79
    assert (await soon(events, lambda event: event.lost)).gpu == a100.uuid
    world.machine.clear_faults()
    assert not (await world.driver.inventory()).gpus[0].lost
    world.xid(a100, 48)
    async with asyncio.timeout(20):
        while True:
            world.xid(a100, 48)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    event = await anext(events)
                    break
    assert (event.gpu, event.xid) == (a100.uuid, 48)


@pytest.mark.anyio
async def test_a_gpu_lost_before_its_events_are_watched_is_reported(machine: Machine) -> None:
    machine.fault("nvmlDeviceGetHandleByUUID*", code=pynvml.NVML_ERROR_GPU_IS_LOST)
    async with await NvmlDriver.open(deadlines=QUICK) as driver:
        assert not any(each.lost for each in (await driver.inventory()).gpus)


@pytest.mark.anyio
async def test_what_is_wrong_with_events_is_told_when_it_is_opened(machine: Machine) -> None:
    machine.fault("nvmlDeviceRegisterEvents", code=pynvml.NVML_ERROR_NO_PERMISSION)
    with pytest.raises(Unavailable, match="running as root"):
        await NvmlDriver.open(deadlines=QUICK)
    with pytest.raises(pynvml.NVMLError, match="Uninitialized"):
        pynvml.nvmlDeviceGetCount()


@pytest.mark.anyio
async def test_a_driver_without_events_reports_none_and_works(machine: Machine) -> None:
    machine.fault("nvmlEventSetWait*", code=pynvml.NVML_ERROR_UNKNOWN, times=FOREVER)
    async with await NvmlDriver.open(deadlines=QUICK) as driver:
        await asyncio.sleep(0.05)
        assert len((await driver.inventory()).gpus) == 2
