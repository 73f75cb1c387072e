"""Whether recorded shares can be held on one GPU at once. Records are hostile: nothing here raises."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from tessera.core.cluster.snapshot import Share
from tessera.core.gpu.mig import placement_at
from tessera.core.gpu.sharing import Mode
from tessera.core.packing.fit.fleet import describe
from tessera.core.packing.fit.gputypes import GpuType
from tessera.core.packing.fit.rooms import occupied, starts
from tessera.core.packing.ledger.records import HolderId

__all__ = ["Problem", "problem"]

_FULL: Final = 100
_AMOUNTS: Final = (Mode.MPS, Mode.MEMORY_SHARE)
Held = Mapping[HolderId, tuple[Share, ...]]


class Problem(NamedTuple):
    """Why shares cannot be held at once."""

    holders: tuple[HolderId, ...]
    """Whose shares they are."""
    text: str


def problem(gpu_type: GpuType, held: Held) -> Problem | None:
    """Return why all of `held` cannot be on a GPU of this type at once; None if it can.

    Which modes new shares may take is not looked at: what a pod holds was granted under rules that may have changed.
    The answer does not depend on the order. Cost: about a microsecond a share.
    """
    for holder in sorted(held, key=str):
        for share in held[holder]:
            text = _alone(gpu_type, share)
            if text:
                return Problem((holder,), text)
    every = [share for shares in held.values() for share in shares]
    text = _together(gpu_type, every)
    return Problem(tuple(held), text) if text else None


def _alone(gpu_type: GpuType, share: Share) -> str:
    """Return why a share could not be held even if nobody else held anything; empty if it could."""
    if share.memory_mib < 0 or not 0 <= share.compute_percent <= _FULL:
        return f"{describe(share)} is no amount of a GPU"
    if _device(gpu_type, share) is not None:
        return ""
    if gpu_type.kept:
        return f"{describe(share)} is none of the devices the GPU is shared as"
    if share.mode is Mode.WHOLE:
        return "" if share.profile is None else f"{share.profile} is not the whole GPU"
    return _made(gpu_type, share)


def _made(gpu_type: GpuType, share: Share) -> str:
    """Return why a share that is no existing device could not be made."""
    if share.mode in _AMOUNTS and share.profile is None:
        more = share.memory_mib > gpu_type.memory_mib
        return f"{share.memory_mib} MiB is more than the GPU's {gpu_type.memory_mib} MiB" if more else ""
    if share.mode is not Mode.MIG:
        return f"the GPU has no such device: {describe(share)}"
    profile = next((each for each in gpu_type.model.profiles if each.name == share.profile), None)
    if profile is None:
        return f"{gpu_type.model.name} has no profile {share.profile}"
    return "" if share.start in profile.starts else f"{share.profile} does not start at {share.start}"


def _together(gpu_type: GpuType, shares: Sequence[Share]) -> str:
    """Return why shares that could be held each alone cannot be held at once; empty if they can."""
    if len(shares) < 2:  # noqa: PLR2004 (nothing to clash with)
        return ""
    if any(share.mode is Mode.WHOLE for share in shares):
        return f"the whole GPU is held beside {len(shares) - 1} more"
    amounts = [share for share in shares if share.mode in _AMOUNTS and _device(gpu_type, share) is None]
    modes = sorted({share.mode.value for share in amounts} | ({"mig"} if len(amounts) < len(shares) else set()))
    if amounts and len(modes) > 1:
        return f"shares of different modes on one GPU: {', '.join(modes)}"
    return _too_much(gpu_type, amounts) if amounts else _overlapping(gpu_type, shares)


def _too_much(gpu_type: GpuType, amounts: Sequence[Share]) -> str:
    memory_mib = sum(share.memory_mib for share in amounts)
    if memory_mib > gpu_type.memory_mib:
        return f"{memory_mib} MiB are held of {gpu_type.memory_mib} MiB"
    compute = sum(share.compute_percent for share in amounts)
    return f"{compute} % of the compute are held" if compute > _FULL else ""


def _overlapping(gpu_type: GpuType, shares: Sequence[Share]) -> str:
    """Return what is wrong about devices and instances: too many clients of one, or two in one place."""
    used = 0
    for (mode, profile, start), clients in sorted(
        Counter(
            (share.mode, share.profile or "", -1 if share.start is None else share.start) for share in shares
        ).items()
    ):
        most, bits = _spot(gpu_type, mode, profile, start)
        if clients > most:
            return f"{clients} pods hold {profile or 'the GPU'} ({mode}) for {most} at most"
        if profile:
            known = next(each for each in gpu_type.model.profiles if each.name == profile)
            if start not in starts(gpu_type.model, known, used):
                return f"{profile} at {start} overlaps what others hold"
            used |= bits
    return ""


def _spot(gpu_type: GpuType, mode: Mode, profile: str, start: int) -> tuple[int, int]:
    """Return how many clients a device or an instance has, and what it takes of the MIG state."""
    for device, bits in zip(gpu_type.devices, gpu_type.bits, strict=True):
        place = device.placement
        if device.mode is mode and ((place.profile, place.start) if place else ("", -1)) == (profile, start):
            return device.clients, bits
    return 1, occupied(gpu_type.model, placement_at(gpu_type.model, profile, start))


def _device(gpu_type: GpuType, share: Share) -> int | None:
    """Return which existing device a share is a part of; None where it is cut or an amount."""
    for i, device in enumerate(gpu_type.devices):
        place = device.placement
        at = (place.profile, place.start) if place else (None, None)
        if device.mode is share.mode and at == (share.profile, share.start):
            return i
    return None
