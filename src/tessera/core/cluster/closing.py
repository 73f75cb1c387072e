"""Unhealthy GPUs and MIG instances: pods keep them, and no new pods get them."""

from collections.abc import Iterable, Sequence

import msgspec

from tessera.core.cluster.gpunodestate import UnhealthyDevice
from tessera.core.cluster.snapshot import Gpu, Share
from tessera.core.gpu.mig import Placement, placement_at
from tessera.core.gpu.sharing import AMOUNT_MODES, Mode, Offer, Sharing

__all__ = ["without_new"]


def without_new(gpu: Gpu, unhealthy: Iterable[UnhealthyDevice], held: Sequence[Share]) -> Gpu:
    """Return a GPU as a planner may use it: its unhealthy parts serve their present holders only.

    Args:
        gpu: the GPU.
        unhealthy: devices; only those of this GPU count.
        held: shares of this GPU in use by pods.

    """
    own = [each.placement for each in unhealthy if each.gpu == gpu.uuid]
    places = [place for place in own if place is not None and place in (gpu.sharing.layout or ())]
    if None in own:
        return msgspec.structs.replace(_closed(gpu, held), healthy=gpu)
    return msgspec.structs.replace(_without(gpu, places, held), healthy=gpu) if places else gpu


def _closed(gpu: Gpu, held: Sequence[Share]) -> Gpu:
    modes = tuple(dict.fromkeys(share.mode for share in held))
    holders: dict[Placement, list[Share]] = {}
    for share in held:
        if share.start is not None and any(each.name == share.profile for each in gpu.model.profiles):
            holders.setdefault(placement_at(gpu.model, share.profile or "", share.start), []).append(share)
    sharing = Sharing(modes=modes)
    if holders:
        layout = tuple(sorted(holders))
        offers = tuple(Offer(placement=each, mode=holders[each][0].mode, clients=len(holders[each])) for each in layout)
        sharing = Sharing(modes=modes, layout=layout, allow_repartition=False, offers=offers)
    elif modes and (modes[0] not in AMOUNT_MODES or gpu.sharing.replicas):
        sharing = Sharing(modes=modes[:1], offers=(Offer(mode=modes[0], clients=len(held)),))
    elif modes:
        left = sum(share.memory_mib for share in held)
        return msgspec.structs.replace(gpu, memory_mib=left, sharing=sharing)
    return msgspec.structs.replace(gpu, sharing=sharing)


def _without(gpu: Gpu, places: Sequence[Placement], held: Sequence[Share]) -> Gpu:
    """Return the GPU with these instances offered to their holders only."""
    kept = {offer.placement: offer for offer in gpu.sharing.offers}
    for place in places:
        own = [share for share in held if (share.profile, share.start) == (place.profile, place.start)]
        if not own:
            kept[place] = Offer(placement=place, mode=Mode.MIG, clients=0)
        elif not gpu.sharing.creates_devices:
            kept[place] = Offer(placement=place, mode=own[0].mode, clients=len(own))
    return msgspec.structs.replace(gpu, sharing=msgspec.structs.replace(gpu.sharing, offers=tuple(kept.values())))
