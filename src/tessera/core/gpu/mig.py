"""MIG placements and layouts of one GPU: legality, enumeration, named configurations, remaining capacity.

A placement is one instance's position on the axis of memory slices; a layout is the set of placements on a GPU,
sorted by start. Every function is exact, and fast because a GPU has few layouts: at most a few thousand on any model.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from types import MappingProxyType
from typing import TypeAlias

import msgspec

from tessera.core.gpu.gpumodels import GpuModel, Profile

__all__ = [
    "ALL_MEDIA",
    "Counts",
    "Layout",
    "Placement",
    "all_layouts",
    "counts_of",
    "is_legal",
    "layouts_with",
    "mask",
    "maximal_counts",
    "maximal_layouts",
    "named_layouts",
    "open_placements",
    "place",
    "placement_at",
    "placements",
    "placements_of",
    "remaining",
    "why_illegal",
]


class Placement(msgspec.Struct, frozen=True, order=True):
    """A MIG instance's position on one GPU; ordered by start, then size, then profile name."""

    start: int
    size: int
    profile: str

    @property
    def mask(self) -> int:
        """The memory slices taken, as a bit set."""
        return ((1 << self.size) - 1) << self.start


ALL_MEDIA = "me.all"
"""The media kind that takes every media engine of a GPU, so that only instances without any fit beside it.

`nvidia-smi mig -lgip` of an RTX PRO 6000 shows 4 NVDEC, 4 NVENC, 4 JPEG and 1 OFA for the whole GPU and the same for
+me.all, one or two of each for the other profiles, and none for -me. Source: ug-profiles.
"""

Layout: TypeAlias = tuple[Placement, ...]
"""Placements on one GPU, sorted."""

Counts: TypeAlias = tuple[tuple[str, int], ...]
"""Instances by profile name, in the order of the model's profiles, none of them zero."""


@cache
def placements(model: GpuModel) -> Layout:
    """Return every placement of the model, sorted; none for profiles with unknown starts."""
    return tuple(sorted(place for each in model.profiles for place in placements_of(model, each.name)))


@cache
def placements_of(model: GpuModel, profile_name: str) -> Layout:
    """Return the placements of one profile, by start; none for a name that is not one of the model's."""
    return tuple(
        Placement(start, each.size, each.name)
        for each in model.profiles
        if each.name == profile_name
        for start in each.starts
    )


def placement_at(model: GpuModel, profile_name: str, start: int) -> Placement:
    """Return the placement of an instance of this profile with this start, legal or not.

    Its size is 0 if the model does not have the profile: then it is none of `placements`, and takes nothing.
    """
    known = _profiles(model).get(profile_name)
    return Placement(start, known.size if known else 0, profile_name)


def mask(layout: Iterable[Placement]) -> int:
    """Return the memory slices of a layout, as a bit set."""
    slices = 0
    for each in layout:
        slices |= each.mask
    return slices


def counts_of(model: GpuModel, layout: Layout) -> Counts:
    """Return how many instances of each profile a layout holds."""
    numbers = Counter(each.profile for each in layout)
    return tuple((each.name, numbers[each.name]) for each in model.profiles if numbers[each.name])


def is_legal(model: GpuModel, layout: Layout) -> bool:
    """Return whether the GPU could have these instances at once."""
    return why_illegal(model, layout) is None


def why_illegal(model: GpuModel, layout: Layout) -> str | None:
    """Return what makes a layout impossible, in one sentence without full stop; None when it is legal."""
    known = _profiles(model)
    for each in layout:
        profile = known.get(each.profile)
        if profile is None:
            return f"{model.name} has no profile {each.profile}"
        if each not in placements_of(model, each.profile):
            starts = ", ".join(map(str, profile.starts)) or "not known"
            return (
                f"{each.profile} takes {profile.size} memory slices at start {starts}, not {each.size} at {each.start}"
            )
    occupied: dict[int, Placement] = {}
    for each in layout:
        for number in range(each.start, each.start + each.size):
            if number in occupied:
                first = f"{occupied[number].profile} at {occupied[number].start}"
                return f"{first} and {each.profile} at {each.start} share memory slice {number}"
            occupied[number] = each
    return _media_clash(model, Counter(known[each.profile].media for each in layout))


def _media_clash(model: GpuModel, media: Mapping[str, int]) -> str | None:
    """Return what is wrong with the media engines of these instances; None if nothing."""
    for kind in model.at_most_one:
        if media[kind] > 1:
            return f"{media[kind]} instances have the media engines of +{kind}; {model.name} allows one"
    others = sum(count for kind, count in media.items() if kind not in {"none", ALL_MEDIA})
    if ALL_MEDIA in model.at_most_one and media[ALL_MEDIA] and others:
        return f"an instance with +{ALL_MEDIA} has all media engines, and {others} next to it request some"
    return None


def _barred(model: GpuModel, media: str, present: frozenset[str]) -> bool:
    """Return whether instances of the media kinds `present` leave no engines for one of kind `media`."""
    if media in present and media in model.at_most_one:
        return True
    if media == "none" or ALL_MEDIA not in model.at_most_one:
        return False
    return bool(present - {"none"}) if media == ALL_MEDIA else ALL_MEDIA in present


@cache
def open_placements(model: GpuModel, layout: Layout) -> Layout:
    """Return the placements that could be added to a legal layout, each alone."""
    occupied, kinds = mask(layout), _kinds(model, layout)
    known = _profiles(model)
    return tuple(
        each
        for each in placements(model)
        if not each.mask & occupied and not _barred(model, known[each.profile].media, kinds)
    )


