"""What NVML measures, and what is None where it does not."""

from typing import Any, Literal

import pynvml
import pytest

from harness.gpuworlds import QUICK, NvmlWorld, Start
from tessera.clients.gpu import NvmlDriver
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.readings import EngineActivity
from tessera.core.usage.attribution import ContainerDevice, Owner, attribute_usage
from tessera.core.usage.contention import Contention, contention_of, gpu_load
from tessera.errors import TesseraError
from tessera.sim.nvmlsim import FOREVER, Machine, Process

pytestmark = pytest.mark.anyio
WHOLE = EngineActivity(graphics_percent=60, sm_percent=60, tensor_percent=30, dram_percent=30)


async def test_power_clocks_temperature_errors_and_throttling_are_measured(world: NvmlWorld) -> None:
    machine = world.machine
    t4 = (await world.driver.inventory()).gpus[1]
    idle = await world.driver.measure(t4.uuid)
    assert idle.clocks_event_reasons == pynvml.nvmlClocksEventReasonGpuIdle
    machine.add_process(1, Process(pid=7, memory_mib=64, sm_percent=70))
    for field, value in {
        "temperature_c": 91,
        "throttle_reasons": 0x24,
        "ecc_corrected": 5,
        "ecc_uncorrected": 2,
    }.items():
        machine.set(1, field, value)
    busy = await world.driver.measure(t4.uuid)
    assert (busy.gpu_percent, busy.temperature_c, busy.clocks_event_reasons) == (70, 91, 0x24)
    assert (busy.ecc_corrected, busy.ecc_uncorrected) == (5, 2)
    assert [(each.pid, each.sm_percent) for each in busy.processes or ()] == [(7, 70)]
    assert busy.sm_clock_mhz is not None
    assert idle.sm_clock_mhz is not None
    assert busy.sm_clock_mhz > idle.sm_clock_mhz
    assert busy.power_watts is not None
    assert idle.power_watts is not None
    assert busy.power_watts > idle.power_watts
    assert (busy.energy_mj, busy.remapped_rows, busy.activity) == (None, None, None)


async def test_what_a_client_of_mps_does_is_unknown_and_not_none(world: NvmlWorld) -> None:
    """The driver counts it as the server's."""
    t4 = (await world.driver.inventory()).gpus[1]
    for process in (
        Process(pid=7, memory_mib=66, name="nvidia-cuda-mps-server"),
        Process(pid=8, memory_mib=64, mode="mps", sm_percent=90),
        Process(pid=9, memory_mib=64),
    ):
        world.machine.add_process(1, process)
    reading = await world.driver.measure(t4.uuid)
    assert [(each.pid, each.memory_mib, each.sm_percent) for each in reading.processes or ()] == [
        (7, 66, 90),
        (8, 64, None),
        (9, 64, 0),
    ]
    allocation = ContainerDevice(
        namespace="team", pod="a", container="c", uid="a", device=DeviceId(t4.uuid), exclusive=False
    )
    (device,) = attribute_usage(t4, reading, [allocation], {7: None, 8: Owner(uid="a", container="c"), 9: None}).devices
    assert [(each.memory_mib, each.gpu_percent) for each in device.containers] == [(64, None)]


@pytest.mark.parametrize(("mode", "named"), [("compute", ("team/noisy/c",)), ("mps", ())])
async def test_the_noisy_one_of_a_hot_gpu_is_named_where_the_driver_tells_processes_apart(
    world: NvmlWorld, mode: Literal["compute", "mps"], named: tuple[str, ...]
) -> None:
    t4 = (await world.driver.inventory()).gpus[1]
    world.machine.add_process(1, Process(pid=7, memory_mib=66, name="nvidia-cuda-mps-server"))
    loads = {"noisy": 93, "quiet": 4}
    for pid, percent in enumerate(loads.values(), 8):
        world.machine.add_process(1, Process(pid=pid, memory_mib=64, mode=mode, sm_percent=percent))
    world.machine.set(1, "throttle_reasons", pynvml.nvmlClocksEventReasonSwThermalSlowdown)
    reading = await world.driver.measure(t4.uuid)
    allocations = [
        ContainerDevice(namespace="team", pod=name, container="c", uid=name, device=DeviceId(t4.uuid), exclusive=False)
        for name in loads
    ]
    owners = {7: None} | {pid: Owner(uid=name, container="c") for pid, name in enumerate(loads, 8)}
    (found,) = contention_of([gpu_load(attribute_usage(t4, reading, allocations, owners))])
    thermal, saturated = found
    assert (thermal.cause, saturated.cause) == ("thermal", "saturated")
    assert thermal.caused_by == saturated.caused_by == named


