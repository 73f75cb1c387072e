"""Unhealthy GPUs and MIG instances, and GPUs whose allocations conflict: pods keep them, and no new pods get them.

New pods are allocated nothing on an unhealthy GPU. An unhealthy MIG instance is reserved: it is not allocated, and not
destroyed for other devices, so that its GPU serves neither as a whole nor by amounts. The planner, the scheduler's
ledger and the controller all ask here. The ledger closes a GPU whose allocations conflict by itself; a planner
is given only allocations that are possible together.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from tessera.core.cluster.compatibility import faults
from tessera.core.cluster.gpunodestate import UnhealthyDevice
from tessera.core.cluster.gputypes import GpuType
from tessera.core.cluster.namedshares import named_share
from tessera.core.cluster.snapshot import Gpu, Share
from tessera.core.gpu.mig import Placement, placement_at, placements
from tessera.core.gpu.sharing import AMOUNT_MODES, Offer, Sharing
from tessera.core.workload.need import PodKey

__all__ = ["closed", "closed_gpus", "possible_together", "reserved_shares", "unhealthy_gpus", "without_new"]


def closed_gpus(unhealthy: Iterable[UnhealthyDevice]) -> frozenset[str]:
    """Return the UUIDs of the GPUs of which no new pod gets anything."""
    return frozenset(each.device.gpu for each in unhealthy if each.device.placement is None)


def unhealthy_gpus(gpus: Iterable[Gpu], unhealthy: Iterable[UnhealthyDevice]) -> tuple[int, ...]:
    """Return which of a node's GPUs new pods are allocated nothing of because they are unhealthy, by index."""
    closed_uuids = closed_gpus(unhealthy)
    return tuple(gpu.index for gpu in gpus if gpu.uuid in closed_uuids)


def reserved_shares(gpu: Gpu, unhealthy: Iterable[UnhealthyDevice]) -> Iterator[Share]:
    """Yield what unhealthy devices reserve of a GPU: all of it, or every client of an instance.

    One that a pod uses, or that conflicts with shares in use, reserves nothing more.
    """
    own = [each.device.placement for each in unhealthy if each.device.gpu == gpu.uuid]
    if None in own:
        yield named_share(gpu, None)
        return
    for place in own:
        offered = next((each for each in gpu.devices if each.placement == place), None)
        if offered is None or gpu.sharing.creates_devices:
            yield named_share(gpu, place)
        else:
            yield from [Share.of_device(gpu.index, offered, offered.resource)] * offered.clients


def without_new(gpu: Gpu, unhealthy: Sequence[UnhealthyDevice], in_use: Sequence[Share]) -> Gpu:
    """Return a GPU as a planner may use it: its unhealthy parts serve their present holders only.

    Args:
        gpu: the GPU.
        unhealthy: devices; only those of this GPU count.
        in_use: shares of this GPU in use by pods.

    """
    if gpu.uuid in closed_gpus(unhealthy):
        return closed(gpu, in_use)
    reserved = tuple(reserved_shares(gpu, unhealthy))
    return msgspec.structs.replace(gpu, reserved=reserved) if reserved else gpu


def closed(gpu: Gpu, in_use: Sequence[Share]) -> Gpu:
    """Return a GPU as a planner may use it if it serves only its present holders."""
    return msgspec.structs.replace(_closed(gpu, in_use), healthy=gpu)


def possible_together(gpu: Gpu, in_use: Mapping[PodKey, Sequence[Share]]) -> dict[PodKey, tuple[Share, ...]]:
    """Return of a GPU's holders, by name, each that is possible beside those before it if the GPU is closed."""
    kept: dict[PodKey, tuple[Share, ...]] = {}
    for pod in sorted(in_use):
        trial = kept | {pod: tuple(in_use[pod])}
        if _possible(gpu, trial):
            kept = trial
    return kept


def _possible(gpu: Gpu, in_use: Mapping[PodKey, Sequence[Share]]) -> bool:
    shares = [share for own in in_use.values() for share in own]
    alone = msgspec.structs.replace(gpu, sharing=_sharing_of(gpu, shares))
    return not any(faults(GpuType.of(alone), in_use, recorded=True))


def _closed(gpu: Gpu, in_use: Sequence[Share]) -> Gpu:
    sharing = _sharing_of(gpu, in_use)
    if sharing.modes and not sharing.offers:  # by amounts: it has what they use, and no more
        return msgspec.structs.replace(gpu, memory_mib=sum(share.memory_mib for share in in_use), sharing=sharing)
    return msgspec.structs.replace(gpu, sharing=sharing)


def _sharing_of(gpu: Gpu, in_use: Sequence[Share]) -> Sharing:
    """Return the sharing under which a GPU has the devices in use and no others."""
    modes = tuple(dict.fromkeys(share.mode for share in in_use))
    holders: dict[Placement, list[Share]] = {}
    for share in in_use:
        place = None if share.start is None else placement_at(gpu.model, share.profile or "", share.start)
        if place in placements(gpu.model):
            holders.setdefault(place, []).append(share)
    if holders:
        layout = tuple(sorted(holders))
        offers = tuple(Offer(placement=each, mode=holders[each][0].mode, clients=len(holders[each])) for each in layout)
        return Sharing(modes=modes, layout=layout, allow_repartition=False, offers=offers)
    if modes and (modes[0] not in AMOUNT_MODES or gpu.sharing.replicas):
        return Sharing(modes=modes[:1], offers=(Offer(mode=modes[0], clients=len(in_use)),))
    return Sharing(modes=modes)
