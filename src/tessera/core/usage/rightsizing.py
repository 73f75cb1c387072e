"""Right-sizing: containers with too much or too little GPU memory, what would fit, and the savings."""

import enum
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from tessera.core.gpu.gpumodels import GpuModel, model
from tessera.core.usage.activity import IDLE_PERCENT, UNUSED_MIB
from tessera.core.usage.usagereport import ContainerReport, DeviceReport, GpuReport, UsageReport
from tessera.errors import InvalidInput

__all__ = [
    "Advice",
    "ObservedUsage",
    "Recommendation",
    "Sizing",
    "advice_of",
    "advise",
    "recommendations",
]

_HEADROOM = 1.2
"""The recommended size is 20 % above the peak, and its compute above the mean load: the next may be higher."""
_TIGHT = 0.95
_UNIT_MIB = 1024
_LEAST_S = 900.0
"""Low usage before that is no evidence: a model may still be loading."""
_IDLE_S = 86_400.0
_USUAL = frozenset({"default", "full"})
"""Media engines of recommended profiles: those with more or fewer are left to pods that request them."""


class Sizing(enum.StrEnum):
    """How the allocation compares with the usage."""

    TOO_LITTLE = "too-little"
    """More than 95 % of it was used at some time."""
    TOO_MUCH = "too-much"
    """20 % above the peak is less."""
    UNUSED = "unused"
    """No process used it in 15 minutes or longer."""
    IDLE = "idle"
    """Its memory is used, its compute less than 5 % over a day or longer."""
    FITS = "fits"
    UNKNOWN = "unknown"
    """Allocation, usage or GPU model is unknown, or its usage was known for less than 15 minutes."""

    @property
    def needs_no_change(self) -> bool:
        """Whether there is nothing to recommend."""
        return self in {Sizing.FITS, Sizing.UNKNOWN}


_ORDER: Final = (Sizing.TOO_LITTLE, Sizing.UNUSED, Sizing.TOO_MUCH, Sizing.IDLE, Sizing.FITS, Sizing.UNKNOWN)
"""The most urgent first."""


class ObservedUsage(msgspec.Struct, frozen=True, kw_only=True):
    """A container's allocation of a device, and its usage."""

    amount: bool = False
    """Whether it is an amount of memory, which can be any."""
    replica: bool = False
    """Whether it is replicas of a device: the policy says their number, so that no memory is freed by smaller ones."""
    whole: bool = False
    """Whether it is a whole GPU."""
    several: bool = False
    """Whether the container has other GPUs of this node too: smaller ones are no advice then.

    A process sees one MIG instance, and parts of GPUs do not reach each other.
    """
    part: float | None = 1.0
    """Of the compute of its GPU, where the device is exclusive; None where unknown."""
    gpu_mib: int | None = None
    """Memory of the GPU; None where its model's counts."""
    allocated_mib: int | None = None
    peak_mib: int | None = None
    mean_percent: float | None = None
    """Its average load, of the compute of the device."""
    observed_s: float = 0.0
    """For how long its memory was known."""
    load_observed_s: float | None = None
    """For how long its load was known; None where as long as its memory."""

    @property
    def load(self) -> float | None:
        """The part of its GPU's compute that would fit; None where its load is unknown."""
        known = self.mean_percent is not None and self.part is not None
        return min((self.mean_percent or 0.0) / 100 * (self.part or 0.0) * _HEADROOM, 1.0) if known else None

    @property
    def load_unknown(self) -> bool:
        """Whether its load would count but is unknown."""
        return self.load is None and not (self.amount or self.replica)


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """A recommendation."""

    verdict: Sizing
    fits: str = ""
    """The MIG profile or the amount of memory that would fit: `1g.10gb`, `6 GiB`; empty where the present one does."""
    saved_mib: int = 0
    """Memory freed for others by it."""
    load_unknown: bool = False
    """Whether it fits by memory alone, because the load of the exclusive device is unknown."""


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
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
    load_unknown: bool = False


