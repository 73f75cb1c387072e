"""The `sharing` field of a fleet file: an administrator's settings for a GPU, or that it is managed.

`auto`, `whole`, `memory-share`, or a mapping with one of `modes`, `whole`, `mig`, `time-slicing`, `mps`; see
docs/fleet.md.
"""

import re
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Literal

from tessera.api.fields import Field, in_place
from tessera.core.gpu.gpumodels import GpuModel, profile
from tessera.core.gpu.mig import Counts, Layout, Placement, named_layouts, place, why_illegal
from tessera.core.gpu.sharing import Allocator, Mode, Sharing, managed_sharing

__all__ = ["fixed_layout", "profile_counts", "read_sharing"]

_Strategy = Literal["mixed", "single"]

_MAX_REPLICAS = 4096
_PLACEMENT = re.compile(r"(?P<profile>[^@]{1,64})@(?P<start>[0-9]{1,2})")


def read_sharing(
    field: Field, gpu_model: GpuModel, configured: Mapping[str, Counts | None] = MappingProxyType({})
) -> Sharing:
    """Return the sharing of one GPU of this model; a missing field is `auto`.

    Args:
        field: `sharing` of a fleet file or a policy.
        gpu_model: the GPU's model.
        configured: MIG configurations of this GPU, by name, which take precedence over mig-parted's; None is
            MIG off.

    Raises:
        InvalidInput: an unknown form, a profile the model does not offer, instances that do not fit together.

    """
    if not isinstance(field.value, dict):
        match field.choice("auto", "whole", "memory-share", default="auto"):
            case "auto":
                return managed_sharing(gpu_model)
            case word:
                return Sharing(modes=(Mode(word),))
    ways = [key for key in ("modes", "whole", "mig", "time-slicing", "mps") if key in field.value]
    if "mig" in ways:
        return _mig(field, gpu_model, configured)
    if len(ways) != 1:
        found = " and ".join(ways)
        raise field.refuse(found=found, hint="choose one way to share: modes, whole, mig, time-slicing or mps")
    if "modes" in ways:
        _check_no_allocator(field, "several modes leave the GPU to Tessera")
        return _modes(field.only("modes").get("modes"))
    if "whole" in ways:
        if not field.only("whole", "allocator").get("whole").boolean():
            raise field.get("whole").refuse("true", "another way to share, or auto")
        return Sharing(modes=(Mode.WHOLE,), allocator=_allocator(field))
    field.only(*ways, "renamed", "allocator")
    replicas = field.get(ways[0]).integer(least=2, most=_MAX_REPLICAS)
    return Sharing(
        modes=(Mode(ways[0]),), replicas=(("", replicas),), renamed=_renamed(field), allocator=_allocator(field)
    )


def _allocator(field: Field) -> Allocator:
    """Return the allocator of the devices of a fixed sharing."""
    allocator: Allocator = field.get("allocator").choice("kubelet", "scheduler", default="kubelet")
    return allocator


def _check_no_allocator(field: Field, reason: str) -> None:
    if "allocator" in field.mapping():
        raise field.get("allocator").refuse(
            found=f"{reason}, so that the scheduler allocates there", hint="take it out"
        )


def _renamed(field: Field) -> bool:
    return field.get("renamed").boolean(default=False)


def _modes(field: Field) -> Sharing:
    known = (Mode.WHOLE, Mode.MIG, Mode.MPS, Mode.MEMORY_SHARE)
    modes = {element.choice(*known) for element in field.elements()}
    if not modes:
        raise field.refuse("at least one mode", ", ".join(known))
    return Sharing(modes=tuple(mode for mode in known if mode in modes))


# MIG


