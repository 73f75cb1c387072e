"""The device plugin resources requested by the containers of a Pod object, as the kubelet counts them."""

import contextlib
import math
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

from tessera.api.kubernetes.podstates import is_finished
from tessera.api.kubernetes.times import read_time
from tessera.core.deviceplugin.allocations.adoption import RegisteredNode
from tessera.core.workload.tesseranames import RENAMED_RESOURCES
from tessera.core.workload.units import count
from tessera.errors import InvalidInput

__all__ = [
    "admitted_amounts",
    "awaiting_amounts",
    "container_ids",
    "containers_in_order",
    "created_containers",
    "has_resource_claim",
    "holds_devices",
    "lasting_containers",
    "limits_of",
    "registered_node",
    "runtime_of",
    "started_s",
    "was_admitted",
    "was_created",
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


def was_admitted(pod: Mapping[str, Any]) -> bool:
    """Return whether a kubelet has admitted a pod: only then it reports the pod's containers."""
    status = pod.get("status") or {}
    return bool(status.get("containerStatuses") or status.get("initContainerStatuses"))


def was_created(pod: Mapping[str, Any], container: str) -> bool:
    """Return whether a kubelet has ever created a container of a pod, by the pod's status."""
    return container in created_containers(pod)


def created_containers(pod: Mapping[str, Any]) -> frozenset[str]:
    """Return the containers of a pod that a kubelet has ever created, by the pod's status."""
    status = pod.get("status") or {}
    found = (*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ()))
    return frozenset(str(each.get("name")) for each in found if each.get("containerID"))


def has_resource_claim(pod: Mapping[str, Any]) -> bool:
    """Return whether a driver for DRA serves resources that a pod requests by limits."""
    return bool((pod.get("status") or {}).get("extendedResourceClaimStatus"))


def registered_node(node: Mapping[str, Any]) -> RegisteredNode:
    """Return what a Node object tells of resources; it is empty if there is none."""
    status = node.get("status") or {}
    names = {*(status.get("capacity") or ()), *(status.get("allocatable") or ())}
    metadata = node.get("metadata") or {}
    created_s = _time_s(metadata.get("creationTimestamp"))
    renamed = str((metadata.get("annotations") or {}).get(RENAMED_RESOURCES) or "").split(",")
    return RegisteredNode(
        resources=frozenset(names),
        renamed=frozenset(filter(None, renamed)),
        created_s=math.inf if created_s is None else created_s,
    )


def started_s(pod: Mapping[str, Any]) -> float:
    """Return when the kubelet admitted a pod, in seconds since 1970; 0 if unknown."""
    return _time_s((pod.get("status") or {}).get("startTime")) or 0.0


def _time_s(text: object) -> float | None:
    try:
        return read_time(str(text))
    except ValueError:
        return None


def container_ids(pod: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the runtime's id of each created container and its name: of `containerd://ID` the ID."""
    status = pod.get("status") or {}
    for kind in ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"):
        for each in status.get(kind) or ():
            if name := str(each.get("containerID") or "").rpartition("/")[2]:
                yield name, str(each.get("name") or "")


def runtime_of(pod: Mapping[str, Any], node: Mapping[str, Any]) -> str:
    """Return the runtime of a pod's containers: of `containerd://ID` `containerd`; empty if unknown.

    Args:
        pod: its status tells, once a container was created.
        node: its Node object, which tells before that, as while an image is pulled; empty if there is none.

    """
    status = pod.get("status") or {}
    found = (*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ()))
    ids = (str(each.get("containerID") or "").partition("://") for each in found)
    info = (node.get("status") or {}).get("nodeInfo") or {}
    usual = str(info.get("containerRuntimeVersion") or "").partition("://")[0]
    return next((runtime for runtime, _, name in ids if name), usual)


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
