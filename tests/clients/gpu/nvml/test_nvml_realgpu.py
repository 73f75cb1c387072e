"""The real GPU of this machine through NVML, against what nvidia-smi says of it, and against the catalog."""

import asyncio
import contextlib
import ctypes
from pathlib import Path
from typing import Any

import msgspec
import pynvml
import pytest

from harness.realgpu import RealGpu, note
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.inventory import ComputeMode, GpuFacts, Inventory

pytestmark = [pytest.mark.anyio, pytest.mark.gpu]


async def inventory(real_gpu: RealGpu) -> Inventory:
    async with await real_gpu.driver() as driver:
        return await driver.inventory()


def node_of(gpu: GpuFacts) -> Path:
    """Return the device node of a GPU."""
    return Path(f"/dev/nvidia{gpu.minor}")


async def test_the_inventory_is_nvidia_smis(real_gpu: RealGpu) -> None:
    found, smi = await inventory(real_gpu), real_gpu.smi()
    gpu = found.gpus[0]
    bus = gpu.pci_bus_id.lower()
    note(
        product=gpu.product,
        driver=found.driver,
        nvml=found.nvml,
        cuda=found.cuda,
        pci=gpu.pci_bus_id,
        pci_id=gpu.pci_device_id,
        subsystem=[f"0x{each:08X}" for each in gpu.pci_subsystem_ids],
        minor=gpu.minor,
        numa=gpu.numa,
        total=gpu.memory_total_mib,
        usable=gpu.memory_mib,
        mig=gpu.mig,
        compute_mode=gpu.compute_mode,
        power=(gpu.power_limit_watts, gpu.power_default_watts, gpu.power_range_watts),
        memory_limits=found.memory_limits,
        virtual=gpu.virtual,
        notes=found.notes,
        unseen=found.unseen,
    )
    assert (found.driver, f"{found.cuda[0]}.{found.cuda[1]}") == (smi.text("driver_version"), smi.text("cuda_version"))
    assert (gpu.uuid, gpu.product) == (smi.text("uuid"), smi.text("product_name"))
    assert gpu.minor == smi.number("minor_number")
    assert node_of(gpu).is_char_device()
    assert bus == smi.text("pci/pci_bus_id").lower()
    assert gpu.pci_device_id.lower() == f"0x{smi.text('pci/pci_device_id').lower().removeprefix('0x')}"
    assert gpu.memory_total_mib == smi.number("fb_memory_usage/total")
    reserved = smi.number("fb_memory_usage/reserved")
    assert reserved is not None
    assert abs(gpu.memory_total_mib - gpu.memory_mib - reserved) <= 1, "each rounds"
    mig = "N/A" if gpu.mig is None else "Enabled" if gpu.mig.current else "Disabled"
    assert mig == smi.text("mig_mode/current_mig")
    modes = {
        "Default": ComputeMode.DEFAULT,
        "Exclusive_Process": ComputeMode.EXCLUSIVE_PROCESS,
        "Prohibited": ComputeMode.PROHIBITED,
    }
    assert gpu.compute_mode == modes[smi.text("compute_mode")]
    assert gpu.power_limit_watts == smi.number("gpu_power_readings/current_power_limit")
    assert gpu.power_default_watts == smi.number("gpu_power_readings/default_power_limit")
    ends = [smi.number(f"gpu_power_readings/{end}_power_limit") for end in ("min", "max")]
    assert list(gpu.power_range_watts or ()) == ends
    again = await inventory(real_gpu)
    assert msgspec.structs.replace(again, asked_ns=found.asked_ns) == found, "two readings differ"


