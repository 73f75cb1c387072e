"""The device plugin resources requested by the containers of a Pod object, as the kubelet counts them."""

from collections.abc import Iterator, Mapping
from typing import Any

from tessera.api.kubernetes.times import read_time
from tessera.core.gpu.sharing import names_device
from tessera.core.workload.kubernetesnames import MIRROR
from tessera.core.workload.resources import SHARE_RESOURCES

__all__ = [
    "container_ids",
    "containers_in_order",
    "created_containers",
    "holds_devices",
    "lasting_containers",
    "limits_of",
    "runtime_of",
    "was_admitted",
    "was_created",
    "was_left_out",
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


def was_left_out(pod: Mapping[str, Any], resource: str, node: Mapping[str, Any]) -> bool:
    """Return whether a kubelet runs a pod without a resource that it requests, as its node never had it.

    A kubelet leaves such a resource out of a pod that names its node itself. A Node keeps the names of all resources
    that a device plugin ever registered, with 0 of them; a user can write neither those nor the pod's status. It is no
    proof where the pod may be older than the Node object, whose names are lost when it is deleted (a static pod's
    status is then written anew), nor where a driver for DRA serves the resource.
    Source: Kubernetes `pkg/kubelet/lifecycle/predicate.go`, `removeMissingExtendedResources`, and
    `pkg/kubelet/nodestatus/setters.go`, `MachineInfo`.

    Args:
        pod: which runs.
        resource: that a container of it requests.
        node: its Node object; empty if there is none.

    """
    observed, status = node.get("status") or {}, pod.get("status") or {}
    known = {*(observed.get("capacity") or ()), *(observed.get("allocatable") or ())}
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    if not known or resource in known or MIRROR in annotations or status.get("extendedResourceClaimStatus"):
        return False
    try:
        created_s = read_time(str((node.get("metadata") or {}).get("creationTimestamp")))
        return read_time(str(status.get("startTime"))) > created_s
    except ValueError:
        return False


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


def holds_devices(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod's containers request GPUs, MIG instances or units of their memory."""
    return any(names_device(name) or name in SHARE_RESOURCES for _, name, _ in limits_of(pod))


def limits_of(pod: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield container, resource and quantity of each limit that is not zero, init containers first."""
    spec = pod.get("spec") or {}
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        limits = (container.get("resources") or {}).get("limits") or {}
        for resource, quantity in limits.items():
            if str(quantity) != "0":
                yield str(container.get("name")), str(resource), str(quantity)