def _mig(field: Field, gpu_model: GpuModel, configured: Mapping[str, Counts | None]) -> Sharing:
    field.only("mig", "strategy", "allow-repartition", "time-slicing", "mps", "renamed", "allocator")
    layout = _layout(field.get("mig"), gpu_model, configured)
    if layout is None:
        return Sharing(modes=(Mode.WHOLE,), allocator=_allocator(field))
    allow_repartition = field.get("allow-repartition").boolean(default=False)
    shared = [(key, mode) for key, mode in _MIG_SHARED if key in field.mapping()]
    if len(shared) > 1:
        raise field.refuse(found="both time-slicing and mps are set", hint="set one")
    if allow_repartition and shared:
        raise field.get("allow-repartition").refuse("a fixed layout where its instances have replicas")
    if allow_repartition:
        _check_no_allocator(field, "allow-repartition leaves the GPU to Tessera")
    strategy: _Strategy = field.get("strategy").choice("mixed", "single", default="mixed")
    if strategy == "single" and len({placement.profile for placement in layout}) > 1:
        raise field.get("strategy").refuse("mixed where instances have several profiles", "mixed")
    return Sharing(
        modes=managed_sharing(gpu_model).modes if allow_repartition else (Mode.MIG, *(mode for _, mode in shared)),
        layout=layout,
        allow_repartition=allow_repartition,
        replicas=_replicas(field.get(shared[0][0]), gpu_model, layout) if shared else (),
        renamed=_renamed(field),
        strategy=strategy,
        allocator=_allocator(field),
    )


_MIG_SHARED = (("time-slicing", Mode.MIG_TIME_SLICING), ("mps", Mode.MIG_MPS))


def _layout(field: Field, gpu_model: GpuModel, configured: Mapping[str, Counts | None]) -> Layout | None:
    """Return the layout: a configuration of mig-parted, counts by profile, or placements `PROFILE@START`."""
    if isinstance(field.value, list):
        return _placements(field, gpu_model)
    if isinstance(field.value, dict):
        return fixed_layout(field, gpu_model, profile_counts(field, gpu_model))
    named: dict[str, Counts | None] = {**named_layouts(gpu_model), "all-disabled": None, **configured}
    name = field.text()
    if name not in named:
        raise field.refuse(f"a MIG configuration of {gpu_model.name}", ", ".join(named))
    counts = named[name]
    return None if counts is None else fixed_layout(field, gpu_model, dict(counts))


def profile_counts(field: Field, gpu_model: GpuModel, *, least: int = 0, most: int = 64) -> dict[str, int]:
    """Return the numbers in a mapping by profile, under the profiles' own names.

    Raises:
        InvalidInput: a profile the model does not offer, one profile under two names, a number out of bounds.

    """
    counts: dict[str, int] = {}
    for name, count in field.members():
        known = in_place(count, partial(profile, gpu_model, name)).name
        if known in counts:
            raise count.refuse(found=f"{known} is there twice", hint="name each profile once")
        counts[known] = count.integer(least=least, most=most)
    return counts


def fixed_layout(field: Field, gpu_model: GpuModel, counts: dict[str, int]) -> Layout:
    """Return a placement of these instances on one GPU; deterministic.

    Raises:
        InvalidInput: they do not fit one GPU together.

    """
    layout = place(gpu_model, counts)
    if layout is None:
        found = ", ".join(f"{count} x {name}" for name, count in counts.items())
        raise field.refuse(
            found=f"{found} do not fit one {gpu_model.name} together",
            hint=f"choose from `tessera profiles {gpu_model.name}`",
        )
    return layout


def _placements(field: Field, gpu_model: GpuModel) -> Layout:
    layout = tuple(sorted(_placement(element, gpu_model) for element in field.elements()))
    reason = why_illegal(gpu_model, layout)
    if reason is not None:
        raise field.refuse(found=reason, hint=f"choose a layout of {gpu_model.name} from `tessera profiles`")
    return layout


def _placement(field: Field, gpu_model: GpuModel) -> Placement:
    match = _PLACEMENT.fullmatch(field.text())
    if match is None:
        raise field.refuse("a placement PROFILE@START", "3g.40gb@4")
    found = in_place(field, partial(profile, gpu_model, match["profile"]))
    return Placement(int(match["start"]), found.size, found.name)


def _replicas(field: Field, gpu_model: GpuModel, layout: Layout) -> tuple[tuple[str, int], ...]:
    """Return the clients of each instance by profile: one number for all of them, or a number for each profile."""
    profiles = tuple(dict.fromkeys(placement.profile for placement in layout))
    if not isinstance(field.value, dict):
        replicas = field.integer(least=2, most=_MAX_REPLICAS)
        return tuple((name, replicas) for name in profiles)
    by_profile = profile_counts(field, gpu_model, least=1, most=_MAX_REPLICAS)
    for name in by_profile:
        if name not in profiles:
            raise field.refuse(found=f"the layout has no instance {name}", hint=f"name one of {', '.join(profiles)}")
    return tuple(sorted(by_profile.items()))
