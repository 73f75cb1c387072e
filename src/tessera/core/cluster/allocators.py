"""One allocator for a device at a time: the kubelet for what is offered by name, the scheduler for all else.

A device becomes the kubelet's when the agent has written it to `status.offered` of the GPUNode; only then is it
advertised. It becomes the scheduler's again when it has been withdrawn from the kubelet, the kubelet lists it no more,
nobody holds it, and the agent has taken it out of `status.offered`. In between nobody gets it.
"""

from collections.abc import Iterable, Mapping

import msgspec

from tessera.core.cluster.advertise import DeviceKey, NodeOffer
from tessera.core.cluster.gpunodestate import Claim, Wanted
from tessera.core.cluster.snapshot import Gpu
from tessera.core.gpu.gpumodels import GpuModel
from tessera.core.gpu.inventory import Inventory
from tessera.core.gpu.mig import Placement, placement_at

__all__ = [
    "Handover",
    "as_keys",
    "as_wanted",
    "by_name",
    "claimed_keys",
    "existing",
    "handover",
    "on_gpus",
    "overlapping",
    "restricted",
    "still_needed",
    "with_former",
]


class Handover(msgspec.Struct, frozen=True, kw_only=True):
    """What to do with devices that change hands, or do not."""

    add: frozenset[DeviceKey] = frozenset()
    """To be written to `status.offered`, with the version that was read, before they are advertised."""
    advertise: frozenset[DeviceKey] = frozenset()
    """What the kubelet is offered now."""
    withdrawing: frozenset[DeviceKey] = frozenset()
    """What is the kubelet's still and shall not be."""
    release: frozenset[DeviceKey] = frozenset()
    """Those of them that the kubelet has let go of: to be taken out of `status.offered`."""


def by_name(offer: NodeOffer) -> frozenset[DeviceKey]:
    """Return the devices that are offered by name: not units of memory, of which an assignment says what they are."""
    named = (resource for resource in offer.resources if not resource.by_assignment)
    return frozenset(device.key for resource in named for device in resource.devices)


def restricted(offer: NodeOffer, keys: frozenset[DeviceKey]) -> NodeOffer:
    """Return the offer without the devices by name that are not in `keys`; what is left empty is no resource."""
    kept = (
        resource
        if resource.by_assignment
        else msgspec.structs.replace(resource, devices=tuple(each for each in resource.devices if each.key in keys))
        for resource in offer.resources
    )
    return msgspec.structs.replace(offer, resources=tuple(resource for resource in kept if resource.devices))


def with_former(offer: NodeOffer, former: NodeOffer, keys: frozenset[DeviceKey]) -> NodeOffer:
    """Return the offer and, of a former one, the devices by name that are in `keys` and not offered any more."""
    resources = {resource.name: resource for resource in offer.resources}
    missing = keys - by_name(offer)
    for each in former.resources:
        kept = tuple(device for device in each.devices if device.key in missing)
        if kept and not each.by_assignment:
            now = resources.get(each.name, msgspec.structs.replace(each, devices=()))
            resources[each.name] = msgspec.structs.replace(now, devices=(*now.devices, *kept))
    return msgspec.structs.replace(offer, resources=tuple(resources[name] for name in sorted(resources)))


def still_needed(
    leaving: Mapping[DeviceKey, str], free: Mapping[str, int], awaited: Mapping[str, int]
) -> frozenset[DeviceKey]:
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


def on_gpus(inventory: Inventory, ids: Iterable[str]) -> frozenset[DeviceKey]:
    """Return the devices that these ids of the kubelet's stand for; units of memory stand for none."""
    devices: dict[str, DeviceKey] = {gpu.uuid: gpu.uuid for gpu in inventory.gpus}
    devices |= {each.uuid: (gpu.uuid, each.placement) for gpu in inventory.gpus for each in gpu.instances}
    uuids = (name.partition("::")[0] for name in ids)
    return frozenset(devices[uuid] for uuid in uuids if uuid in devices)


def existing(inventory: Inventory) -> frozenset[DeviceKey]:
    """Return the GPUs on which MIG is off, and the MIG instances that there are."""
    whole = frozenset[DeviceKey](gpu.uuid for gpu in inventory.gpus if gpu.layout is None)
    return whole | {(gpu.uuid, each.placement) for gpu in inventory.gpus for each in gpu.instances}


