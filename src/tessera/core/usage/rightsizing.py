"""Right-sizing: containers with too much or too little GPU memory, what would fit, and the savings."""

import enum

import msgspec

from tessera.core.gpu.gpumodels import GpuModel

__all__ = ["Advice", "DeviceUsage", "Recommendation", "Sizing", "advise"]

_HEADROOM = 1.2
"""A fitting size has a fifth more than the observed peak: the next one may be higher."""
_TIGHT = 0.95
_UNIT_MIB = 1024
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
    FITS = "fits"
    UNKNOWN = "unknown"
    """Allocation or usage is unknown."""

    @property
    def settled(self) -> bool:
        """Whether there is nothing to recommend."""
        return self in {Sizing.FITS, Sizing.UNKNOWN}


class DeviceUsage(msgspec.Struct, frozen=True, kw_only=True):
    """A container's allocation of a device, and its usage."""

    amount: bool = False
    """Whether it is an amount of memory, which can be any."""
    allocated_mib: int | None = None
    peak_mib: int | None = None
    """Its peak."""


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
        model: of the GPU; None where unknown, and then no profile is recommended.

    """
    allocated_mib, peak_mib = observed.allocated_mib, observed.peak_mib
    if allocated_mib is None or peak_mib is None:
        return Advice(verdict=Sizing.UNKNOWN)
    if peak_mib == 0:
        return Advice(verdict=Sizing.UNUSED, saved_mib=allocated_mib)
    tight = peak_mib > _TIGHT * allocated_mib
    fits, fits_mib = _fitting(observed, model, least_mib=allocated_mib + 1 if tight else 0)
    if tight:
        return Advice(verdict=Sizing.TOO_LITTLE, fits=fits)
    if fits and fits_mib < allocated_mib:
        return Advice(verdict=Sizing.TOO_MUCH, fits=fits, saved_mib=allocated_mib - fits_mib)
    return Advice(verdict=Sizing.FITS)


def _fitting(observed: DeviceUsage, model: GpuModel | None, least_mib: int) -> tuple[str, int]:
    """Return the smallest profile, or amount, with room to spare and its memory; nothing for none."""
    needed_mib = max((observed.peak_mib or 0) * _HEADROOM, least_mib)
    if observed.amount:
        units = -int(-needed_mib // _UNIT_MIB)
        return f"{units} GiB", units * _UNIT_MIB
    candidates = () if model is None else model.profiles
    for each in sorted(candidates, key=lambda each: (each.memory_mib, each.size)):
        if each.memory_mib >= needed_mib and each.media in _USUAL and not each.graphics:
            return each.name, each.memory_mib
    return "", 0
