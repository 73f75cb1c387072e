"""A GPU model by the driver: the catalog's entry, corrected where the driver differs."""

import functools
import re

import msgspec

from tessera.core.gpu.gpumodels.names import model, profile
from tessera.core.gpu.gpumodels.records import GpuModel, Media, Profile
from tessera.errors import InvalidInput

__all__ = ["ObservedGpu", "ObservedProfile", "architecture", "observed_model"]

_ARCHITECTURES = (
    ((12, 0), "Blackwell"),
    ((10, 3), "Blackwell Ultra"),
    ((10, 0), "Blackwell"),
    ((9, 0), "Hopper"),
    ((8, 9), "Ada Lovelace"),
    ((8, 0), "Ampere"),
    ((7, 5), "Turing"),
    ((7, 0), "Volta"),
    ((6, 0), "Pascal"),
    ((5, 0), "Maxwell"),
)
"""By minimum compute capability. Source: CUDA C++ Programming Guide, "Compute Capabilities"."""
_ATTRIBUTES = re.compile(r"gb(?:\+gfx)?(?P<media>[+-]me(?:\.all)?)?")
_SHARED_MEDIA: tuple[Media, ...] = ("me", "me.all")
"""Kinds of which every known GPU has at most one instance."""


class ObservedProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU instance profile of the driver."""

    name: str
    profile_id: int
    compute_slices: int
    max_instances: int
    memory_mib: int
    multiprocessors: int
    media_engines: bool
    """Whether an instance has decoders, JPEG or optical flow engines."""
    places: tuple[tuple[int, int], ...] = ()
    """Start and size of each placement; empty where the driver does not report it."""


class ObservedGpu(msgspec.Struct, frozen=True, kw_only=True):
    """The driver's facts that decide a GPU's model."""

    product: str
    pci: str = ""
    memory_mib: int
    compute_capability: tuple[int, int] = (0, 0)
    mig: bool = False
    """Whether there is a MIG mode."""
    profiles: tuple[ObservedProfile, ...] = ()
    """Empty where the driver lists none, as older ones do with MIG off."""


def architecture(compute_capability: tuple[int, int]) -> str:
    """Return the name of the architecture with this compute capability, as the catalog writes it."""
    return next((name for least, name in _ARCHITECTURES if compute_capability >= least), "unknown")


@functools.cache
def observed_model(observed: ObservedGpu) -> tuple[GpuModel, tuple[str, ...]]:
    """Return the model of a GPU and its differences from the catalog, one clause each; the driver is right.

    A product that is not in the catalog gets a model from the driver's facts alone.
    """
    known = _known(observed)
    if known is None:
        return _new(observed), ("it is not in the catalog: its model is read from the driver",)
    notes: list[str] = []
    if known.memory_known and known.memory_mib != observed.memory_mib:
        notes.append(f"{observed.memory_mib} MiB of memory, {known.memory_mib} in the catalog")
    profiles = _corrected(known, observed, notes)
    if profiles == known.profiles and known.memory_mib == observed.memory_mib:
        return known, tuple(notes)
    slices = max((start + each.size for each in profiles for start in each.starts), default=0)
    corrected = msgspec.structs.replace(
        known, memory_mib=observed.memory_mib, memory_known=True, profiles=profiles, memory_slices=slices
    )
    return corrected, tuple(notes)


def _known(observed: ObservedGpu) -> GpuModel | None:
    for text in (observed.product, observed.pci):
        try:
            return model(text)
        except InvalidInput:
            continue
    return None


def _corrected(known: GpuModel, observed: ObservedGpu, notes: list[str]) -> tuple[Profile, ...]:
    if not observed.mig:
        if known.profiles:
            notes.append("no MIG, which the catalog has")
        return ()
    if not observed.profiles:
        notes.append("the driver lists no MIG profiles: the catalog's are used")
        return known.profiles
    found: dict[str, Profile] = {}
    for each in observed.profiles:
        cataloged = _same(known, each.name)
        if cataloged is None:
            notes.append(f"profile {each.name}, which the catalog does not have")
            found[each.name] = _profile(each, observed)
        else:
            found[cataloged.name] = _confirmed(cataloged, each, notes)
    missing = [each.name for each in known.profiles if each.name not in found]
    if missing:
        notes.append(f"no profile {', '.join(missing)}, which the catalog has")
    ordered = [found.pop(each.name) for each in known.profiles if each.name in found]
    return (*ordered, *found.values())


def _same(known: GpuModel, name: str) -> Profile | None:
    try:
        return profile(known, name)
    except InvalidInput:
        return None


def _confirmed(cataloged: Profile, observed: ObservedProfile, notes: list[str]) -> Profile:
    """Return the catalog's profile with the driver's figures."""
    starts, size = _places(observed)
    taken = {
        "name": observed.name,
        "compute_slices": observed.compute_slices,
        "max_instances": observed.max_instances,
        "memory_mib": observed.memory_mib,
        "memory_known": True,
        "profile_id": observed.profile_id,
        "sm": observed.multiprocessors or cataloged.sm,
    }
    if observed.places:
        taken |= {"size": size, "starts": starts, "placement": "observed"}
    differing = {
        field: value for field, value in taken.items() if field in _COMPARED and getattr(cataloged, field) != value
    }
    if not cataloged.memory_known or abs(observed.memory_mib - cataloged.memory_mib) <= _ROUNDING_MIB:
        differing.pop("memory_mib", None)
    for field, after in differing.items():
        if before := getattr(cataloged, field):
            shown = _COMPARED[field]
            notes.append(f"profile {cataloged.name} with {shown} {_text(after)}, {_text(before)} in the catalog")
    same = all(getattr(cataloged, field) == value for field, value in taken.items() if field in _DECISIVE)
    return cataloged if same else msgspec.structs.replace(cataloged, **taken)


_COMPARED = {
    "name": "the name",
    "compute_slices": "compute slices",
    "max_instances": "a maximum of",
    "memory_mib": "MiB of memory",
    "size": "size",
    "starts": "starts",
}
"""Fields whose difference is reported, and their names."""
_ROUNDING_MIB = 11
"""The catalog's memory is from listings in hundredths of a GiB: 9.62 for 9856 MiB."""
_DECISIVE = frozenset({*_COMPARED, "profile_id", "sm"})
"""Fields that make it another profile; the source of a figure does not."""


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _places(observed: ObservedProfile) -> tuple[tuple[int, ...], int]:
    return tuple(sorted(start for start, _ in observed.places)), max((size for _, size in observed.places), default=0)