def advise(observed: ObservedUsage, model: GpuModel | None) -> Advice:
    """Return what would fit a container.

    Args:
        observed: allocation and usage.
        model: of the GPU; None where unknown, and then only amounts are judged.

    """
    allocated_mib, peak_mib = observed.allocated_mib, observed.peak_mib
    if allocated_mib is None or peak_mib is None:
        return Advice(verdict=Sizing.UNKNOWN)
    if peak_mib > _TIGHT * allocated_mib:
        fits = _larger(observed, allocated_mib, max(peak_mib * _HEADROOM, allocated_mib + 1), model)
        return Advice(verdict=Sizing.TOO_LITTLE, fits=fits, load_unknown=observed.load_unknown and fits != "")
    if observed.observed_s < _LEAST_S:
        return Advice(verdict=Sizing.UNKNOWN)
    return _not_full(observed, allocated_mib, peak_mib, model)


def _not_full(observed: ObservedUsage, allocated_mib: int, peak_mib: int, model: GpuModel | None) -> Advice:
    """Return what would fit a container that was observed for long enough and is not short of memory."""
    load_s = observed.observed_s if observed.load_observed_s is None else observed.load_observed_s
    if load_s < _LEAST_S:
        observed = msgspec.structs.replace(observed, mean_percent=None)
    if peak_mib <= UNUSED_MIB:
        return Advice(verdict=Sizing.UNUSED, saved_mib=0 if observed.replica else allocated_mib)
    kept = observed.replica or (observed.whole and observed.several)
    fits, fits_mib = ("", 0) if kept else _smaller(observed, peak_mib * _HEADROOM, model)
    if fits and fits_mib < allocated_mib:
        saved_mib = allocated_mib - fits_mib
        return Advice(verdict=Sizing.TOO_MUCH, fits=fits, saved_mib=saved_mib, load_unknown=observed.load_unknown)
    if observed.mean_percent is not None and observed.mean_percent < IDLE_PERCENT and load_s >= _IDLE_S:
        return Advice(verdict=Sizing.IDLE)
    known = model is not None or observed.amount or kept
    return Advice(verdict=Sizing.FITS if known else Sizing.UNKNOWN)


