"""NVML's measurements of one GPU. Everything here runs in the driver's thread."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pynvml

from tessera.clients.gpu.nvml.faults import optional
from tessera.clients.gpu.nvml.reading import all_processes, mig_devices, reserved_mib, used_mib
from tessera.core.gpu.inventory import GpuFacts
from tessera.core.gpu.readings import EngineActivity, GpuReading, InstanceReading, ProcessReading, RemappedRows

__all__ = ["Measuring"]

Answer = TypeVar("Answer")

_GPM = {
    "graphics_percent": pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL,
    "sm_percent": pynvml.NVML_GPM_METRIC_SM_UTIL,
    "tensor_percent": pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
    "dram_percent": pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
}
_LOST = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_UNINITIALIZED})
_NO_SAMPLE = frozenset({pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND})
"""Every process was idle; pynvml raises both."""


class Measuring:
    """Measures GPUs, and keeps the samples for the next measurement."""

    def __init__(self) -> None:
        self._samples: dict[tuple[str, int | None], Any] = {}
        """Last sample of GPM of a GPU, or of one of its GPU instances by id."""
        self._sampled_us: dict[str, int] = {}
        """Time of the newest sample of processes, by GPU."""

    def measure(self, facts: GpuFacts, device: Any) -> GpuReading:
        """Return NVML's measurements of a GPU; unsupported ones are None."""
        partitioned = facts.layout is not None
        rates = None if partitioned else _optional(pynvml.nvmlDeviceGetUtilizationRates, device)
        reasons = _optional(pynvml.nvmlDeviceGetCurrentClocksEventReasons, device)
        if reasons is None:  # drivers before 535
            reasons = _optional(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, device)
        milliwatts = _optional(pynvml.nvmlDeviceGetPowerUsage, device)
        instances = tuple(self._instances(facts, device)) if partitioned else ()
        return GpuReading(
            memory_used_mib=_optional(used_mib, device),
            gpu_percent=rates and rates.gpu,
            memory_percent=rates and rates.memory,
            encoder_percent=_first(_optional(pynvml.nvmlDeviceGetEncoderUtilization, device)),
            decoder_percent=_first(_optional(pynvml.nvmlDeviceGetDecoderUtilization, device)),
            activity=None if partitioned else self._activity(facts.uuid, device),
            sm_clock_mhz=_optional(pynvml.nvmlDeviceGetClockInfo, device, pynvml.NVML_CLOCK_SM),
            memory_clock_mhz=_optional(pynvml.nvmlDeviceGetClockInfo, device, pynvml.NVML_CLOCK_MEM),
            temperature_c=_optional(pynvml.nvmlDeviceGetTemperature, device, pynvml.NVML_TEMPERATURE_GPU),
            memory_temperature_c=_memory_temperature(device),
            reserved_mib=_optional(reserved_mib, device),
            power_watts=None if milliwatts is None else milliwatts / 1000,
            energy_mj=_optional(pynvml.nvmlDeviceGetTotalEnergyConsumption, device),
            clocks_event_reasons=reasons,
            ecc_corrected=_ecc(device, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            ecc_uncorrected=_ecc(device, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
            remapped_rows=_rows(device),
            instances=instances,
            processes=self._processes(facts.uuid, device),
        )

    def _instances(self, facts: GpuFacts, device: Any) -> Iterator[InstanceReading]:
        """Yield the instances that existed at the last read of the GPU and still do."""
        handles = dict(mig_devices(device))
        self._forget(facts.uuid, keep=set(handles))
        for each in facts.instances:
            if each.gpu_instance in handles:
                yield InstanceReading(
                    placement=each.placement,
                    memory_used_mib=_optional(used_mib, handles[each.gpu_instance]),
                    activity=self._activity(facts.uuid, device, each.gpu_instance),
                )

    def _processes(self, uuid: str, device: Any) -> tuple[ProcessReading, ...] | None:
        percent = self._utilization(uuid, device)
        found = _optional(all_processes, device)
        if found is None:
            return None
        running = tuple(
            ProcessReading(
                pid=each.pid,
                memory_mib=each.memory_mib,
                gpu_instance=each.gpu_instance,
                sm_percent=None if percent is None else percent.get(each.pid, None if each.mps_client else 0),
            )
            for each in found
        )
        ended = (percent or {}).keys() - {each.pid for each in found}
        return (
            *running,
            *(ProcessReading(pid=pid, memory_mib=0, sm_percent=(percent or {})[pid]) for pid in sorted(ended)),
        )

    def _utilization(self, uuid: str, device: Any) -> dict[int, float] | None:
        """Return the mean utilization by process since the last measurement, without idle processes; None if refused.

        Source: NVML, nvmlDeviceGetProcessUtilization: it samples processes whose utilization is not zero.
        """
        since_us = self._sampled_us.get(uuid, 0)
        try:
            samples = pynvml.nvmlDeviceGetProcessUtilization(device, since_us)
        except pynvml.NVMLError as error:
            if error.value in _LOST:
                raise
            return {} if error.value in _NO_SAMPLE else None
        by_process = defaultdict[int, list[int]](list)
        newer = [each for each in samples if each.timeStamp > since_us]
        for each in newer:
            by_process[each.pid].append(each.smUtil)
        self._sampled_us[uuid] = max((each.timeStamp for each in newer), default=since_us)
        return {pid: sum(percent) / len(percent) for pid, percent in by_process.items()}

    def _activity(self, uuid: str, device: Any, instance: int | None = None) -> EngineActivity | None:
        """Return the utilization of a GPU or an instance since the last sample; None without one, or without GPM."""
        support = _optional(pynvml.nvmlGpmQueryDeviceSupport, device)
        if support is None or not support.isSupportedDevice:
            return None
        sample = pynvml.nvmlGpmSampleAlloc()
        if instance is None:
            taken = _optional(pynvml.nvmlGpmSampleGet, device, sample)
        else:
            taken = _optional(pynvml.nvmlGpmMigSampleGet, device, instance, sample)
        if taken is None:
            pynvml.nvmlGpmSampleFree(sample)
            return None
        former = self._samples.pop((uuid, instance), None)
        self._samples[uuid, instance] = sample
        if former is None:
            return None
        try:
            return _between(former, sample)
        finally:
            pynvml.nvmlGpmSampleFree(former)

    def _forget(self, uuid: str, keep: set[int]) -> None:
        for key in [key for key in self._samples if key[0] == uuid and key[1] not in keep]:
            pynvml.nvmlGpmSampleFree(self._samples.pop(key))

    def close(self) -> None:
        """Free all samples."""
        for sample in self._samples.values():
            pynvml.nvmlGpmSampleFree(sample)
        self._samples.clear()


def _between(former: Any, sample: Any) -> EngineActivity | None:
    requested = pynvml.c_nvmlGpmMetricsGet_t()
    requested.version, requested.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, len(_GPM)
    requested.sample1, requested.sample2 = former, sample
    for number, metric in enumerate(_GPM.values()):
        requested.metrics[number].metricId = metric
    if _optional(pynvml.nvmlGpmMetricsGet, requested) is None:
        return None
    found = zip(_GPM, requested.metrics[: len(_GPM)], strict=True)
    return EngineActivity(**{name: each.value for name, each in found if each.nvmlReturn == pynvml.NVML_SUCCESS})


def _ecc(device: Any, kind: int) -> int | None:
    return _optional(pynvml.nvmlDeviceGetTotalEccErrors, device, kind, pynvml.NVML_VOLATILE_ECC)


def _memory_temperature(device: Any) -> int | None:
    found = _optional(pynvml.nvmlDeviceGetFieldValues, device, [pynvml.NVML_FI_DEV_MEMORY_TEMP])
    if not found or found[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return int(found[0].value.uiVal) or None  # 0 of GPUs whose memory has no sensor


def _rows(device: Any) -> RemappedRows | None:
    found = _optional(pynvml.nvmlDeviceGetRemappedRows, device)
    if found is None:
        return None
    corrected, uncorrected, pending, failed = found
    return RemappedRows(corrected=corrected, uncorrected=uncorrected, failed=bool(failed), pending=bool(pending))


def _first(pair: Any) -> int | None:
    return None if pair is None else pair[0]


def _optional(function: Callable[..., Answer], *arguments: Any) -> Answer | None:
    """Return the result of an NVML call; None if it fails, except by the loss of the GPU or driver.

    A failed measurement does not prevent the others.
    """
    try:
        return optional(function, *arguments)
    except pynvml.NVMLError as error:
        if error.value in _LOST:
            raise
        return None