def _new(observed: ObservedGpu) -> GpuModel:
    profiles = tuple(_profile(each, observed) for each in observed.profiles)
    return GpuModel(
        name=observed.product.removeprefix("NVIDIA ").replace(" ", "-"),
        arch=architecture(observed.compute_capability),
        memory_mib=observed.memory_mib,
        memory_slices=max((start + each.size for each in profiles for start in each.starts), default=0),
        compute_slices=max((each.compute_slices for each in profiles), default=0),
        profiles=profiles,
        at_most_one=tuple(kind for kind in _SHARED_MEDIA if any(each.media == kind for each in profiles)),
        pci=(observed.pci,) if observed.pci else (),
    )


def _profile(reported: ObservedProfile, observed: ObservedGpu) -> Profile:
    starts, size = _places(reported)
    return Profile(
        name=reported.name,
        compute_slices=reported.compute_slices,
        size=size,
        starts=starts,
        max_instances=reported.max_instances,
        memory_mib=reported.memory_mib,
        media=_media(
            reported, whole=reported.compute_slices == max(other.compute_slices for other in observed.profiles)
        ),
        graphics="+gfx" in reported.name,
        profile_id=reported.profile_id,
        sm=reported.multiprocessors or None,
        placement="observed" if reported.places else "unknown",
    )


def _media(reported: ObservedProfile, *, whole: bool) -> Media:
    """Return the kind of media engines, which NVIDIA puts in the name where it is unusual."""
    parts = _ATTRIBUTES.search(reported.name)
    named: dict[str | None, Media] = {"+me": "me", "+me.all": "me.all", "-me": "none"}
    kind = named.get(parts["media"]) if parts else None
    if kind is not None:
        return kind
    if whole:
        return "full"
    return "default" if reported.media_engines else "none"