def _larger(observed: ObservedUsage, allocated_mib: int, needed_mib: float, model: GpuModel | None) -> str:
    """Return what would be enough, or the most that the GPU has; empty where that is no more than it has.

    In place of replicas it is an amount of memory, which is kept free for the container.
    """
    if not (observed.amount or observed.replica):
        return _profile(needed_mib, model, observed.load)[0]
    gpu_mib = observed.gpu_mib or (None if model is None else model.memory_mib)
    fits, fits_mib = _amount(needed_mib if gpu_mib is None else min(needed_mib, gpu_mib // _UNIT_MIB * _UNIT_MIB))
    return fits if fits_mib > allocated_mib else ""


def _smaller(observed: ObservedUsage, needed_mib: float, model: GpuModel | None) -> tuple[str, int]:
    """Return what would be enough and its memory: of a whole GPU a MIG instance, or an amount where none is smaller.

    An amount leaves compute to others, so a GPU that is busy to its end is no amount.
    """
    if observed.amount:
        return _amount(needed_mib)
    name, memory_mib = _profile(needed_mib, model, observed.load, within_gpu=observed.whole)
    shareable = observed.whole and model is not None and (observed.load is None or observed.load < 1)
    return _amount(needed_mib) if shareable and not name else (name, memory_mib)


def _amount(needed_mib: float) -> tuple[str, int]:
    units = -int(-needed_mib // _UNIT_MIB)
    return f"{units} GiB", units * _UNIT_MIB


def _profile(
    needed_mib: float, model: GpuModel | None, load: float | None, *, within_gpu: bool = False
) -> tuple[str, int]:
    """Return the smallest profile with so much memory and compute, and its memory.

    With `within_gpu` none that is all of a GPU. Where the load is unknown, memory alone counts.
    """
    if model is None:
        return "", 0
    for each in sorted(model.profiles, key=lambda each: (each.memory_mib, each.size, each.compute_slices)):
        usual = each.media in _USUAL and not each.graphics
        enough = each.memory_mib >= needed_mib and each.compute_slices >= (load or 0) * model.compute_slices
        if enough and usual and not (within_gpu and each.size == model.memory_slices):
            return each.name, each.memory_mib
    return "", 0


def advice_of(container: ContainerReport, device: DeviceReport, gpu: GpuReport, *, several: bool = False) -> Advice:
    """Return the recommendation for a container of a report.

    Args:
        container: its usage of the device.
        device: the device.
        gpu: of the device.
        several: whether it has several whole GPUs.

    """
    try:
        known = model(gpu.model)
    except InvalidInput:
        known = None
    observed = ObservedUsage(
        amount=not container.exclusive and not container.replica,
        replica=container.replica,
        whole=_whole(container, device),
        several=several,
        part=_part(device, known),
        gpu_mib=None if device.profile else device.memory_mib or None,
        allocated_mib=container.allocated_mib,
        peak_mib=container.peak_mib,
        mean_percent=container.mean_percent,
        observed_s=container.observed_s,
        load_observed_s=container.load_observed_s,
    )
    return advise(observed, known)


def _whole(container: ContainerReport, device: DeviceReport) -> bool:
    return container.exclusive and not device.profile


def _part(device: DeviceReport, known: GpuModel | None) -> float | None:
    if not device.profile:
        return 1.0
    return None if known is None else known.compute_part(device.profile)


def recommendations(reports: Iterable[UsageReport]) -> list[Recommendation]:
    """Return the recommendation for each container of these nodes, the most urgent and what saves most first."""
    return sorted(
        _recommendations(reports),
        key=lambda each: (_ORDER.index(each.verdict), -each.saved_mib, each.namespace, each.pod),
    )


def _request(container: ContainerReport, device: DeviceReport) -> tuple[str, str, bool]:
    """Return what the devices of one request of a container have in common: it says one size for all of them."""
    return container.name, device.profile, container.exclusive


def _join_usage(alike: list[ContainerReport]) -> ContainerReport:
    """Return the usage by which the devices of a request are judged: the largest of all.

    Where it is unknown on one of them, only too little memory is advice.
    """
    peaks_mib = [each.peak_mib for each in alike if each.peak_mib is not None]
    means = [each.mean_percent for each in alike if each.mean_percent is not None]
    loads_s = [each.observed_s if each.load_observed_s is None else each.load_observed_s for each in alike]
    return msgspec.structs.replace(
        alike[0],
        peak_mib=max(peaks_mib, default=None),
        mean_percent=max(means) if len(means) == len(alike) else None,
        observed_s=min(each.observed_s for each in alike) if len(peaks_mib) == len(alike) else 0.0,
        load_observed_s=min(loads_s),
    )


def _recommendations(reports: Iterable[UsageReport]) -> Iterator[Recommendation]:
    for report in reports:
        whole = Counter(
            each.name
            for gpu in report.gpus
            for device in gpu.devices
            for each in device.containers
            if _whole(each, device)
        )
        alike = defaultdict[tuple[str, str, bool], list[ContainerReport]](list)
        for device in (device for gpu in report.gpus for device in gpu.devices):
            for each in (each for each in device.containers if not (each.replica or _whole(each, device))):
                alike[_request(each, device)].append(each)
        together = {key: _join_usage(each) for key, each in alike.items()}
        for gpu in report.gpus:
            for device in gpu.devices:
                for own in device.containers:
                    unused = own.peak_mib is not None and own.peak_mib <= UNUSED_MIB
                    usage = own if unused or own.replica else together.get(_request(own, device), own)
                    each = msgspec.structs.replace(usage, allocated_mib=own.allocated_mib)
                    advice = advice_of(each, device, gpu, several=whole[each.name] > 1)
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
                        load_unknown=advice.load_unknown,
                    )