async def test_what_another_program_uses_is_seen(real_gpu: RealGpu) -> None:
    async with await real_gpu.driver() as driver:
        gpu = (await driver.inventory()).gpus[0]
        before = await driver.use(gpu.uuid)
        with real_gpu.cuda(mib=4096) as one:
            one.must("busy", seconds=1)
            one.tell("busy", seconds=3)
            await asyncio.sleep(2)
            after, processes, smi = await driver.use(gpu.uuid), await driver.processes(gpu.uuid), real_gpu.smi()
            one.answer()
        own = {each.pid: each.memory_mib for each in processes}
        note(
            used_before=before.memory_used_mib,
            used=after.memory_used_mib,
            smi_used=smi.number("fb_memory_usage/used"),
            percent=after.gpu_percent,
            smi_percent=smi.number("utilization/gpu_util"),
            own_mib=own.get(one.pid),
            smi_own_mib=smi.processes(),
            processes=len(processes),
        )
        used = smi.number("fb_memory_usage/used")
        assert used is not None
        assert abs(after.memory_used_mib - used) <= 1
        assert after.memory_used_mib - before.memory_used_mib >= 4096
        assert own[one.pid] is not None
        assert own[one.pid] == pytest.approx(smi.processes()[one.pid], abs=1)
        assert after.gpu_percent is not None
        assert after.gpu_percent >= 90
        async with asyncio.timeout(10):
            while one.pid in {each.pid for each in await driver.processes(gpu.uuid)}:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        assert (await driver.use(gpu.uuid)).memory_used_mib <= before.memory_used_mib + 1


def told_profiles(facts: GpuFacts) -> dict[str, dict[str, Any]]:
    """Return what the driver says of each profile, asked as nvidia-smi does, without the product."""
    pynvml.nvmlInit()
    try:
        device, found = pynvml.nvmlDeviceGetHandleByUUID(facts.uuid), {}
        for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            with contextlib.suppress(pynvml.NVMLError):
                info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, number, version=2)
                count, places = ctypes.c_uint(), []
                with contextlib.suppress(pynvml.NVMLError):
                    ask = pynvml.nvmlDeviceGetGpuInstancePossiblePlacements
                    ask(device, info.id, None, ctypes.byref(count))
                    array = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
                    ask(device, info.id, array, ctypes.byref(count))
                    places = [(each.start, each.size) for each in array[: count.value]]
                found[info.name.removeprefix("MIG ")] = {
                    "number": number,
                    "id": info.id,
                    "slices": info.sliceCount,
                    "most": info.instanceCount,
                    "mib": info.memorySizeMB,
                    "sm": info.multiprocessorCount,
                    "media": (info.decoderCount, info.encoderCount, info.jpegCount, info.ofaCount),
                    "copies": info.copyEngineCount,
                    "places": places,
                }
        return found
    finally:
        pynvml.nvmlShutdown()


async def test_the_profiles_of_the_driver_are_those_of_the_catalog(real_gpu: RealGpu) -> None:
    found = await inventory(real_gpu)
    gpu, told = found.gpus[0], told_profiles(found.gpus[0])
    for name, each in told.items():
        note(profile=name, **each)
    note(mig_on=gpu.mig, notes=found.notes)
    known = {each.name: each for each in model(gpu.product).profiles}
    shown = {each.name: each for each in gpu.model.profiles}
    if gpu.mig is None:
        pytest.skip("this GPU has no MIG")
    assert shown.keys() == known.keys()
    if not told:
        assert any("lists no MIG profiles" in each for each in found.notes)
        pytest.skip("this driver lists no profiles while MIG is off")
    assert told.keys() == known.keys()
    for name, each in told.items():
        own = known[name]
        assert each["id"] == own.profile_id, name
        assert (each["slices"], each["sm"]) == (own.compute_slices, own.sm), name
        assert each["mib"] == pytest.approx(own.memory_mib, abs=11), name
        assert each["most"] == own.max_instances, name
        if each["places"]:
            assert {size for _, size in each["places"]} == {own.size}, name
            assert tuple(sorted(start for start, _ in each["places"])) == own.starts, name
    assert found.notes == (), "driver and catalog differ"
