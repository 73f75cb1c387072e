"""What can coexist on one GPU, and which rule is broken where it cannot. Records may be hostile: nothing raises."""

import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from tessera.core.cluster.gputypes import GpuType
from tessera.core.cluster.snapshot import Gpu, Share
from tessera.core.gpu.instancecounts import occupied, starts
from tessera.core.gpu.mig import Placement, placement_at, why_illegal
from tessera.core.gpu.sharing import AMOUNT_MODES, Device, Mode

__all__ = ["Fault", "Rule", "describe", "faults", "free_clients", "with_reserved"]

_FULL: Final = 100

LedgerEntry = TypeVar("LedgerEntry")


class Rule(enum.Enum):
    """A rule of what can coexist on one GPU, and the sentence, without full stop, for a violation."""

    AMOUNT = "{share} is not a valid share of a GPU"
    FIXED = "{share} is not one of the devices that the GPU is shared as"
    WHOLE = "{share} is not the whole GPU"
    DEVICE = "the GPU has no such device: {share}"
    SIZE = "{memory} MiB is more than the GPU's {most} MiB"
    PROFILE = "{model} has no profile {profile}"
    START = "{profile} does not start at {start}"
    ALONE = "the whole GPU is allocated, and {more} more of its devices"
    MODES = "shares of different modes on one GPU: {modes}"
    MEMORY = "{memory} MiB of {most} MiB are allocated"
    COMPUTE = "{percent} % of the compute is allocated"
    CLIENTS = "{pods} pods use {device} ({mode}), which allows {most}"
    OVERLAP = "conflicting MIG instances: {why}"


class Fault(NamedTuple, Generic[LedgerEntry]):
    """A broken rule, and the holders of the shares that break it."""

    rule: Rule
    holders: tuple[LedgerEntry, ...]
    facts: Mapping[str, object]

    @property
    def text(self) -> str:
        """The violation, without full stop."""
        return self.rule.value.format(**self.facts)

    @property
    def sentence(self) -> str:
        """The violation and its holders, without full stop."""
        return f"{self.text}; pods: {', '.join(map(str, self.holders))}"


_Found = tuple[Rule, dict[str, object]]

_IMPLIED_BY: Final = {Rule.MEMORY: (Rule.MEMORY, Rule.SIZE), Rule.COMPUTE: (Rule.COMPUTE,)}
"""The rules that, broken, say already that recorded devices exceed the GPU."""


def faults(
    gpu_type: GpuType, in_use: Mapping[LedgerEntry, Sequence[Share]], *, recorded: bool = False
) -> Iterator[Fault[LedgerEntry]]:
    """Yield why `in_use` cannot coexist on a GPU of this type, by holder; nothing if it can.

    Shares that are impossible even alone come first, then conflicts between the others. The modes allowed for new
    shares do not matter: a pod's allocation was made under rules that may have changed. The answer does
    not depend on the order. Cost: about a microsecond a share.

    Args:
        gpu_type: the type of the GPU.
        in_use: the shares of each holder.
        recorded: whether all recorded devices together must not exceed the GPU, however it is shared. MIG instances
            are judged by their placement: two 3g.40gb have more than the usable memory of an H100 without MIG.

    """
    sound: dict[LedgerEntry, list[Share]] = {}
    broken = set[Rule]()
    for holder in sorted(in_use, key=str):
        for share in in_use[holder]:
            found = _alone(gpu_type, share)
            if found is None:
                sound.setdefault(holder, []).append(share)
            else:
                broken.add(found[0])
                yield Fault(found[0], (holder,), found[1])
    for rule, facts in _together(gpu_type, [share for shares in sound.values() for share in shares]):
        broken.add(rule)
        yield Fault(rule, tuple(sound), facts)
    if recorded:
        for rule, facts in _beyond_gpu(gpu_type, [share for shares in in_use.values() for share in shares]):
            if broken.isdisjoint(_IMPLIED_BY[rule]):
                yield Fault(rule, tuple(sorted(in_use, key=str)), facts)


def with_reserved(gpu: Gpu, in_use: Sequence[Share]) -> list[Share]:
    """Return shares in use of a GPU, and what is reserved of it beside them, as far as that fits."""
    found, gpu_type = list(in_use), GpuType.of(gpu)
    for share in gpu.reserved:
        if not any(faults(gpu_type, {"": [*found, share]})):
            found.append(share)
    return found


