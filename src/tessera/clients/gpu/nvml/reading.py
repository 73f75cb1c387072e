"""NVML's facts about one GPU, as records. Everything here runs in the driver's thread."""

import ctypes
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pynvml

from tessera.clients.gpu.nvml.faults import optional
from tessera.clients.gpu.nvml.profiles import profiles
from tessera.core.gpu.gpumodels import GpuModel, ObservedGpu, observed_model
from tessera.core.gpu.inventory import ComputeMode, GpuFacts, GpuProcess, Instance, MigMode
from tessera.core.gpu.mig import Placement
from tessera.core.workload.units import MIB

__all__ = [
    "KnownGpu",
    "MigDevice",
    "Part",
    "all_processes",
    "mig_devices",
    "mode",
    "parts",
    "processes",
    "read",
    "used_mib",
]

_NONE = 0xFFFFFFFF
"""The id for no instance, and an unset field of 32 bits."""
_PART_OF_WATT = 1000
_COMPUTE_MODES = {
    pynvml.NVML_COMPUTEMODE_DEFAULT: ComputeMode.DEFAULT,
    pynvml.NVML_COMPUTEMODE_PROHIBITED: ComputeMode.PROHIBITED,
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: ComputeMode.EXCLUSIVE_PROCESS,
}


class KnownGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU as enumerated by NVML when the driver was opened, and its slot in the operating system."""

    index: int
    uuid: str
    sysfs: Path


class MigDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A compute instance with its GPU instance, which have one UUID in NVML."""

    handle: Any
    uuid: str
    compute_instance: int
    fills: bool
    """Whether it fills its GPU instance."""
    instance: Instance


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU instance with its compute instances."""

    handle: Any
    number: int
    placement: Placement
    devices: tuple[MigDevice, ...]

    @property
    def complete(self) -> bool:
        """Whether there is exactly one compute instance, and it fills the GPU instance."""
        return len(self.devices) == 1 and self.devices[0].fills


def read(gpu: KnownGpu, device: Any) -> tuple[GpuFacts, tuple[str, ...]]:
    """Return NVML's facts about a GPU, and what is missing or differs from the catalog, one clause each."""
    product = pynvml.nvmlDeviceGetName(device)
    pci = pynvml.nvmlDeviceGetPciInfo_v3(device)
    pci_device = f"0x{pci.pciDeviceId:08X}"
    total_mib, free_mib, memory_notes = _memory(device)
    mig, capability = mode(device), tuple(pynvml.nvmlDeviceGetCudaComputeCapability(device))
    model, notes = observed_model(
        ObservedGpu(
            product=product,
            pci=pci_device,
            memory_mib=total_mib,
            compute_capability=capability,
            mig=mig is not None,
            profiles=() if mig is None else profiles(device, total_mib),
        )
    )
    found = parts(device, model) if mig is not None and mig.current else ()
    complete = sorted((each.devices[0].instance for each in found if each.complete), key=lambda each: each.placement)
    default, ends = _power(device)
    minor = optional(pynvml.nvmlDeviceGetMinorNumber, device)
    return GpuFacts(
        index=gpu.index,
        uuid=gpu.uuid,
        minor=gpu.index if minor is None else minor,
        product=product,
        model=model,
        pci_bus_id=pci.busId,
        pci_device_id=pci_device,
        pci_subsystem_ids=_subsystems(gpu.sysfs, pci),
        pci_class=_sysfs(gpu.sysfs, pci.busId, "class"),
        virtual=optional(pynvml.nvmlDeviceGetVirtualizationMode, device) == pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU,
        numa=_numa(gpu.sysfs, pci.busId),
        memory_total_mib=total_mib,
        memory_mib=free_mib,
        compute_capability=capability,
        compute_mode=_compute_mode(device, mig),
        mig=mig,
        instances=tuple(complete),
        incomplete=tuple(sorted(each.placement for each in found if not each.complete)),
        power_limit_watts=_watts(optional(pynvml.nvmlDeviceGetPowerManagementLimit, device)),
        power_default_watts=default,
        power_range_watts=ends,
    ), (*memory_notes, *notes)


