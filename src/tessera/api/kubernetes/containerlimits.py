"""The device plugin resources requested by the containers of a Pod object, as the kubelet counts them."""

import contextlib
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

from tessera.api.kubernetes.podstates import is_finished, was_admitted
from tessera.core.deviceplugin.allocations.registerednode import RegisteredNode
from tessera.core.workload.units import count
from tessera.errors import InvalidInput

__all__ = [
    "admitted_amounts",
    "awaiting_amounts",
    "containers_in_order",
    "has_resource_claim",
    "holds_devices",
    "lasting_containers",
    "limits_of",
]


def lasting_containers(pod: Mapping[str, Any]) -> frozenset[str]:
    """Return the containers that run as long as the pod: all but the init containers that come to an end."""
    spec = pod.get("spec") or {}
    sidecars = (each for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always")
    return frozenset(str(each.get("name")) for each in (*(spec.get("containers") or ()), *sidecars))


def containers_in_order(pod: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a pod's containers in the order in which they start, and in which the kubelet allocates for them."""
    spec = pod.get("spec") or {}
    return tuple(
        str(each.get("name")) for each in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
    )


def has_resource_claim(pod: Mapping[str, Any]) -> bool:
    """Return whether a driver for DRA serves resources that a pod requests by limits."""
    return bool((pod.get("status") or {}).get("extendedResourceClaimStatus"))


def holds_devices(pod: Mapping[str, Any], node: RegisteredNode) -> bool:
    """Return whether a pod's containers request GPUs, MIG instances or units of their memory on its node."""
    return any(node.is_of_gpus(name) for _, name, _ in limits_of(pod))


def admitted_amounts(pods: Iterable[Mapping[str, Any]], recorded: Container[str] = ()) -> Counter[str]:
    """Return how many of each resource a kubelet counts for pods that it has admitted and that have not ended.

    It has admitted those whose status says so, and those with a UID in `recorded`, whose status is late.

    An init container that ends uses its amount before the others start, and beside the sidecars before it.
    Source: Kubernetes `staging/src/k8s.io/component-helpers/resource/helpers.go`, `AggregateContainerRequests`.
    What a driver for DRA serves is left out: no device plugin allocates it.
    """
    found = Counter[str]()
    for pod in pods:
        if is_finished(pod) or not (was_admitted(pod) or (pod.get("metadata") or {}).get("uid") in recorded):
            continue
        found += _requested(pod)
    return found


def awaiting_amounts(pods: Iterable[Mapping[str, Any]]) -> Mapping[str, Counter[str]]:
    """Return what pods request that have not ended and that by their status no kubelet has admitted, by UID.

    A kubelet allocates when it admits a pod: an admitted one that lacks a device will never have it.
    The amounts are those of `admitted_amounts`.
    """
    waiting = (pod for pod in pods if not (is_finished(pod) or was_admitted(pod)))
    return {str((pod.get("metadata") or {}).get("uid") or ""): _requested(pod) for pod in waiting}


def _requested(pod: Mapping[str, Any]) -> Counter[str]:
    lasting, most = Counter[str](), Counter[str]()
    keep, claimed = lasting_containers(pod), _claimed(pod)
    for container, resource, quantity in limits_of(pod):
        if (container, resource) in claimed:
            continue
        with contextlib.suppress(InvalidInput):
            amount = count(quantity, "")
            if container in keep:
                lasting[resource] += amount
            else:
                most[resource] = max(most[resource], lasting[resource] + amount)
    return lasting | most


def _claimed(pod: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    """Return the containers and resources that a driver for DRA serves."""
    served = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
    mappings = served.get("requestMappings") or ()
    return frozenset((str(each.get("containerName")), str(each.get("resourceName"))) for each in mappings)


def limits_of(pod: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield container, resource and quantity of each limit that is not zero, init containers first."""
    spec = pod.get("spec") or {}
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        limits = (container.get("resources") or {}).get("limits") or {}
        for resource, quantity in limits.items():
            if str(quantity) != "0":
                yield str(container.get("name")), str(resource), str(quantity)
