"""One allocator for a device at a time: the kubelet for what is offered by name, the scheduler for all else.

A device becomes the kubelet's when the agent has written it to `status.offered` of the GPUNode; only then is it
advertised. It becomes the scheduler's again when it has been withdrawn from the kubelet, the kubelet lists it no more,
nobody holds it, and the agent has taken it out of `status.offered`. In between nobody gets it.
"""

import enum
from collections.abc import Iterable, Mapping

import msgspec

from tessera.core.cluster.gpunodestate import Claim, DesiredDevices
from tessera.core.cluster.snapshot import Gpu
from tessera.core.gpu.deviceids import DeviceId, overlap
from tessera.core.gpu.mig import placement_at

__all__ = [
    "DeviceState",
    "Handshake",
    "OfferPlan",
    "claimed_keys",
    "devices_by_gpu",
    "devices_one_by_one",
    "plan_offer",
    "released_devices",
    "state_of",
    "still_needed",
]


class DeviceState(enum.StrEnum):
    """How far a device has come that can be offered by name."""

    POOLED = "pooled"
    """The scheduler's, and nobody has it."""
    CLAIMED = "claimed"
    """The scheduler's: a claim or an assignment names it, or what overlaps it."""
    OFFERED = "offered"
    """The kubelet's: it may allocate it to any pod that asks for it by name."""
    HELD = "held"
    """The kubelet's: a pod has it by name, or is being allocated it."""
    WITHDRAWING = "withdrawing"
    """It is to be the scheduler's, and the kubelet still lists it."""
    RELEASING = "releasing"
    """The kubelet lists it no more and nobody has it; it is to be taken out of `status.offered`."""


class Handshake(msgspec.Struct, frozen=True, kw_only=True):
    """What is seen of the devices that change hands."""

    desired: frozenset[DeviceId] = frozenset()
    """What should be offered by name now."""
    offered: frozenset[DeviceId] = frozenset()
    """`status.offered` as it is stored."""
    held: frozenset[DeviceId] = frozenset()
    """Devices by name that pods hold or are being allocated."""
    taken: frozenset[DeviceId] = frozenset()
    """What has something in common with a device that a claim or an assignment names."""
    allocatable: frozenset[DeviceId] = frozenset()
    """What the kubelet lists."""


def state_of(device: DeviceId, seen: Handshake) -> DeviceState:
    """Return how far a device has come."""
    if device in seen.held:
        return DeviceState.HELD
    if device not in seen.offered:
        return DeviceState.CLAIMED if device in seen.taken else DeviceState.POOLED
    if device in seen.desired:
        return DeviceState.OFFERED
    return DeviceState.WITHDRAWING if device in seen.allocatable else DeviceState.RELEASING


class OfferPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to do with devices that change hands, or do not."""

    add: frozenset[DeviceId] = frozenset()
    """To be written to `status.offered`, with the version that was read, before they are advertised."""
    advertise: frozenset[DeviceId] = frozenset()
    """What the kubelet is offered now."""
    withdrawing: frozenset[DeviceId] = frozenset()
    """What is the kubelet's still and shall not be."""


def still_needed(
    leaving: Mapping[DeviceId, str], free: Mapping[str, int], awaited: Mapping[str, int]
) -> frozenset[DeviceId]:
    """Return devices that must not be withdrawn yet, because a pod is on its way to the node for one of them.

    Args:
        leaving: devices that are to be withdrawn, with their resource.
        free: how many devices of a resource would be offered without them that no pod has.
        awaited: how many the pods ask that are bound to the node and do not have theirs yet.

    """
    lacking = {name: count - free.get(name, 0) for name, count in awaited.items()}
    kept = set()
    for key, resource in leaving.items():
        if lacking.get(resource, 0) > 0:
            lacking[resource] -= 1
            kept.add(key)
    return frozenset(kept)


def claimed_keys(claims: Iterable[Claim], gpus: Iterable[Gpu]) -> frozenset[DeviceId]:
    """Return what the claims of a GPUNode name: MIG instances, made already or not, and GPUs named without one.

    A claim to an instance that its GPU cannot have is one to the whole GPU: nothing of it is given away meanwhile.
    """
    known = {gpu.index: gpu for gpu in gpus}
    shares = (share for claim in claims for share in claim.shares if share.gpu in known)
    return frozenset(_claimed(known[share.gpu], share.profile, share.start) for share in shares)


def _claimed(gpu: Gpu, profile: str | None, start: int | None) -> DeviceId:
    if profile is None or start is None:
        return DeviceId(gpu.uuid)
    there = (each for each in gpu.sharing.layout or () if (each.profile, each.start) == (profile, start))
    place = next(there, placement_at(gpu.model, profile, start))
    return DeviceId(gpu.uuid, place if place.size else None)


def plan_offer(
    desired: frozenset[DeviceId],
    committed: frozenset[DeviceId],
    held: frozenset[DeviceId],
    taken: frozenset[DeviceId],
) -> OfferPlan:
    """Return what to advertise, and what to write to `status.offered`, where nothing may ever be given twice.

    The kubelet does not know that devices overlap: one that lies across another that it still has waits for that too.

    Args:
        desired: what should be offered by name now.
        committed: `status.offered` as it is stored.
        held: devices by name that pods hold or are being given.
        taken: what has something in common with a device that a claim or an assignment names.

    """
    leaving = committed - desired
    blocked = frozenset(each for each in desired if any(overlap(each, other) for other in leaving))
    return OfferPlan(
        add=desired - committed - taken - blocked,
        advertise=desired & committed - ((taken | blocked) - held),
        withdrawing=leaving - held,
    )


def released_devices(
    desired: frozenset[DeviceId],
    committed: frozenset[DeviceId],
    held: frozenset[DeviceId],
    allocatable: frozenset[DeviceId],
) -> frozenset[DeviceId]:
    """Return what to take out of `status.offered`: what is withdrawn, and the kubelet has let go of.

    Args:
        desired: what should be offered by name now.
        committed: `status.offered` as it is stored.
        held: devices by name that pods hold or are being given.
        allocatable: what the kubelet lists as allocatable.

    """
    seen = Handshake(desired=desired, offered=committed, held=held, allocatable=allocatable)
    return frozenset(each for each in committed if state_of(each, seen) is DeviceState.RELEASING)


def devices_by_gpu(devices: Iterable[DeviceId]) -> tuple[DesiredDevices, ...]:
    """Return devices by GPU, as `status.offered` has them; sorted, so that the same devices are the same fields."""
    parts = frozenset(devices)
    return tuple(
        DesiredDevices(
            gpu=gpu,
            whole=DeviceId(gpu) in parts,
            instances=tuple(sorted(place for uuid, place in parts if uuid == gpu and place is not None)),
        )
        for gpu in sorted({uuid for uuid, _ in parts})
    )


def devices_one_by_one(desired: Iterable[DesiredDevices]) -> frozenset[DeviceId]:
    """Return devices one by one."""
    return frozenset(device for each in desired for device in each.devices)
