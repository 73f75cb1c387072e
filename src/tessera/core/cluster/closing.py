"""Unhealthy GPUs and MIG instances, and GPUs whose allocations conflict: pods keep them, and no new pods get them.

Of an unhealthy GPU nothing is given to new pods. An unhealthy MIG instance is reserved: it is not given, and not
destroyed for other devices, so that its GPU serves neither as a whole nor by amounts. The planner, the scheduler's
ledger and the controller all ask here. The ledger closes a GPU whose allocations conflict by itself; for a planner,
who takes no impossible allocations, it is one that has only the allocations that are possible together.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from tessera.core.cluster.byname import named_share
from tessera.core.cluster.compatibility import faults
from tessera.core.cluster.gpunodestate import UnhealthyDevice
from tessera.core.cluster.gputypes import GpuType
from tessera.core.cluster.snapshot import Gpu, Share
from tessera.core.gpu.mig import Placement, placement_at
from tessera.core.gpu.sharing import AMOUNT_MODES, Offer, Sharing
from tessera.core.workload.need import PodKey

__all__ = ["closed", "closed_gpus", "possible_together", "reserved_shares", "unhealthy_gpus", "without_new"]


def closed_gpus(unhealthy: Iterable[UnhealthyDevice]) -> frozenset[str]:
    """Return the UUIDs of the GPUs of which no new pod gets anything."""
    return frozenset(each.gpu for each in unhealthy if each.placement is None)


def unhealthy_gpus(gpus: Iterable[Gpu], unhealthy: Iterable[UnhealthyDevice]) -> tuple[int, ...]:
    """Return which of a node's GPUs new pods are allocated nothing of because they are unhealthy, by index."""
    shut = closed_gpus(unhealthy)
    return tuple(gpu.index for gpu in gpus if gpu.uuid in shut)


def reserved_shares(gpu: Gpu, unhealthy: Iterable[UnhealthyDevice]) -> Iterator[Share]:
    """Yield what unhealthy devices reserve of a GPU: all of it, or every client of an instance.

    One that a pod uses, or that conflicts with shares in use, reserves nothing more.
    """
    own = [each.placement for each in unhealthy if each.gpu == gpu.uuid]
    if None in own:
        yield named_share(gpu, None)
        return
    for place in own:
        offered = next((each for each in gpu.devices if each.placement == place), None)
        if offered is None or gpu.sharing.creates_devices:
            yield named_share(gpu, place)
        else:
            yield from [Share.of_device(gpu.index, offered, offered.resource)] * offered.clients


def without_new(gpu: Gpu, unhealthy: Sequence[UnhealthyDevice], held: Sequence[Share]) -> Gpu:
    """Return a GPU as a planner may use it: its unhealthy parts serve their present holders only.

    Args:
        gpu: the GPU.
        unhealthy: devices; only those of this GPU count.
        held: shares of this GPU in use by pods.

    """
    if gpu.uuid in closed_gpus(unhealthy):
        return closed(gpu, held)
    reserved = tuple(reserved_shares(gpu, unhealthy))
    return msgspec.structs.replace(gpu, reserved=reserved) if reserved else gpu


def closed(gpu: Gpu, held: Sequence[Share]) -> Gpu:
    """Return a GPU as a planner may use it if it serves only its present holders."""
    return msgspec.structs.replace(_closed(gpu, held), healthy=gpu)


def possible_together(gpu: Gpu, held: Mapping[PodKey, Sequence[Share]]) -> dict[PodKey, tuple[Share, ...]]:
    """Return of a GPU's holders, by name, each that is possible beside those before it if the GPU is closed."""
    kept: dict[PodKey, tuple[Share, ...]] = {}
    for pod in sorted(held):
        trial = kept | {pod: tuple(held[pod])}
        if _possible(gpu, trial):
            kept = trial
    return kept


def _possible(gpu: Gpu, held: Mapping[PodKey, Sequence[Share]]) -> bool:
    shares = [share for own in held.values() for share in own]
    starts = {profile.name: profile.starts for profile in gpu.model.profiles}
    known = all(share.profile is None or share.start in starts.get(share.profile, ()) for share in shares)
    amounts_mib = sum(share.memory_mib for share in shares if share.profile is None)
    return known and amounts_mib <= gpu.memory_mib and not any(faults(GpuType.of(_closed(gpu, shares)), held))


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
