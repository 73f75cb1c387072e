"""Requests of pods for memory units, and what a kubelet allocated of them."""

from builders.shares import share
from tessera.core.cluster.snapshot import Share
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation, RequestKey
from tessera.core.deviceplugin.allocations.matching import AssignedRequest

RESOURCE = "tessera.dev/gpu-memory"


def request(
    pod: str, units: int, *shares: Share, since: int = 0, bound: str = "", resource: str = RESOURCE
) -> AssignedRequest:
    key = RequestKey("default", pod, "main", resource)
    return AssignedRequest(
        key=key, units=units, shares=shares or (share(0, units * 1024),), since_ns=since, created_ns=since, bound=bound
    )


def kubelet_allocation(pod: str, *ids: str, resource: str = RESOURCE) -> KubeletAllocation:
    return KubeletAllocation(
        namespace="default", pod=pod, container="main", resource=resource, device_ids=tuple(sorted(ids))
    )