def free_clients(gpu_type: GpuType, device: Device, clients: int, memory_mib: int, percent: int) -> int:
    """Return how many more clients an existing device takes beside some that have this much of it together.

    A share from before the number of clients was changed may be larger than a client's part is now.
    """
    free = device.clients - clients
    if device.clients > 1:
        most_mib, most_percent = gpu_type.total_of(device)
        free = min(free, (most_mib - memory_mib) // max(device.memory_mib, 1))
        free = min(free, (most_percent - percent) // max(device.compute_percent, 1))
    return free


def describe(share: Share) -> str:
    """Return a share of its GPU, in words."""
    if share.profile is not None:
        return f"{share.profile} at {share.start} ({share.mode})"
    return f"{share.memory_mib} MiB, {share.compute_percent} % compute ({share.mode})"


def _alone(gpu_type: GpuType, share: Share) -> _Found | None:
    """Return why a share is impossible even on an empty GPU; None if it is possible."""
    if share.memory_mib < 0 or not 0 <= share.compute_percent <= _FULL:
        return Rule.AMOUNT, {"share": describe(share)}
    device = gpu_type.device_of(share)
    if device is not None:
        return next(_beyond(gpu_type, gpu_type.devices[device], (share,)), None)
    if gpu_type.fixed:
        return Rule.FIXED, {"share": describe(share)}
    if share.mode is Mode.WHOLE:
        return None if share.profile is None else (Rule.WHOLE, {"share": share.profile})
    return _creation_fault(gpu_type, share)


def _creation_fault(gpu_type: GpuType, share: Share) -> _Found | None:
    """Return why a share that is not an existing device could not be created; None if it could."""
    if share.mode in AMOUNT_MODES and share.profile is None:
        facts: dict[str, object] = {"memory": share.memory_mib, "most": gpu_type.memory_mib}
        return (Rule.SIZE, facts) if share.memory_mib > gpu_type.memory_mib else None
    if share.mode is not Mode.MIG:
        return Rule.DEVICE, {"share": describe(share)}
    profile = next((each for each in gpu_type.model.profiles if each.name == share.profile), None)
    if profile is None:
        return Rule.PROFILE, {"model": gpu_type.model.name, "profile": share.profile}
    return None if share.start in profile.starts else (Rule.START, {"profile": share.profile, "start": share.start})


def _together(gpu_type: GpuType, shares: Sequence[Share]) -> Iterator[_Found]:
    """Yield why shares that are possible alone cannot coexist."""
    if len(shares) < 2:  # noqa: PLR2004 (nothing to clash with)
        return
    if any(share.mode is Mode.WHOLE for share in shares):
        yield Rule.ALONE, {"more": len(shares) - 1}
        return
    amounts: list[Share] = []
    instances: list[Share] = []
    for share in shares:
        (amounts if share.mode in AMOUNT_MODES and gpu_type.device_of(share) is None else instances).append(share)
    modes = sorted({share.mode.value for share in amounts} | ({"mig"} if instances else set()))
    if amounts and len(modes) > 1:
        yield Rule.MODES, {"modes": ", ".join(modes)}
    memory_mib = sum(share.memory_mib for share in amounts)
    if memory_mib > gpu_type.memory_mib:
        yield Rule.MEMORY, {"memory": memory_mib, "most": gpu_type.memory_mib}
    compute = sum(share.compute_percent for share in amounts)
    if compute > _FULL:
        yield Rule.COMPUTE, {"percent": compute}
    yield from _overlapping(gpu_type, instances)


def _overlapping(gpu_type: GpuType, shares: Sequence[Share]) -> Iterator[_Found]:
    """Yield conflicts of devices and instances: too many clients of one, or two in one place."""
    used, overlap = 0, False
    places: list[Placement] = []
    spots: dict[tuple[Mode, str, int], list[Share]] = {}
    for share in shares:
        spots.setdefault((share.mode, share.profile or "", -1 if share.start is None else share.start), []).append(
            share
        )
    for (mode, profile, start), own in sorted(spots.items()):
        device = gpu_type.device_of(own[0])
        most = 1 if device is None else gpu_type.devices[device].clients
        if len(own) > most:
            yield Rule.CLIENTS, {"pods": len(own), "device": profile or "the GPU", "mode": mode, "most": most}
        elif device is not None:
            yield from _beyond(gpu_type, gpu_type.devices[device], own)
        if profile:
            bits = occupied(gpu_type.model, placement_at(gpu_type.model, profile, start))
            known = next(each for each in gpu_type.model.profiles if each.name == profile)
            overlap = overlap or start not in starts(gpu_type.model, known, used)
            used |= bits
            places.append(placement_at(gpu_type.model, profile, start))
    if overlap:
        yield Rule.OVERLAP, {"why": why_illegal(gpu_type.model, tuple(sorted(places)))}


def _beyond(gpu_type: GpuType, device: Device, shares: Sequence[Share]) -> Iterator[_Found]:
    """Yield what clients of one device have together beyond it; an exclusive device is judged by its place."""
    if device.clients > 1:
        most_mib, most_percent = gpu_type.total_of(device)
        memory_mib = sum(share.memory_mib for share in shares)
        if memory_mib > most_mib:
            yield Rule.MEMORY, {"memory": memory_mib, "most": most_mib}
        percent = sum(share.compute_percent for share in shares)
        if percent > most_percent:
            yield Rule.COMPUTE, {"percent": percent}


def _beyond_gpu(gpu_type: GpuType, shares: Sequence[Share]) -> Iterator[_Found]:
    """Yield what recorded shares have together beyond their GPU, whatever devices it is shared as."""
    memory_mib = sum(share.memory_mib for share in shares if share.profile is None)
    if memory_mib > gpu_type.memory_mib:
        yield Rule.MEMORY, {"memory": memory_mib, "most": gpu_type.memory_mib}
    percent = sum(share.compute_percent for share in shares)
    if percent > _FULL:
        yield Rule.COMPUTE, {"percent": percent}