@pytest.mark.parametrize(
    ("loads", "fault", "want"),
    [
        ({7: 90, 8: 0}, None, {7: 90, 8: 0}),
        ({7: 0, 8: 0}, None, {7: 0, 8: 0}),
        ({7: 90, 8: 0}, pynvml.NVML_ERROR_NOT_FOUND, {7: 0, 8: 0}),
        ({7: 90, 8: 0}, pynvml.NVML_ERROR_NOT_SUPPORTED, {7: None, 8: None}),
        ({7: 90, 8: 0}, pynvml.NVML_ERROR_NO_PERMISSION, {7: None, 8: None}),
    ],
)
async def test_a_process_without_a_sample_is_idle_where_the_driver_samples_processes(
    world: NvmlWorld, loads: dict[int, int], fault: int | None, want: dict[int, float | None]
) -> None:
    t4 = (await world.driver.inventory()).gpus[1]
    for pid, percent in loads.items():
        world.machine.add_process(1, Process(pid=pid, memory_mib=64, sm_percent=percent))
    if fault is not None:
        world.machine.fault("nvmlDeviceGetProcessUtilization", code=fault)
    found = await world.driver.measure(t4.uuid)
    assert {each.pid: each.sm_percent for each in found.processes or ()} == want


@pytest.mark.parametrize(
    ("name", "code", "want"),
    [
        ("Compute", pynvml.NVML_ERROR_NOT_SUPPORTED, None),
        ("MPSCompute", pynvml.NVML_ERROR_NOT_SUPPORTED, None),
        ("Compute", pynvml.NVML_ERROR_NO_PERMISSION, None),
        ("Graphics", pynvml.NVML_ERROR_NOT_SUPPORTED, [7]),
    ],
)
async def test_processes_that_the_driver_does_not_list_are_unknown_and_not_none(
    world: NvmlWorld, name: str, code: int, want: list[int] | None
) -> None:
    t4 = (await world.driver.inventory()).gpus[1]
    world.machine.add_process(1, Process(pid=7, memory_mib=64))
    world.machine.fault(f"nvmlDeviceGet{name}RunningProcesses*", code=code, times=FOREVER)
    found = await world.driver.measure(t4.uuid)
    assert (found.processes and [each.pid for each in found.processes]) == want
    assert found.memory_used_mib == 64


async def test_a_lost_gpu_is_no_idle_one(world: NvmlWorld) -> None:
    t4 = (await world.driver.inventory()).gpus[1]
    world.machine.fault("nvmlDeviceGetProcessUtilization", code=pynvml.NVML_ERROR_GPU_IS_LOST)
    with pytest.raises(TesseraError):
        await world.driver.measure(t4.uuid)


