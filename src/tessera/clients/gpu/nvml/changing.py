"""Changes to one GPU through NVML: MIG mode, instances, limits. Everything here runs in the driver's thread."""

import ctypes
from typing import Any

import pynvml

from tessera.clients.gpu.nvml.faults import REFUSED, translated
from tessera.clients.gpu.nvml.reading import mode, parts, processes
from tessera.clients.gpu.protocol import MemoryLimit
from tessera.clients.gpu.refusals import (
    check_idle,
    check_present,
    check_room,
    mig_of,
    named,
    no_memory_limits,
    place_named,
    used,
)
from tessera.core.gpu.inventory import ComputeMode, GpuFacts, MigMode
from tessera.core.gpu.mig import Placement
from tessera.core.workload.units import MIB
from tessera.errors import Conflict, Unavailable

__all__ = ["cap", "create", "destroy", "limit", "limit_of", "limits_memory", "lock", "set_compute_mode", "switch"]

_COMPUTE_MODES = {
    ComputeMode.DEFAULT: pynvml.NVML_COMPUTEMODE_DEFAULT,
    ComputeMode.PROHIBITED: pynvml.NVML_COMPUTEMODE_PROHIBITED,
    ComputeMode.EXCLUSIVE_PROCESS: pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS,
}
_WAITS = (pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_RESET_REQUIRED)
"""Return codes with which a new MIG mode is in force, or will be after a reset."""


def switch(facts: GpuFacts, device: Any, *, enabled: bool) -> MigMode:
    """Turn MIG on or off. NVML reports success when nothing changed: its activation status and the mode show it."""
    now, subject = mig_of(facts), f"MIG mode of {named(facts)}"
    if now.current == now.pending == enabled:
        return now
    with translated(subject):
        if now.current != enabled:
            check_idle(facts, len(processes(device)))
        status = pynvml.nvmlDeviceSetMigMode(device, int(enabled))
        after = mode(device) or now
        if status in _WAITS:
            return after
        pynvml.nvmlDeviceSetMigMode(device, int(now.current))
    found = f"NVML: {pynvml.NVMLError(status)} ({status})"
    if status == pynvml.NVML_ERROR_IN_USE:
        accepted = "end what has the GPU open (monitoring, display, persistence daemon), then set it again"
        raise Conflict(subject, found=found, hint=accepted)
    raise Unavailable(subject, found=found, hint="reset the GPU")


def create(facts: GpuFacts, device: Any, placement: Placement) -> None:
    """Create a GPU instance and the compute instance that fills it; destroys the first if the second fails."""
    check_room(facts, placement)
    subject = f"creating {place_named(facts, placement)}"
    profile = next(each for each in facts.model.profiles if each.name == placement.profile)
    assert profile.profile_id is not None, "whose placements are known, their id is"
    at = pynvml.c_nvmlGpuInstancePlacement_t(placement.start, placement.size)
    with translated(subject):
        created = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(device, profile.profile_id, ctypes.byref(at))
        try:
            pynvml.nvmlGpuInstanceCreateComputeInstance(created, _filling(created, profile.compute_slices))
        except pynvml.NVMLError:
            pynvml.nvmlGpuInstanceDestroy(created)
            raise


def _filling(gpu_instance: Any, slices: int) -> int:
    """Return the id of the compute instance profile that takes all slices of a GPU instance."""
    for number in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        engines = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
        try:
            info = _compute_profile(gpu_instance, number, engines)
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument, pynvml.NVMLError_NotFound):
            continue
        if info.sliceCount == slices:
            return int(info.id)
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


def _compute_profile(gpu_instance: Any, number: int, engines: int) -> Any:
    ask = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo
    try:
        return ask(gpu_instance, number, engines, version=2)
    except (pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_ArgumentVersionMismatch):
        return ask(gpu_instance, number, engines, version=1)


def destroy(facts: GpuFacts, device: Any, placement: Placement) -> None:
    """Destroy a GPU instance that no process uses, its compute instances first."""
    check_present(facts, placement)
    with translated(f"destroying {place_named(facts, placement)}"):
        part = next(each for each in parts(device, facts.model) if each.placement == placement)
        users = [each.pid for each in processes(device) if each.gpu_instance == part.number]
        if users:
            raise used(facts, placement, users)
        try:
            for each in part.devices:
                found = pynvml.nvmlGpuInstanceGetComputeInstanceById(part.handle, each.compute_instance)
                pynvml.nvmlComputeInstanceDestroy(found)
            pynvml.nvmlGpuInstanceDestroy(part.handle)
        except pynvml.NVMLError_InUse as error:
            raise used(facts, placement) from error


def set_compute_mode(facts: GpuFacts, device: Any, desired: ComputeMode) -> None:
    """Set the compute mode: who may open contexts on a GPU."""
    with translated(f"compute mode of {named(facts)}"):
        pynvml.nvmlDeviceSetComputeMode(device, _COMPUTE_MODES[desired])


def cap(facts: GpuFacts, device: Any, watts: int) -> None:
    """Set a GPU's power limit."""
    with translated(f"power limit of {named(facts)}"):
        pynvml.nvmlDeviceSetPowerManagementLimit(device, watts * 1000)


def lock(facts: GpuFacts, device: Any, mhz: tuple[int, int] | None) -> None:
    """Lock the graphics clock, or unlock it."""
    with translated(f"clocks of {named(facts)}"):
        if mhz is None:
            pynvml.nvmlDeviceResetGpuLockedClocks(device)
        else:
            pynvml.nvmlDeviceSetGpuLockedClocks(device, *mhz)


def limit(facts: GpuFacts, device: Any, cgroup: str, hard_mib: int | None) -> None:
    """Limit a cgroup's memory; without a soft limit, which would be a guarantee."""
    limits = pynvml.c_nvmlSetMemoryLimits_v1_t()
    limits.nameSpace = cgroup.encode()
    limits.softLimit = 0
    limits.hardLimit = pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX if hard_mib is None else hard_mib * MIB
    _limits(facts, cgroup, pynvml.nvmlDeviceSetMemoryLimits_v1, device, limits)


def limit_of(facts: GpuFacts, device: Any, cgroup: str) -> MemoryLimit:
    """Return a cgroup's limit, and its usage."""
    limits = pynvml.c_nvmlGetMemoryLimits_v1_t()
    limits.nameSpace = cgroup.encode()
    _limits(facts, cgroup, pynvml.nvmlDeviceGetMemoryLimits_v1, device, limits)
    unlimited = limits.hardLimit == pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX
    return MemoryLimit(hard_mib=None if unlimited else limits.hardLimit // MIB, used_mib=-(-limits.currentUsed // MIB))


def _limits(facts: GpuFacts, cgroup: str, function: Any, device: Any, limits: Any) -> None:
    if facts.layout is not None:
        raise no_memory_limits(facts, "MIG on")
    with translated(f"memory limit of {cgroup} on {named(facts)}"):
        try:
            function(device, limits)
        except pynvml.NVMLError as error:
            if error.value in REFUSED:
                raise no_memory_limits(facts, f"NVML: {error} ({error.value})") from error
            raise


def limits_memory(device: Any) -> bool:
    """Return whether the driver limits memory by cgroup on this GPU."""
    limits = pynvml.c_nvmlGetMemoryLimits_v1_t()
    limits.nameSpace = b"/"
    try:
        pynvml.nvmlDeviceGetMemoryLimits_v1(device, limits)
    except pynvml.NVMLError as error:
        return error.value not in REFUSED
    return True
