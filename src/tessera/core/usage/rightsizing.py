"""Right-sizing: containers with too much or too little GPU memory, what would fit, and the savings."""

import enum
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from tessera.core.gpu.gpumodels import GpuModel, model
from tessera.core.usage.usagereport import ContainerReport, DeviceReport, GpuReport, UsageReport
from tessera.errors import InvalidInput

__all__ = ["Advice", "DeviceUsage", "Recommendation", "Sizing", "advice_of", "advise", "recommendations"]

_HEADROOM = 1.2
"""A fitting size has a fifth more than the observed peak: the next one may be higher."""
_TIGHT = 0.95
_UNIT_MIB = 1024
_IDLE_PERCENT = 5.0
_IDLE_S = 86_400.0
_USUAL = frozenset({"default", "full"})
"""Media engines of recommended profiles: those with more or fewer are left to pods that request them."""


class Sizing(enum.StrEnum):
    """How the allocation compares with the usage."""

    TOO_LITTLE = "too-little"
    """More than 95 % of it was used at some time."""
    TOO_MUCH = "too-much"
    """Less would have been enough, with a fifth to spare."""
    UNUSED = "unused"
    """Nothing of it was ever used."""
    IDLE = "idle"
    """Its memory is used, its compute less than 5 % over a day or longer."""
    FITS = "fits"
    UNKNOWN = "unknown"
    """Allocation, usage or GPU model is unknown."""

    @property
    def settled(self) -> bool:
        """Whether there is nothing to recommend."""
        return self in {Sizing.FITS, Sizing.UNKNOWN}


_ORDER: Final = (Sizing.TOO_LITTLE, Sizing.UNUSED, Sizing.TOO_MUCH, Sizing.IDLE, Sizing.FITS, Sizing.UNKNOWN)
"""The most urgent first."""


class DeviceUsage(msgspec.Struct, frozen=True, kw_only=True):
    """A container's allocation of a device, and its usage."""

    amount: bool = False
    """Whether it is an amount of memory, which can be any."""
    whole: bool = False
    """Whether it is a whole GPU."""
    allocated_mib: int | None = None
    peak_mib: int | None = None
    """Its peak."""
    mean_percent: float | None = None
    observed_s: float = 0.0


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """A recommendation."""

    verdict: Sizing
    fits: str = ""
    """The MIG profile or the amount of memory that would fit: `1g.10gb`, `6 GiB`; empty where the present one does."""
    saved_mib: int = 0
    """Memory freed for others by it."""


class Recommendation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The recommendation for a container on one device, with its basis."""

    node: str
    gpu: int
    """Index."""
    device: str
    """The MIG profile, or `whole`."""
    namespace: str
    pod: str
    container: str
    allocated_mib: int | None = None
    peak_mib: int | None = None
    """The peak in the time observed."""
    mean_percent: float | None = None
    observed_s: float = 0.0
    verdict: Sizing
    fits: str = ""
    saved_mib: int = 0


def advise(observed: DeviceUsage, model: GpuModel | None) -> Advice:
    """Return what would fit a container.

    Args:
        observed: allocation and usage.
        model: of the GPU; None where unknown, and then only amounts are judged.

    """
    allocated_mib, peak_mib = observed.allocated_mib, observed.peak_mib
    if allocated_mib is None or peak_mib is None:
        return Advice(verdict=Sizing.UNKNOWN)
    if peak_mib == 0:
        return Advice(verdict=Sizing.UNUSED, saved_mib=allocated_mib)
    if peak_mib > _TIGHT * allocated_mib:
        needed_mib = max(peak_mib * _HEADROOM, allocated_mib + 1)
        fits, _ = _amount(needed_mib) if observed.amount else _profile(needed_mib, model)
        return Advice(verdict=Sizing.TOO_LITTLE, fits=fits)
    fits, fits_mib = _smaller(observed, peak_mib * _HEADROOM, model)
    if fits and fits_mib < allocated_mib:
        return Advice(verdict=Sizing.TOO_MUCH, fits=fits, saved_mib=allocated_mib - fits_mib)
    if observed.mean_percent is not None and observed.mean_percent < _IDLE_PERCENT and observed.observed_s >= _IDLE_S:
        return Advice(verdict=Sizing.IDLE)
    return Advice(verdict=Sizing.UNKNOWN if model is None and not observed.amount else Sizing.FITS)


def _smaller(observed: DeviceUsage, needed_mib: float, model: GpuModel | None) -> tuple[str, int]:
    """Return what would be enough and its memory: of a whole GPU a MIG instance, or an amount where none is smaller."""
    if observed.amount:
        return _amount(needed_mib)
    name, memory_mib = _profile(needed_mib, model, within_gpu=observed.whole)
    return _amount(needed_mib) if observed.whole and model is not None and not name else (name, memory_mib)


def _amount(needed_mib: float) -> tuple[str, int]:
    units = -int(-needed_mib // _UNIT_MIB)
    return f"{units} GiB", units * _UNIT_MIB


def _profile(needed_mib: float, model: GpuModel | None, *, within_gpu: bool = False) -> tuple[str, int]:
    """Return the smallest profile with so much memory, and its memory; with `within_gpu` none that is all of a GPU."""
    for each in sorted(() if model is None else model.profiles, key=lambda each: (each.memory_mib, each.size)):
        usual = each.media in _USUAL and not each.graphics
        if each.memory_mib >= needed_mib and usual and not (within_gpu and model and each.size == model.memory_slices):
            return each.name, each.memory_mib
    return "", 0


def advice_of(container: ContainerReport, device: DeviceReport, gpu: GpuReport) -> Advice:
    """Return the recommendation for a container of a report."""
    try:
        known = model(gpu.model)
    except InvalidInput:
        known = None
    observed = DeviceUsage(
        amount=not container.exclusive,
        whole=container.exclusive and not device.profile,
        allocated_mib=container.allocated_mib,
        peak_mib=container.peak_mib,
        mean_percent=container.mean_percent,
        observed_s=container.observed_s,
    )
    return advise(observed, known)


def recommendations(reports: Iterable[UsageReport]) -> list[Recommendation]:
    """Return the recommendation for each container of these nodes, the most urgent and what saves most first."""
    return sorted(
        _recommendations(reports),
        key=lambda each: (_ORDER.index(each.verdict), -each.saved_mib, each.namespace, each.pod),
    )


def _recommendations(reports: Iterable[UsageReport]) -> Iterator[Recommendation]:
    for report in reports:
        for gpu in report.gpus:
            for device in gpu.devices:
                for each in device.containers:
                    advice = advice_of(each, device, gpu)
                    yield Recommendation(
                        node=report.node,
                        gpu=gpu.index,
                        device=device.profile or "whole",
                        namespace=each.namespace,
                        pod=each.pod,
                        container=each.container,
                        allocated_mib=each.allocated_mib,
                        peak_mib=each.peak_mib,
                        mean_percent=each.mean_percent,
                        observed_s=each.observed_s,
                        verdict=advice.verdict,
                        fits=advice.fits,
                        saved_mib=advice.saved_mib,
                    )