def overlapping(model_of: Mapping[str, GpuModel], a: DeviceKey, b: DeviceKey) -> bool:
    """Return whether two devices have something in common, so that one allocator must have both.

    A whole GPU has something in common with all that is on it, MIG instances where they take a memory slice both. An
    instance whose place says no size takes what its profile does; where the model does not have the profile, all.

    Args:
        model_of: models of the GPUs by UUID; others are taken to have no profiles.
        a: a device.
        b: another, or the same.

    """
    (uuid, place), (other, beside) = _parts(a), _parts(b)
    if uuid != other:
        return False
    if place is None or beside is None or place == beside:
        return True
    first, second = _mask(model_of.get(uuid), place), _mask(model_of.get(uuid), beside)
    return first is None or second is None or bool(first & second)


def _mask(model: GpuModel | None, place: Placement) -> int | None:
    """Return the memory slices an instance takes; None where nobody can say."""
    known = place if place.size or model is None else placement_at(model, place.profile, place.start)
    return known.mask or None


def _parts(key: DeviceKey) -> tuple[str, Placement | None]:
    return key if isinstance(key, tuple) else (key, None)


def claimed_keys(claims: Iterable[Claim], gpus: Iterable[Gpu]) -> frozenset[DeviceKey]:
    """Return what the claims of a GPUNode name: MIG instances, made already or not, and GPUs named without one.

    A claim to an instance that its GPU cannot have is one to the whole GPU: nothing of it is given away meanwhile.
    """
    known = {gpu.index: gpu for gpu in gpus}
    shares = (share for claim in claims for share in claim.shares if share.gpu in known)
    return frozenset(_claimed(known[share.gpu], share.profile, share.start) for share in shares)


def _claimed(gpu: Gpu, profile: str | None, start: int | None) -> DeviceKey:
    if profile is None or start is None:
        return gpu.uuid
    there = (each for each in gpu.sharing.layout or () if (each.profile, each.start) == (profile, start))
    place = next(there, placement_at(gpu.model, profile, start))
    return (gpu.uuid, place) if place.size else gpu.uuid


def handover(
    desired: frozenset[DeviceKey],
    committed: frozenset[DeviceKey],
    held: frozenset[DeviceKey],
    taken: frozenset[DeviceKey],
    advertised_by_kubelet: frozenset[DeviceKey] | None,
) -> Handover:
    """Return what to advertise, and what to write to `status.offered`, where nothing may ever be given twice.

    The kubelet does not know that devices overlap: one that lies across another that it still has waits for that too.

    Args:
        desired: what should be offered by name now.
        committed: `status.offered` as it is stored.
        held: devices by name that pods hold or are being given.
        taken: what has something in common with a device that a claim or an assignment names.
        advertised_by_kubelet: what the kubelet lists as allocatable; None where that is not known.

    """
    leaving, withdrawing = committed - desired, committed - desired - held
    blocked = frozenset(each for each in desired if any(overlapping({}, each, other) for other in leaving))
    return Handover(
        add=desired - committed - taken - blocked,
        advertise=desired & committed - ((taken | blocked) - held),
        withdrawing=withdrawing,
        release=frozenset() if advertised_by_kubelet is None else withdrawing - advertised_by_kubelet,
    )


def as_wanted(keys: Iterable[DeviceKey]) -> tuple[Wanted, ...]:
    """Return devices by GPU, as `status.offered` has them; sorted, so that the same devices are the same fields."""
    parts = frozenset(_parts(key) for key in keys)
    return tuple(
        Wanted(
            gpu=gpu,
            whole=(gpu, None) in parts,
            instances=tuple(sorted(place for uuid, place in parts if uuid == gpu and place is not None)),
        )
        for gpu in sorted({uuid for uuid, _ in parts})
    )


def as_keys(wanted: Iterable[Wanted]) -> frozenset[DeviceKey]:
    """Return devices one by one."""
    return frozenset(
        key
        for each in wanted
        for key in (*((each.gpu,) if each.whole else ()), *((each.gpu, place) for place in each.instances))
    )