def remaining(model: GpuModel, layout: Layout) -> Mapping[str, int]:
    """Return by profile name how many more instances of that profile alone fit beside a legal layout."""
    return _remaining(model, mask(layout), _kinds(model, layout))


@cache
def _remaining(model: GpuModel, occupied: int, kinds: frozenset[str]) -> Mapping[str, int]:
    return MappingProxyType({each.name: _more(model, each, occupied, kinds) for each in model.profiles})


def _more(model: GpuModel, profile: Profile, occupied: int, kinds: frozenset[str]) -> int:
    if _barred(model, profile.media, kinds):
        return 0
    count = 0
    # The lowest free start first is optimal, because all instances of a profile are of one size.
    for each in placements_of(model, profile.name):
        if not each.mask & occupied:
            occupied |= each.mask
            count += 1
    return min(count, 1) if profile.media in model.at_most_one else count


@cache
def all_layouts(model: GpuModel) -> tuple[Layout, ...]:
    """Return every legal layout, the empty one first, each sorted by start; a few thousand on the largest model."""
    found: list[Layout] = []

    def extend(layout: Layout, occupied: int, kinds: frozenset[str], after: int) -> None:
        found.append(layout)
        for number, each in enumerate(options[after:], after):
            media = known[each.profile].media
            if not each.mask & occupied and not _barred(model, media, kinds):
                extend((*layout, each), occupied | each.mask, kinds | {media}, number + 1)

    options, known = placements(model), _profiles(model)
    extend((), 0, frozenset(), 0)
    return tuple(found)


@cache
def maximal_layouts(model: GpuModel) -> tuple[Layout, ...]:
    """Return the layouts to which nothing can be added."""
    return tuple(layout for layout in all_layouts(model) if not open_placements(model, layout))


@cache
def maximal_counts(model: GpuModel) -> tuple[Counts, ...]:
    """Return the Pareto-maximal profile counts, sorted."""
    found = {counts_of(model, layout) for layout in maximal_layouts(model)}
    candidates = [(counts, dict(counts)) for counts in found]
    return tuple(
        sorted(
            counts
            for counts, own in candidates
            if not any(
                other != counts and all(more.get(name, 0) >= own[name] for name in own) for other, more in candidates
            )
        )
    )


def layouts_with(model: GpuModel, counts: Mapping[str, int]) -> tuple[Layout, ...]:
    """Return the layouts with exactly these instances of each profile; none where they never fit."""
    return _by_counts(model).get(frozenset((name, count) for name, count in counts.items() if count > 0), ())


def place(model: GpuModel, counts: Mapping[str, int], keep: Layout = ()) -> Layout | None:
    """Return a legal layout with all of `keep` and so many more instances of each profile; None when there is none.

    The search is exact. Of several layouts it returns the one that leaves the most placements free, then the first in
    order. Names that are not the model's profiles have no placement, so the answer is None.
    """
    requested = tuple((name, count) for name, count in sorted(counts.items()) if count > 0)
    return _place(model, requested, tuple(sorted(keep)))


@lru_cache(maxsize=1 << 16)
def _place(model: GpuModel, requested: Counts, keep: Layout) -> Layout | None:
    need = Counter(dict(requested)) + Counter(each.profile for each in keep)
    found = [layout for layout in layouts_with(model, need) if set(keep).issubset(layout)]
    return min(found, key=lambda layout: (-len(open_placements(model, layout)), layout), default=None)


@cache
def _by_counts(model: GpuModel) -> Mapping[frozenset[tuple[str, int]], tuple[Layout, ...]]:
    found: dict[frozenset[tuple[str, int]], list[Layout]] = {}
    for layout in all_layouts(model):
        found.setdefault(frozenset(counts_of(model, layout)), []).append(layout)
    return MappingProxyType({counts: tuple(layouts) for counts, layouts in found.items()})


@cache
def named_layouts(model: GpuModel) -> Mapping[str, Counts]:
    """Return the profile counts of the configurations that mig-parted names, for one GPU of this model.

    `all-disabled` is MIG off, `all-enabled` is MIG on with no instance; both have no counts. `all-balanced` is two of
    the smallest compute instance, one of the next and, on seven-slice GPUs, one 3g. A GPU without known placements has
    `all-disabled` alone. Profile names keep their own spelling, `+` becomes `.` in the configuration's name.

    Source: NVIDIA/mig-parted, deployments/systemd/config-default.yaml.
    """
    names: dict[str, Counts] = {"all-disabled": ()}
    if placements(model):
        names["all-enabled"] = ()
        for profile in model.profiles:
            names[f"all-{profile.name.replace('+', '.')}"] = ((profile.name, remaining(model, ())[profile.name]),)
        names["all-balanced"] = _balanced(model)
    return MappingProxyType(names)


def _balanced(model: GpuModel) -> Counts:
    """Return two of 1g, one of 2g, and one of 3g where there is one, each of the plain profile with least memory."""
    chosen: Counts = ()
    for slices, count in ((1, 2), (2, 1), (3, 1)):
        plain = [
            each
            for each in model.profiles
            if each.compute_slices == slices and each.starts and not any(mark in each.name for mark in "+-")
        ]
        chosen += tuple((each.name, count) for each in sorted(plain, key=lambda each: each.size)[:1])
    return chosen


@cache
def _profiles(model: GpuModel) -> Mapping[str, Profile]:
    return MappingProxyType({each.name: each for each in model.profiles})


def _kinds(model: GpuModel, layout: Layout) -> frozenset[str]:
    """Return the media kinds of a layout that can exclude other instances."""
    known = _profiles(model)
    kinds = frozenset(known[each.profile].media for each in layout)
    return kinds - {"none"} if ALL_MEDIA in model.at_most_one else kinds.intersection(model.at_most_one)
