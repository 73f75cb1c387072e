"""One allocator per device at a time: the kubelet for devices advertised by name, the scheduler for all others.

A device becomes the kubelet's when the agent has written it to `status.offered` of the GPUNode; only then is it
advertised. It becomes the scheduler's again when it has been withdrawn from the kubelet, the kubelet no longer lists
it, no pod uses it, and the agent has removed it from `status.offered`. In between neither allocates it.
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
    """State of a device that can be advertised by name."""

    POOLED = "pooled"
    """The scheduler's, and free."""
    CLAIMED = "claimed"
    """The scheduler's: named by a claim or an assignment, or overlapping one that is."""
    OFFERED = "offered"
    """The kubelet's: it may allocate it to any pod that requests it by name."""
    ALLOCATED = "allocated"
    """The kubelet's: a pod has it by name, or is being allocated it."""
    WITHDRAWING = "withdrawing"
    """To become the scheduler's, but still listed by the kubelet."""
    RELEASING = "releasing"
    """No longer listed by the kubelet and free; to be removed from `status.offered`."""


class Handshake(msgspec.Struct, frozen=True, kw_only=True):
    """The observed devices."""

    desired: frozenset[DeviceId] = frozenset()
    """To be advertised by name now."""
    offered: frozenset[DeviceId] = frozenset()
    """`status.offered` as stored."""
    allocated: frozenset[DeviceId] = frozenset()
    """Devices by name that pods use or are being allocated."""
    reserved: frozenset[DeviceId] = frozenset()
    """Devices that overlap claims or assignments."""
    allocatable: frozenset[DeviceId] = frozenset()
    """The kubelet's list."""


def state_of(device: DeviceId, observed: Handshake) -> DeviceState:
    """Return the state of a device."""
    if device in observed.allocated:
        return DeviceState.ALLOCATED
    if device not in observed.offered:
        return DeviceState.CLAIMED if device in observed.reserved else DeviceState.POOLED
    if device in observed.desired:
        return DeviceState.OFFERED
    return DeviceState.WITHDRAWING if device in observed.allocatable else DeviceState.RELEASING


class OfferPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The next step for devices of the kubelet."""

    add: frozenset[DeviceId] = frozenset()
    """To be written to `status.offered`, with the version that was read, before they are advertised."""
    advertise: frozenset[DeviceId] = frozenset()
    """To be advertised now."""
    withdrawing: frozenset[DeviceId] = frozenset()
    """Still the kubelet's, but to become the scheduler's."""


def still_needed(
    leaving: Mapping[DeviceId, str], free: Mapping[str, int], awaited: Mapping[str, int]
) -> frozenset[DeviceId]:
    """Return devices that must not be withdrawn yet, because a pod bound to the node is to get one of them.

    Args:
        leaving: devices that are to be withdrawn, with their resource.
        free: number of healthy unallocated devices of each resource that would remain.
        awaited: number requested by pods on the node that do not have theirs yet.

    """
    lacking = {name: count - free.get(name, 0) for name, count in awaited.items()}
    kept = set()
    for key, resource in leaving.items():
        if lacking.get(resource, 0) > 0:
            lacking[resource] -= 1
            kept.add(key)
    return frozenset(kept)


def claimed_keys(claims: Iterable[Claim], gpus: Iterable[Gpu]) -> frozenset[DeviceId]:
    """Return the devices of a GPUNode's claims: MIG instances, existing or not, and GPUs named without one.

    A claim to an instance that its GPU does not support counts as one to the whole GPU: nothing of it is allocated.
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
    allocated: frozenset[DeviceId],
    reserved: frozenset[DeviceId],
) -> OfferPlan:
    """Return what to advertise, and what to write to `status.offered`, without ever allocating a device twice.

    The kubelet does not know that devices overlap: one that overlaps another that it still has waits for that too.

    Args:
        desired: to be advertised by name now.
        committed: `status.offered` as stored.
        allocated: devices by name that pods use or are being allocated.
        reserved: devices that overlap claims or assignments.

    """
    leaving = committed - desired
    blocked = frozenset(each for each in desired if any(overlap(each, other) for other in leaving))
    return OfferPlan(
        add=desired - committed - reserved - blocked,
        advertise=desired & committed - ((reserved | blocked) - allocated),
        withdrawing=leaving - allocated,
    )


def released_devices(
    desired: frozenset[DeviceId],
    committed: frozenset[DeviceId],
    allocated: frozenset[DeviceId],
    allocatable: frozenset[DeviceId],
) -> frozenset[DeviceId]:
    """Return what to remove from `status.offered`: withdrawn devices that the kubelet has dropped.

    Args:
        desired: to be advertised by name now.
        committed: `status.offered` as stored.
        allocated: devices by name that pods use or are being allocated.
        allocatable: the devices that the kubelet lists as allocatable.

    """
    observed = Handshake(desired=desired, offered=committed, allocated=allocated, allocatable=allocatable)
    return frozenset(each for each in committed if state_of(each, observed) is DeviceState.RELEASING)


def devices_by_gpu(devices: Iterable[DeviceId]) -> tuple[DesiredDevices, ...]:
    """Return devices by GPU, as in `status.offered`; sorted, so that equal sets give equal fields."""
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
