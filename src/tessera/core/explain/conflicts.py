"""What is held of a GPU and cannot be: more than it has, instances that overlap, one device given twice; in sentences.

Nothing here should ever be found. What is found comes from other schedulers, from hands, or from a defect. All of it is
told, for people; `core.packing.ledger.clashes` looks for the first thing that closes a GPU for new pods, and what it
finds is among what is told here.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from tessera.core.cluster.occupancy import Holding
from tessera.core.cluster.snapshot import Gpu, Share
from tessera.core.gpu.mig import Placement, placements, why_illegal
from tessera.core.gpu.sharing import Mode
from tessera.core.packing.fit.gputypes import GpuType
from tessera.core.packing.ledger import HolderId
from tessera.core.packing.ledger.clashes import problem

__all__ = ["conflicts"]

_FULL_PERCENT = 100
_AMOUNTS = (Mode.MPS, Mode.MEMORY_SHARE)


def conflicts(gpu: Gpu, holdings: Sequence[Holding]) -> tuple[str, ...]:
    """Return what cannot be about the shares that pods hold of one GPU, a sentence without full stop each."""
    found = (
        *_too_much(gpu, holdings),
        *_impossible(gpu, holdings),
        *_modes(gpu, holdings),
        *_twice(gpu, holdings),
    )
    return found or tuple(_unlike(gpu, holdings))


def _too_much(gpu: Gpu, holdings: Sequence[Holding]) -> Iterator[str]:
    granted = sum(each.share.memory_mib for each in holdings)
    if granted > gpu.memory_mib:
        yield f"{granted} MiB are granted of {gpu.memory_mib}"
    percent = sum(each.share.compute_percent for each in holdings)
    if percent > _FULL_PERCENT:
        yield f"{percent} % of its compute is granted"


def _impossible(gpu: Gpu, holdings: Sequence[Holding]) -> Iterator[str]:
    """Tell instances that the model does not have, then those that are not possible together."""
    known = {(each.profile, each.start): each for each in (*placements(gpu.model), *(gpu.sharing.layout or ()))}
    found: set[Placement] = set()
    for each in holdings:
        profile, start = each.share.profile, each.share.start
        if profile is None and start is None:
            continue
        place = known.get((profile or "", -1 if start is None else start))
        if place is None:
            yield f"{each.pod} holds {profile} at {start}, which a {gpu.model.name} does not have"
        else:
            found.add(place)
    illegal = why_illegal(gpu.model, tuple(sorted(found)))
    if illegal:
        yield f"held at once: {illegal}"


def _modes(gpu: Gpu, holdings: Sequence[Holding]) -> Iterator[str]:
    """Tell shares of modes that exclude each other."""
    whole = [each.pod for each in holdings if each.share.mode is Mode.WHOLE]
    if whole and len(holdings) > len(whole):
        yield f"{whole[0]} holds the whole GPU, and {len(holdings) - len(whole)} others hold parts of it"
    parts = {each.share.profile is not None for each in holdings if each.share.mode is not Mode.WHOLE}
    if len(parts) > 1:
        yield "MIG instances and shares of the whole GPU are held at once"
    amounts = sorted({each.share.mode.value for each in holdings if each.share.mode in _AMOUNTS})
    if len(amounts) > 1 and not gpu.sharing.replicas:
        yield f"shares by {' and by '.join(amounts)} are held at once"


def _twice(gpu: Gpu, holdings: Sequence[Holding]) -> Iterator[str]:
    """Tell devices held by more pods than they serve."""
    serves = {_named(device.placement): device.clients for device in gpu.devices}
    held = Counter((each.share.profile, each.share.start) for each in holdings if _exclusive(each, gpu))
    for name, count in held.items():
        most = serves.get(name, 1)
        if count > most:
            device = f"{name[0]} at {name[1]}" if name[0] else "the GPU"
            yield f"{count} pods hold {device}, which serves {most}"


def _unlike(gpu: Gpu, holdings: Sequence[Holding]) -> Iterator[str]:
    """Tell what could be together, and not on this GPU: it is shared otherwise than when the pods came."""
    held: dict[HolderId, tuple[Share, ...]] = {}
    for each in holdings:
        held[each.pod] = (*held.get(each.pod, ()), each.share)
    found = problem(GpuType.of(gpu), held)
    if found is not None:
        yield f"{found.text}, held by {', '.join(map(str, found.holders))}: nothing new is given of this GPU"


def _named(place: Placement | None) -> tuple[str | None, int | None]:
    return (place.profile, place.start) if place else (None, None)


def _exclusive(each: Holding, gpu: Gpu) -> bool:
    """Return whether a share is a device, or a client's part of one, and no amount."""
    return each.share.mode not in _AMOUNTS or bool(gpu.sharing.replicas)