def mode(device: Any) -> MigMode | None:
    """Return a GPU's MIG mode; None where it has none."""
    found = optional(pynvml.nvmlDeviceGetMigMode, device)
    return None if found is None else MigMode(current=bool(found[0]), pending=bool(found[1]))


_MOST_MEMORY = 4 << 40
"""More bytes than any GPU has: larger values of a broken driver are ignored."""


def _memory(device: Any) -> tuple[int, int, tuple[str, ...]]:
    """Return total and allocatable memory, in MiB, and what is wrong with them."""
    memory = optional(lambda: pynvml.nvmlDeviceGetMemoryInfo(device, version=pynvml.nvmlMemory_v2))
    found = memory or optional(pynvml.nvmlDeviceGetMemoryInfo, device)
    if found is None:
        return 0, 0, ("the driver does not report its memory, so none is allocated",)
    total, reserved = found.total, memory.reserved if memory else 0
    if not reserved <= total <= _MOST_MEMORY or not total:
        clause = f"the driver reports {total} bytes of memory, {reserved} of them reserved, so none is allocated"
        return 0, 0, (clause,)
    clause = "the driver does not report how much memory it reserves, so all of it counts as usable"
    return total // MIB, (total - reserved) // MIB, () if memory else (clause,)


def used_mib(device: Any) -> int:
    """Return the MiB in use on a GPU or MIG device, rounded up; without reserved memory, if that is reported."""
    memory = optional(lambda: pynvml.nvmlDeviceGetMemoryInfo(device, version=pynvml.nvmlMemory_v2))
    used: int = (memory or pynvml.nvmlDeviceGetMemoryInfo(device)).used
    return -(-used // MIB)


def reserved_mib(device: Any) -> int | None:
    """Return the MiB that driver and firmware reserve on a GPU, rounded up; None where that is not reported."""
    memory = optional(lambda: pynvml.nvmlDeviceGetMemoryInfo(device, version=pynvml.nvmlMemory_v2))
    return None if memory is None else -(-memory.reserved // MIB)


def _compute_mode(device: Any, mig: MigMode | None) -> ComputeMode:
    """Return a GPU's compute mode, which with MIG on is the default. Source: NVML, `nvmlDeviceSetComputeMode`."""
    if mig is not None and mig.current:
        return ComputeMode.DEFAULT
    return _COMPUTE_MODES.get(optional(pynvml.nvmlDeviceGetComputeMode, device), ComputeMode.DEFAULT)


def _power(device: Any) -> tuple[int | None, tuple[int, int] | None]:
    """Return the default power limit, and the range of limits, in whole watts that the GPU accepts."""
    default = _watts(optional(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, device))
    ends = optional(pynvml.nvmlDeviceGetPowerManagementLimitConstraints, device)
    return default, None if ends is None else (-(-ends[0] // _PART_OF_WATT), ends[1] // _PART_OF_WATT)


def _watts(milliwatts: int | None) -> int | None:
    return None if milliwatts is None else milliwatts // _PART_OF_WATT


def _numa(sysfs: Path, bus_id: str) -> int | None:
    """Return the NUMA node of the GPU's slot; None on a system with one node or without the information."""
    node = _sysfs(sysfs, bus_id, "numa_node")
    return int(node) if node.isascii() and node.isdecimal() else None


def _subsystems(sysfs: Path, pci: Any) -> tuple[int, ...]:
    """Return the subsystem id of the system; without one NVML's, and the 0 that mig-parted uses."""
    device, vendor = (_sysfs(sysfs, pci.busId, f"subsystem_{part}") for part in ("device", "vendor"))
    try:
        return (int(device, 16) << 16 | int(vendor, 16),)
    except ValueError:
        return tuple(dict.fromkeys((int(pci.pciSubSystemId), 0)))


def _sysfs(sysfs: Path, bus_id: str, attribute: str) -> str:
    """Return the operating system's facts about a GPU's slot; empty without any.

    NVML writes the PCI domain with eight digits, sysfs with four.
    """
    domain, _, rest = bus_id.lower().partition(":")
    try:
        return (sysfs / "bus/pci/devices" / f"{int(domain, 16):04x}:{rest}" / attribute).read_text().strip()
    except (OSError, ValueError):
        return ""


def parts(device: Any, model: GpuModel) -> tuple[Part, ...]:
    """Return the GPU instances of a GPU, complete or not, in the order of the model's profiles."""
    found = []
    devices = mig_devices(device)
    for profile in model.profiles:
        for handle in _gpu_instances(device, profile.profile_id, profile.max_instances):
            info = pynvml.nvmlGpuInstanceGetInfo(handle)
            placement = Placement(info.placement.start, info.placement.size, profile.name)
            own = [each for number, each in devices if number == info.id]
            described = tuple(_described(each, info.id, placement) for each in own)
            found.append(Part(handle=handle, number=info.id, placement=placement, devices=described))
    return tuple(found)


def _gpu_instances(device: Any, profile_id: int | None, most: int) -> list[Any]:
    if profile_id is None:
        return []
    count = ctypes.c_uint()
    array = (pynvml.c_nvmlGpuInstance_t * max(most, 1))()
    try:
        pynvml.nvmlDeviceGetGpuInstances(device, profile_id, array, ctypes.byref(count))
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument):
        return []
    return list(array[: count.value])


def mig_devices(device: Any) -> list[tuple[int, Any]]:
    """Return the MIG devices of a GPU, each with the id of its GPU instance."""
    found = []
    for number in range(optional(pynvml.nvmlDeviceGetMaxMigDeviceCount, device) or 0):
        try:
            handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device, number)
        except (pynvml.NVMLError_NotFound, pynvml.NVMLError_InvalidArgument):
            continue
        found.append((pynvml.nvmlDeviceGetGpuInstanceId(handle), handle))
    return found


def _described(handle: Any, gpu_instance: int, placement: Placement) -> MigDevice:
    attributes = pynvml.nvmlDeviceGetAttributes_v2(handle)
    uuid, number = pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetComputeInstanceId(handle)
    return MigDevice(
        handle=handle,
        uuid=uuid,
        compute_instance=number,
        fills=attributes.computeInstanceSliceCount == attributes.gpuInstanceSliceCount,
        instance=Instance(
            placement=placement,
            uuid=uuid,
            gpu_instance=gpu_instance,
            compute_instance=number,
            memory_mib=attributes.memorySizeMB,
            multiprocessors=attributes.multiprocessorCount,
            copy_engines=attributes.sharedCopyEngineCount,
            decoders=attributes.sharedDecoderCount,
            encoders=attributes.sharedEncoderCount,
            jpeg_engines=attributes.sharedJpegCount,
            ofa_engines=attributes.sharedOfaCount,
        ),
    )


_LISTS = (
    pynvml.nvmlDeviceGetComputeRunningProcesses,
    pynvml.nvmlDeviceGetMPSComputeRunningProcesses,
    pynvml.nvmlDeviceGetGraphicsRunningProcesses,
)
_OF_MPS = 1
"""The list of the clients of MPS servers."""


def processes(device: Any) -> tuple[GpuProcess, ...]:
    """Return the listed processes on a GPU and its instances, sorted; including MPS and graphics."""
    return _merged(optional(ask, device) for ask in _LISTS)


def all_processes(device: Any) -> tuple[GpuProcess, ...] | None:
    """Return the same; None if the list of compute or of MPS is refused. A GPU without graphics refuses that one."""
    lists = [optional(ask, device) for ask in _LISTS]
    return None if None in lists[:2] else _merged(lists)


def _merged(lists: Iterable[Any]) -> tuple[GpuProcess, ...]:
    found: dict[tuple[int, int | None], GpuProcess] = {}
    clients = set()
    for number, listed in enumerate(lists):
        for each in listed or ():
            on = getattr(each, "gpuInstanceId", _NONE)
            instance = None if on == _NONE else on
            if number == _OF_MPS:
                clients.add(each.pid)
            memory = None if each.usedGpuMemory is None else -(-each.usedGpuMemory // MIB)
            found[each.pid, instance] = GpuProcess(
                pid=each.pid, memory_mib=memory, gpu_instance=instance, mps_client=each.pid in clients
            )
    return tuple(found[key] for key in sorted(found, key=lambda key: (key[0], -1 if key[1] is None else key[1])))
