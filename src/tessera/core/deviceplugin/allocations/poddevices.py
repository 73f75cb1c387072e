"""The devices that the pods of a node use: by the kubelet's record, and by assignments for ids of units."""

import itertools
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tessera.core.cluster.instances import possible_instances
from tessera.core.cluster.mpstargets import mps_key
from tessera.core.cluster.snapshot import Share
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation
from tessera.core.deviceplugin.allocations.matching import AssignedRequest
from tessera.core.gpu.deviceids import DeviceId, devices_of_ids, existing_devices
from tessera.core.gpu.inventory import GpuFacts, Inventory
from tessera.core.gpu.mig import Placement
from tessera.core.workload.resources import SHARE_RESOURCES

__all__ = [
    "PodDevices",
    "assigned_devices",
    "assigned_instances",
    "devices_allocated_by_name",
    "pod_devices",
    "used_keys",
]


class PodDevices(msgspec.Struct, frozen=True, kw_only=True):
    """A pod's devices, by their ids."""

    pod: str
    """`namespace/name`; empty for a pod that is about to start and not known yet."""
    devices: tuple[str, ...]
    """Device ids; of shares, whose ids say nothing, the UUIDs of the assigned devices."""


def assigned_instances(requests: Iterable[AssignedRequest], inventory: Inventory) -> frozenset[DeviceId]:
    """Return the MIG instances assigned to pods for amounts of memory, existing or not.

    They are not advertised as devices as well (`advertise.OfferOptions.assigned_instances`). An assignment to an
    impossible instance keeps what lies at its start from being advertised, in case it is known there by another name.
    """
    gpus = {facts.index: facts for facts in inventory.gpus}
    shares = ((gpus[share.gpu], share) for request in requests for share in request.shares if share.gpu in gpus)
    return frozenset(DeviceId(gpu.uuid, place) for gpu, share in shares for place in _claimed(share, gpu))


def _claimed(share: Share, facts: GpuFacts) -> Sequence[Placement]:
    there = [each.placement for each in facts.instances if each.placement.start == share.start]
    possible = possible_instances(facts).get((share.profile, share.start))
    return there if possible is None else [*there, possible]


def assigned_devices(requests: Iterable[AssignedRequest], inventory: Inventory) -> frozenset[DeviceId]:
    """Return the devices of assignments: MIG instances, existing or not, and the GPUs named without one."""
    everything = tuple(requests)
    uuids = {facts.index: facts.uuid for facts in inventory.gpus}
    shares = (share for request in everything for share in request.shares if share.gpu in uuids)
    whole = (DeviceId(uuids[share.gpu]) for share in shares if share.profile is None and share.start is None)
    return assigned_instances(everything, inventory).union(whole)


def devices_allocated_by_name(allocated: Iterable[KubeletAllocation], inventory: Inventory) -> frozenset[DeviceId]:
    """Return the GPUs and MIG instances that pods use by name, by the kubelet's record."""
    named = (each.device_ids for each in allocated if each.resource not in SHARE_RESOURCES)
    return devices_of_ids(itertools.chain.from_iterable(named), inventory)


def pod_devices(
    allocated: Iterable[KubeletAllocation],
    requests: Iterable[AssignedRequest],
    inventory: Inventory,
    *,
    by_ids: bool = True,
) -> tuple[PodDevices, ...]:
    """Return each pod's devices; by its assignment if it has one, as far as they exist.

    An instance that does not exist yet is not in use, nor is an amount of a GPU with MIG on: it cannot be used before
    MIG is off. Device ids of units do not tell the GPU.

    Args:
        allocated: the kubelet's record.
        requests: the assignments of the node's pods.
        inventory: of the driver.
        by_ids: whether units of pods without assignment stand for the GPUs in their ids, for a caller without all
            assignments; otherwise such pods use nothing, because no container is started for them.

    """
    named = _assigned(requests, inventory)
    pods: dict[str, list[str]] = {}
    for each in allocated:
        pod = f"{each.namespace}/{each.pod}"
        known = named.get(pod, each.device_ids if by_ids else ())
        pods.setdefault(pod, []).extend(known if each.resource in SHARE_RESOURCES else each.device_ids)
    return tuple(PodDevices(pod=pod, devices=tuple(dict.fromkeys(ids))) for pod, ids in pods.items())


def _assigned(requests: Iterable[AssignedRequest], inventory: Inventory) -> Mapping[str, Sequence[str]]:
    """Return the UUIDs of each pod's assigned devices that exist."""
    index = {gpu.uuid: gpu.index for gpu in inventory.gpus}
    uuids = {
        (index[gpu], place and place.profile, place and place.start): uuid
        for (gpu, place), uuid in existing_devices(inventory).items()
    }
    named: dict[str, list[str]] = {}
    for request in requests:
        found = [uuids.get((share.gpu, share.profile, share.start)) for share in request.shares]
        named.setdefault(f"{request.key.namespace}/{request.key.pod}", []).extend(each for each in found if each)
    return named


def used_keys(pods: Iterable[PodDevices], inventory: Inventory) -> frozenset[str]:
    """Return the keys (`core.cluster.mpstargets.mps_key`) of the GPUs and MIG instances in use."""
    ids = (device.partition("-_-")[0] for each in pods for device in each.devices)
    return frozenset(mps_key(*device) for device in devices_of_ids(ids, inventory))
