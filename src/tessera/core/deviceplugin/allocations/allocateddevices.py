"""Which devices, and which ids of the kubelet, containers are allocated by the agent's record."""

from collections import Counter
from collections.abc import Iterable, Mapping

from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation, uses_of_devices
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation
from tessera.core.deviceplugin.offers.advertise import PluginDevice
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.workload.resources import SHARE_RESOURCES

__all__ = [
    "awaited_counts",
    "clients_by_mps",
    "container_allocations",
    "devices_by_assignment",
    "devices_by_name",
    "devices_without_mps",
    "is_free",
    "knows_devices",
    "unclaimed_ids",
]


def unclaimed_ids(record: Iterable[AgentAllocation], resource: str) -> frozenset[str]:
    """Return the ids of a resource that `Allocate` was answered with, and for which no pod is known yet.

    After a minute without a pod they were for a rejected one.
    """
    pending = (each for each in record if each.resource == resource and not each.uid)
    return frozenset(name for each in pending for name in each.ids)


def awaited_counts(requested: Mapping[str, Mapping[str, int]], record: Iterable[AgentAllocation]) -> Counter[str]:
    """Return how many devices of each resource pods will still be allocated.

    A pod has the ids recorded for it alone: containers that start one after the other may have the same. Ids for which
    no pod is known yet count for nobody, as they may be a rejected pod's.

    Args:
        requested: what each pod requests that a kubelet may still admit, by UID.
        record: the allocations.

    """
    own: dict[tuple[str, str], set[str]] = {}
    for each in record:
        own.setdefault((each.uid, each.resource), set()).update(each.ids)
    awaited = Counter[str]()
    for uid, amounts in requested.items():
        for resource, amount in amounts.items():
            awaited[resource] += max(0, amount - len(own.get((uid, resource), ())))
    return awaited


def devices_by_name(record: Iterable[AgentAllocation]) -> frozenset[DeviceId]:
    """Return the devices that are allocated by name, until the pod's last process has ended."""
    named = (each for each in record if each.resource not in SHARE_RESOURCES)
    return frozenset(use.device for each in named for use in each.uses if not use.absent)


def devices_by_assignment(record: Iterable[AgentAllocation]) -> frozenset[DeviceId]:
    """Return the devices that are allocated by assignment, whatever the annotations say by now."""
    assigned = (each for each in record if each.resource in SHARE_RESOURCES)
    return frozenset(use.device for each in assigned for use in each.uses if not use.absent)


def devices_without_mps(record: Iterable[AgentAllocation]) -> frozenset[DeviceId]:
    """Return the devices in use, or about to be, on which no MPS daemon may start."""
    known = (each for each in record if not each.presumed)
    return frozenset(use.device for each in known for use in each.uses if use.keeps_mps_out and not use.absent)


def clients_by_mps(record: Iterable[AgentAllocation]) -> dict[DeviceId, int]:
    """Return into how many replicas by MPS the memory of devices is divided that are in use, or about to be."""
    uses = (use for each in record for use in each.uses)
    return {use.device: use.clients for use in uses if use.clients and not use.absent}


def is_free(record: Iterable[AgentAllocation], device: PluginDevice) -> bool:
    """Return whether no pod has a device that is advertised by name, under any name, nor an overlapping one."""
    (use,) = uses_of_devices((device,))
    return not any(device.id in each.ids or any(use.excludes(other) for other in each.uses) for each in record)


def knows_devices(record: Iterable[AgentAllocation], allocation: KubeletAllocation) -> bool:
    """Return whether it is known, and not presumed, which devices of its ids a container uses."""
    own = f"{allocation.namespace}/{allocation.pod}", allocation.container, allocation.resource
    return any(each.uses and not each.presumed for each in record if (each.pod, each.container, each.resource) == own)


def container_allocations(record: Iterable[AgentAllocation]) -> tuple[KubeletAllocation, ...]:
    """Return what containers of known pods are allocated, in the form of the kubelet's record."""
    return tuple(
        KubeletAllocation(
            uid=each.uid,
            namespace=namespace,
            pod=pod,
            container=each.container,
            resource=each.resource,
            device_ids=each.ids,
        )
        for each in record
        for namespace, slash, pod in [each.pod.partition("/")]
        if slash
    )
