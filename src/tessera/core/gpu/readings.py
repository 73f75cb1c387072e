"""A GPU driver's measurements: load, memory, clocks, temperature, power, errors, processes.

A driver may report nonsense: `core.usage.plausible` filters it.
"""

import msgspec

from tessera.core.gpu.mig import Placement

__all__ = ["EngineActivity", "GpuReading", "InstanceReading", "ProcessReading", "RemappedRows"]


class EngineActivity(msgspec.Struct, frozen=True, kw_only=True):
    """Utilization of the parts of a GPU or a MIG instance since the last reading, in percent. Source: NVML, GPM."""

    graphics_percent: float | None = None
    """Of the time, in which compute or graphics ran."""
    sm_percent: float | None = None
    tensor_percent: float | None = None
    dram_percent: float | None = None


class ProcessReading(msgspec.Struct, frozen=True, kw_only=True):
    """A process with a context on a GPU, or one that had one since the last reading and has ended."""

    pid: int
    memory_mib: int | None = None
    """0 of one that has ended."""
    gpu_instance: int | None = None
    sm_percent: float | None = None
    """None where the driver does not sample processes, as under MIG, and of clients of an MPS server."""


class InstanceReading(msgspec.Struct, frozen=True, kw_only=True):
    """A MIG instance."""

    placement: Placement
    memory_used_mib: int | None = None
    activity: EngineActivity | None = None


class RemappedRows(msgspec.Struct, frozen=True, kw_only=True):
    """Remapped rows of memory."""

    corrected: int
    uncorrected: int
    failed: bool
    pending: bool = False
    """Whether a reset of the GPU is needed to remap a row."""


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU at one moment; None for what this GPU or driver does not report."""

    memory_used_mib: int | None = None
    gpu_percent: int | None = None
    """Of the last sample period in which a kernel ran; None under MIG."""
    memory_percent: int | None = None
    """Of the last sample period in which memory was read or written."""
    encoder_percent: int | None = None
    decoder_percent: int | None = None
    activity: EngineActivity | None = None
    """None before Hopper, under MIG, and at the first reading."""
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_c: int | None = None
    memory_temperature_c: int | None = None
    """None of GPUs without HBM."""
    reserved_mib: int | None = None
    """Memory that driver and firmware reserve, beside what is in use."""
    power_watts: float | None = None
    energy_mj: int | None = None
    """Since the driver was loaded."""
    clocks_event_reasons: int | None = None
    """Bits that say why clocks are as they are. Source: NVML, nvmlClocksEventReason*."""
    ecc_corrected: int | None = None
    """Errors since the driver was loaded."""
    ecc_uncorrected: int | None = None
    remapped_rows: RemappedRows | None = None
    instances: tuple[InstanceReading, ...] = ()
    processes: tuple[ProcessReading, ...] | None = None
    """None where they are unknown, which is not the same as none: the driver refuses or fails to list them."""