async def test_an_older_driver_calls_event_reasons_throttle_reasons(world: NvmlWorld) -> None:
    t4 = (await world.driver.inventory()).gpus[1]
    world.machine.set(1, "throttle_reasons", 0x4)
    world.machine.fault("nvmlDeviceGetCurrentClocksEventReasons", code=pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    assert (await world.driver.measure(t4.uuid)).clocks_event_reasons == 0x4


async def test_what_fails_is_none_and_keeps_nothing_else_from_being_measured(world: NvmlWorld) -> None:
    t4 = (await world.driver.inventory()).gpus[1]
    for name in ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetTemperature", "nvmlDeviceGetMemoryInfo*"):
        world.machine.fault(name, code=pynvml.NVML_ERROR_UNKNOWN, times=FOREVER)
    found = await world.driver.measure(t4.uuid)
    assert (found.power_watts, found.temperature_c, found.memory_used_mib) == (None, None, None)
    assert found.sm_clock_mhz is not None


async def test_a_hopper_measures_its_engines_from_the_second_reading_on(start: Start) -> None:
    machine = start("H100-80GB")
    machine.add_process(0, Process(pid=7, sm_percent=60))
    async with await NvmlDriver.open(deadlines=QUICK) as driver:
        uuid = (await driver.inventory()).gpus[0].uuid
        assert (await driver.measure(uuid)).activity is None
        assert (await driver.measure(uuid)).activity == WHOLE
        machine.fault("nvmlGpmMetricsGet", code=pynvml.NVML_ERROR_UNKNOWN)
        assert (await driver.measure(uuid)).activity is None


async def test_instances_of_a_hopper_measure_their_engines_each_for_itself(start: Start) -> None:
    machine: Machine = start("H100-80GB")
    one, other = Placement(0, 1, "1g.10gb"), Placement(4, 4, "3g.40gb")
    async with await NvmlDriver.open(deadlines=QUICK) as driver:
        uuid = (await driver.inventory()).gpus[0].uuid
        await driver.set_mig(uuid, enabled=True)
        for placement in (one, other):
            await driver.create_instance(uuid, placement)
        gpu = (await driver.inventory()).gpus[0]
        on = next(each for each in gpu.instances if each.placement == other)
        process = Process(pid=7, sm_percent=60, gpu_instance=on.gpu_instance, compute_instance=on.compute_instance)
        machine.add_process(0, process)
        await driver.measure(uuid)
        found = await driver.measure(uuid)
        assert found.activity is None
        assert {each.placement: each.activity and each.activity.sm_percent for each in found.instances} == {
            one: 0,
            other: 60,
        }
        machine.remove_process(7)
        await driver.destroy_instance(uuid, other)
        await driver.inventory()
        assert [each.placement for each in (await driver.measure(uuid)).instances] == [one]


async def test_a_gpu_that_was_never_read_is_read_before_it_is_measured(world: NvmlWorld) -> None:
    uuid = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(1))
    assert (await world.driver.measure(uuid)).memory_used_mib == 0


async def test_the_pod_with_an_idle_helper_is_named_as_the_driver_not_its_neighbor(world: NvmlWorld) -> None:
    t4 = (await world.driver.inventory()).gpus[1]
    for pid, percent in ((1, 90), (2, 0), (3, 9)):
        world.machine.add_process(1, Process(pid=pid, memory_mib=64, sm_percent=percent))
    world.machine.set(1, "throttle_reasons", 0x4)
    whole = DeviceId(t4.uuid)
    allocations = [
        ContainerDevice(namespace="team", pod=pod, container="main", uid=pod, device=whole, exclusive=False)
        for pod in ("busy", "quiet")
    ]
    owners = {pid: Owner(uid=pod, container="main") for pid, pod in ((1, "busy"), (2, "busy"), (3, "quiet"))}
    use = attribute_usage(t4, await world.driver.measure(t4.uuid), allocations, owners)
    ((power_cap, _),) = contention_of([gpu_load(use)])
    assert power_cap == Contention(cause="power-cap", caused_by=("team/busy/main",), affected=("team/quiet/main",))


async def test_what_a_process_computed_that_has_ended_since_is_measured(
    world: NvmlWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVML's samples name it, its list of running processes does not any more."""
    t4 = (await world.driver.inventory()).gpus[1]
    world.machine.add_process(1, Process(pid=7, memory_mib=64, sm_percent=20))
    sample = pynvml.nvmlDeviceGetProcessUtilization

    def samples(device: Any, since_us: int) -> list[Any]:
        (running,) = sample(device, since_us)
        ended = pynvml.c_nvmlProcessUtilizationSample_t()
        ended.pid, ended.timeStamp, ended.smUtil = 6, running.timeStamp, 70
        return [ended, running]

    monkeypatch.setattr(pynvml, "nvmlDeviceGetProcessUtilization", samples)
    found = (await world.driver.measure(t4.uuid)).processes or ()
    assert [(each.pid, each.memory_mib, each.sm_percent) for each in found] == [(7, 64, 20), (6, 0, 70)]


async def test_a_sample_that_is_no_newer_than_the_last_measurement_is_not_counted_again(
    world: NvmlWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that returns what it was not asked for would keep the load of a process that ended long ago."""
    t4 = (await world.driver.inventory()).gpus[1]
    old = pynvml.c_nvmlProcessUtilizationSample_t()
    old.pid, old.timeStamp, old.smUtil = 6, 1000, 70
    monkeypatch.setattr(pynvml, "nvmlDeviceGetProcessUtilization", lambda _device, _since_us: [old])
    found = [(await world.driver.measure(t4.uuid)).processes or () for _ in range(2)]
    assert [[(each.pid, each.sm_percent) for each in processes] for processes in found] == [[(6, 70)], []]
